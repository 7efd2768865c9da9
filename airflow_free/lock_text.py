"""A lock, and a verdict over two, as text for a terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_free.lock import Locked
from airflow_free.verify import DECIDING, Verdict

CHOICES = ("mode", "shapes", "tiling", "streams", "target", "model")


def described(locked: Locked) -> str:
    """What a person wants to know of a recipe first."""
    return "\n".join(_lines(locked)) + "\n"


def _lines(locked: Locked) -> Iterator[str]:
    chosen = {group: locked.experiment.get(group) or {} for group in CHOICES}
    named = {group: c.get("schedule") if group == "tiling" else c.get("name") for group, c in chosen.items()}
    yield " · ".join(f"{group}={name}" for group, name in named.items())
    yield f"passes: {', '.join(locked.experiment.get('passes') or {}) or 'none'}"
    yield f"configuration {locked.configuration[:12]}"
    for graph in locked.graphs:
        nodes = f"{graph['nodes_before']} -> {graph['nodes_after']} nodes"
        yield f"graph {graph['id']}: {graph['fx']}, {nodes}, {str(graph['fingerprint'])[:12]}"
    versions, result = locked.versions, locked.result
    yield "locked with " + ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "on " + ", ".join(f"{name}: {value}" for name, value in locked.device.items())
    yield "sources: " + ", ".join(f"{name} {sha[:12]}" for name, sha in locked.sources.items())
    numerics = result.get("numerics")
    yield f"result: {result.get('status')}" + (f", equals eager: {_equal(numerics)}" if numerics else ", not compared")
    benchmark = result.get("benchmark")
    if benchmark:
        speed = ", ".join(f"{value:.2f}x {name}" for name, value in benchmark["speedup"].items())
        yield f"measured: p50 {benchmark['p50_us']:.1f} µs of {len(benchmark['samples_us'])} samples, {speed}"


def _equal(numerics: dict[str, object]) -> str:
    if numerics["bitwise"]:
        return "bit for bit"
    return "within its tolerance" if numerics["passed"] else "no"


def judged(verdict: Verdict, locked: Locked, here: Locked) -> str:
    """Each part with how many values were compared, each difference on a line of its own, the verdict last."""
    lines: list[str] = []
    for part, count in verdict.compared.items():
        own = [d for d in verdict.differences if d.part == part]
        lines.append(f"{part}: {f'{len(own)} of {count} differ' if own else f'the same ({count} values)'}")
        lines += [f"  {difference}" for difference in own]
    for part, words in (("numerics", "hold"), ("speedup", "holds")):
        own = [d for d in verdict.differences if d.part == part]
        promised = locked.result.get("numerics" if part == "numerics" else "benchmark")
        lines.append(f"{part}: {'differ' if own else words if promised else 'not in the recipe'}")
        lines += [f"  {difference}" for difference in own]
    others = sorted({d.part for d in verdict.differences if d.part not in DECIDING})
    also = f" (and {', '.join(others)} differ)" if others else ""
    lines.append(f"the recipe {'holds' if verdict.holds else 'does not hold'} here{also}: {here.result.get('status')}")
    return "\n".join(lines) + "\n"
