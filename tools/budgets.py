"""How large each package may be: `python -m tools.budgets` measures, `--write` puts the table into the page.

`budgets.yaml` says which files are whose, how much each package may have, and where it is to come to. `--check`, which
is part of `make check`, ends with 1 where a package has more than it may, where a file belongs to nobody, and where
docs/architecture.md shows another table. The figures of the page are rounded up, so that a small change leaves it as it
is.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "budgets.yaml"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- budgets -->", "<!-- end of budgets -->"
STEPS = {"statements": 100, "files": 5, "native_lines": 100, "test_lines": 500, "names": 50}
"""{what is counted: what a figure of the page is rounded up to}."""
WORDS = {"native_lines": "lines of C++", "test_lines": "lines of tests", "names": "public names"}
SOURCES = (("src/npucompose", "airflow_free", "packages/*/src"), ("tests", "packages/*/tests"))
"""Folders of code, then of tests, as patterns from the root."""
NATIVE = (".cpp", ".h")


@frozen(kw_only=True)
class Package:
    """What is counted as one, and how much of it there may be."""

    name: str
    paths: tuple[str, ...] = field(converter=tuple)
    """Folders and files, from the root; the longest that fits a file has it."""
    tests: tuple[str, ...] = field(converter=tuple, factory=tuple)
    at_most: Mapping[str, int]
    goal: Mapping[str, int] = field(factory=dict)
    """Where the package is to come to, where that is less."""


def packages(text: str) -> tuple[Package, ...]:
    """Of `budgets.yaml`."""
    return tuple(Package(name=name, **given) for name, given in yaml.safe_load(text).items())


def statements_of(tree: ast.Module) -> int:
    """All statements of a file, those inside of others too."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def names_of(tree: ast.Module) -> int:
    """What the top level of a file defines without an underscore."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return sum(not name.startswith("_") for name in found)


def owner_of(path: str, owned: Mapping[str, str]) -> str | None:
    """Whose file it is: that of the longest of the `owned` folders and files that it lies in."""
    inside = [place for place in owned if path == place or path.startswith(f"{place}/")]
    return owned[max(inside, key=len)] if inside else None


def measured(found: Sequence[Package], root: Path = ROOT) -> tuple[dict[str, Counter[str]], list[str]]:
    """({package: its figures}, the files that are nobody's)."""
    sources = {place: one.name for one in found for place in one.paths}
    tests = {place: one.name for one in found for place in one.tests}
    figures: dict[str, Counter[str]] = {one.name: Counter(dict.fromkeys(STEPS, 0)) for one in found}
    nobodys: list[str] = []
    for folders, owned in zip(SOURCES, (sources, tests), strict=True):
        for path, text in _texts(root, folders):
            owner = owner_of(path, owned)
            if owner is None:
                nobodys.append(path)
            else:
                figures[owner].update(_counted(path, text, is_test=owned is tests))
    return figures, nobodys


def _texts(root: Path, folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    for folder in (found for pattern in folders for found in sorted(root.glob(pattern))):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", *NATIVE) and path.is_file():
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def _counted(path: str, text: str, *, is_test: bool) -> dict[str, int]:
    lines = text.count("\n")
    if is_test:
        return {"test_lines": lines}
    if path.endswith(NATIVE):
        return {"native_lines": lines}
    tree = ast.parse(text)
    return {"files": 1, "statements": statements_of(tree), "names": names_of(tree)}


def beyond(found: Sequence[Package], figures: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each figure that is larger than it may be."""
    return [
        f"{one.name} has {figures[one.name][what]} {WORDS.get(what, what)}, and may have {most}: take out as much, or "
        f"raise the number in {BUDGETS.name} and say there why."
        for one in found
        for what, most in one.at_most.items()
        if figures[one.name][what] > most
    ]


def table(found: Sequence[Package], figures: Mapping[str, Mapping[str, int]]) -> str:
    """The lines of the page, each figure rounded up, with what it may be and, where that is less, its goal."""

    def cell(one: Package, what: str) -> str:
        number, step = figures[one.name][what], STEPS[what]
        if not number and what not in one.at_most:
            return "–"
        shown = f"{-(-number // step) * step:,} of {one.at_most[what]:,}"
        return f"{shown}, goal {one.goal[what]:,}" if what in one.goal else shown

    head = ["package", *(WORDS.get(what, what) for what in STEPS)]
    rows = [[one.name, *(cell(one, what) for what in STEPS)] for one in found]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _with_table(page: str, lines: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way: Any = parser.add_mutually_exclusive_group()
    way.add_argument("--check", action="store_true", help="end with 1 where something is larger than it may be")
    way.add_argument("--write", action="store_true", help="write the table into docs/architecture.md")
    given = parser.parse_args(argv)
    found = packages(BUDGETS.read_text(encoding="utf-8"))
    figures, nobodys = measured(found)
    page = PAGE.read_text(encoding="utf-8")
    wanted = _with_table(page, table(found, figures))
    if given.write:
        PAGE.write_text(wanted, encoding="utf-8")
    wrong = [f"{path} belongs to no package of {BUDGETS.name}." for path in nobodys] + beyond(found, figures)
    if given.check and wanted != page:
        wrong.append(f"{PAGE.name} shows another table: `python -m tools.budgets --write`.")
    for one in found:
        print(f"{one.name}: " + ", ".join(f"{figures[one.name][what]:,} {WORDS.get(what, what)}" for what in STEPS))
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong) and given.check)


if __name__ == "__main__":
    sys.exit(main())
