"""A lock, and a verdict over two, as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npucompose.experiment.lock import Locked
from npucompose.experiment.verify import DECIDING, Verdict
from npucompose.results.measured import Numerics
from npucompose.visible import visible

CHOICES = ("mode", "shapes", "tiling", "streams", "target", "model")


def described(locked: Locked) -> str:
    """What a person wants to know of a recipe first."""
    return visible("\n".join(_lines(locked)) + "\n")


def _lines(locked: Locked) -> Iterator[str]:
    yield " · ".join(f"{group}={_name(locked.experiment.get(group))}" for group in CHOICES)
    passes = locked.experiment.get("passes")
    yield f"passes: {', '.join(map(str, passes)) if isinstance(passes, Mapping) and passes else 'none'}"
    yield f"configuration {locked.configuration[:12]}"
    for graph in locked.graphs:
        nodes = f"{graph.nodes_before} -> {graph.nodes_after} nodes"
        yield f"graph {graph.id}: {graph.fx}, {nodes}, {graph.fingerprint[:12]}"
    yield "locked with " + ", ".join(f"{name} {version}" for name, version in locked.versions.items())
    yield "on " + ", ".join(f"{name}: {value}" for name, value in locked.device.items())
    yield "sources: " + ", ".join(f"{name} {sha[:12]}" for name, sha in locked.sources.items())
    numerics, benchmark = locked.result.numerics, locked.result.benchmark
    yield f"result: {locked.result.status}, " + (f"equals eager: {_equal(numerics)}" if numerics else "not compared")
    if benchmark is not None:
        speed = ", ".join(f"{value:.2f}x {name}" for name, value in benchmark.speedup.items())
        yield f"measured: p50 {benchmark.p50_us:.1f} µs of {len(benchmark.samples_us)} samples, {speed}"


def _name(section: Any) -> str:
    """Of a choice; tiling calls it its schedule."""
    found = section.get("name", section.get("schedule")) if isinstance(section, Mapping) else None
    return str(found)


def _equal(numerics: Numerics) -> str:
    if numerics.bitwise:
        return "bit for bit"
    return "within its tolerance" if numerics.passed else "no"


def judged(verdict: Verdict, locked: Locked, here: Locked) -> str:
    """Each part with how many values were compared, each difference on a line of its own, the verdict last."""
    lines: list[str] = []
    for part, count in verdict.compared.items():
        own = [d for d in verdict.differences if d.part == part]
        lines.append(f"{part}: {f'{len(own)} of {count} differ' if own else f'the same ({count} values)'}")
        lines += [f"  {difference}" for difference in own]
    for part, words in (("numerics", "hold"), ("speedup", "holds")):
        own = [d for d in verdict.differences if d.part == part]
        promised = locked.result.numerics if part == "numerics" else locked.result.benchmark
        lines.append(f"{part}: {'differ' if own else words if promised else 'not in the recipe'}")
        lines += [f"  {difference}" for difference in own]
    others = sorted({d.part for d in verdict.differences if d.part not in DECIDING})
    also = f" (and {', '.join(others)} differ)" if others else ""
    lines.append(f"the recipe {'holds' if verdict.holds else 'does not hold'} here{also}: {here.result.status}")
    return visible("\n".join(lines) + "\n")
