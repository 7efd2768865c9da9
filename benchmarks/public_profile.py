"""How well a genuine profile of an NPU predicts itself.

`python -m benchmarks.public_profile kernel_details.csv --soc a2 --source "repository, commit, path" --write` puts the
figures into docs/device_files.md. The profile stays outside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from npucompose_devtools.profiles.command import HeldOut, Profile, held_out, profile_of

PAGE = Path(__file__).parents[1] / "docs" / "device_files.md"
BEGIN, END = "<!-- public profile -->", "<!-- end -->"


def rows(profile: Profile, found: Sequence[HeldOut], source: str) -> Iterator[str]:
    """The table of the page."""
    left = sum(profile.left_out.values())
    yield f"{source}: {len(profile.rows)} kernels with times and shapes, {left} rows left out."
    yield ""
    yield "| held out | family | rows | median error | 90th percentile | in the interval |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        for family in (None, *one.families):
            part = one if family is None else one.of_family(family)
            figures = (part.median_error, part.p90_error, part.coverage)
            words = " | ".join("" if figure is None else f"{figure:.1%}" for figure in figures)
            count = f"{len(part.predicted)} of {one.rows}" if family is None else f"{len(part.predicted)}"
            yield f"| {one.what} | {family or 'all'} | {count} | {words} |"


def written(page: str, lines: Sequence[str]) -> str:
    """The page with these lines between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="kernel_details.csv or op_summary_*.csv")
    parser.add_argument("--soc", required=True, help="the device of the profile")
    parser.add_argument("--source", required=True, help="where it is public")
    parser.add_argument("--write", action="store_true", help="put the table into docs/device_files.md")
    arguments = parser.parse_args(argv)
    profile = profile_of(arguments.files, arguments.soc)
    lines = list(rows(profile, held_out(profile.rows, profile.ratio), arguments.source))
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
