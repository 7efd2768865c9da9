"""docs/cuda_results.md from the files that `make test-cuda` left: `python benchmarks/cuda_page.py`. Needs no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "cuda_results.md"
SIDE = "microseconds side by side: "
TIMES = "microseconds of "
ALONE = ", graph alone"
HEAD = """# What an NVIDIA GPU said

Written by `python benchmarks/cuda_page.py` from `benchmarks/results/cuda-*.json`, which `make test-cuda` writes; no
cell is by hand. What each claim is stands in [cuda.md](cuda.md#check-it-on-your-gpu) and
`packages/replay/tests/replay_tests/targets/cuda/claims.py`.
"""
TIMED = """Microseconds of one call, from the record of one event to the next, the device idle before: median of 200
calls in turns with all other ways, and its quartiles. *As fast as eager* is the ratio of the medians. *Its graph
alone* is the replay of the same CUDA graph with nothing around it: the difference is what the host does. Each way gave
eager's results, within the tolerances of `npucompose.measure.numerics`, in the fourth call before it was timed.
*Made* is the compilation and the first four calls, with the caches of Inductor as the ways before left them."""


def page(files: Sequence[Mapping[str, Any]]) -> str:
    """The whole text."""
    return "\n".join([HEAD, *(line for one in files for line in _of_device(one))])


def _of_device(one: Mapping[str, Any]) -> Iterator[str]:
    versions, claims = one["environment"]["versions"], one["claims"]
    yield f"## {one['device']}"
    yield ""
    yield (
        f"torch {versions['torch']}, CUDA {one['cuda']}, Triton {versions.get('triton', 'unknown')}, Python "
        f"{versions['python']}; {one['environment']['cpu']['usable']} cores."
    )
    yield ""
    yield "| claim | held | found |"
    yield "|---|---|---|"
    for name, claim in claims.items():
        if not name.startswith((SIDE, TIMES)):
            yield f"| {name} | {'yes' if claim['held'] else 'no'} | {_found(claim)} |"
    yield ""
    yield TIMED
    yield ""
    yield "| model | way | µs | quartiles | as fast as eager | its graph alone, µs | made, s |"
    yield "|---|---|---|---|---|---|---|"
    for name, claim in claims.items():
        if name.startswith(SIDE):
            yield from _rows(name.removeprefix(SIDE), claim)
    yield ""


def _found(claim: Mapping[str, Any]) -> str:
    if not claim["held"]:
        return _error(claim)
    return ", ".join(f"{name.replace('_', ' ')} {_said(value)}" for name, value in claim["found"].items())


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_said(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _error(claim: Mapping[str, Any]) -> str:
    return claim["error"].strip().splitlines()[-1].replace("|", "/").partition(". ")[0]


def _rows(model: str, claim: Mapping[str, Any]) -> Iterator[str]:
    if not claim["held"]:
        yield f"| {model} | {_error(claim)} | | | | | |"
        return
    found = claim["found"]
    eager = found["eager"]["p50_us"]
    for way, one in found.items():
        if not way.endswith(ALONE):
            alone = found.get(way + ALONE)
            yield (
                f"| {model} | {way} | {one['p50_us']:.0f} | {one['p25_us']:.0f} to {one['p75_us']:.0f} "
                f"| {eager / one['p50_us']:.2f} | {'' if alone is None else format(alone['p50_us'], '.0f')} "
                f"| {one['made_s']:.1f} |"
            )


def files() -> list[dict[str, Any]]:
    """What was found on each device, the newest of each."""
    newest = {found["device"]: found for found in map(_read, sorted(RESULTS.glob("cuda-*.json"), key=_day))}
    return list(newest.values())


def _day(path: Path) -> str:
    return path.stem[-len("2026-01-01") :]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(files()), encoding="utf-8")
    print(PAGE)
