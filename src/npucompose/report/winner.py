"""Which of two runs of the same work is faster, by how much, and do both compute what eager computes: one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from npucompose.report.words import as_time
from npucompose.schema.record import Numerics, Report

WORK = ("model", "shapes", "seed", "compile")
"""Fields of an experiment that say what is computed; runs that differ in one of them do not compete."""
NOISE = 0.05
"""Two runs are two processes: differences up to this share count as none."""


def verdict(one: Report, other: Report) -> str | None:
    """`mode=max-autotune is 1.38 × as fast as mode=reduce-overhead: 611.0 µs and 842.0 µs, …`.

    The ratio is that of the speed-ups, each measured against eager in its own process, so that a slower hour of the
    machine cancels. None where the two did other work, or one was not measured.
    """
    if any(one.experiment.get(field) != other.experiment.get(field) for field in WORK) or _device(one) != _device(
        other
    ):
        return None
    speeds = _speed(one), _speed(other)
    if speeds[0] is None or speeds[1] is None:
        return None
    runs = sorted(((speeds[0], 0, one), (speeds[1], 1, other)), key=lambda run: -run[0])
    (fast, _, winner), (slow, _, loser) = runs
    names = _names(one, other)
    first, second = names[runs[0][1]], names[runs[1][1]]
    ratio = fast / slow
    says = f"{first} is {ratio:.2f} × as fast as {second}"
    if ratio <= 1 + NOISE:
        says = f"{first} and {second} are equally fast within {NOISE:.0%} ({ratio:.2f} ×)"
    return (
        f"{says}: medians {_median(winner)} and {_median(loser)}, {fast:.2f} × and {slow:.2f} × eager beside each. "
        f"{first} {_agrees(winner.numerics)}, {second} {_agrees(loser.numerics)}."
    )


def _speed(report: Report) -> float | None:
    """× eager; None for a run without a measurement, or with wrong results."""
    times = report.stages.benchmark
    if times is None or report.status == "numerics_failed":
        return None
    return times.speedup.get("eager") or times.speedup_compiled.get("eager")


def _median(report: Report) -> str:
    return as_time(report.stages.benchmark.p50_us) if report.stages.benchmark is not None else ""


def _device(report: Report) -> tuple[Any, Any]:
    environment = report.environment
    return _mapping(report.experiment.get("target")).get("name"), environment.cpu if environment else None


def _names(one: Report, other: Report) -> tuple[str, str]:
    modes = tuple(str(_mapping(report.experiment.get("mode")).get("name")) for report in (one, other))
    return (f"mode={modes[0]}", f"mode={modes[1]}") if modes[0] != modes[1] else ("the first run", "the second run")


def _agrees(numerics: Numerics | None) -> str:
    if numerics is None:
        return "was not compared with eager"
    if numerics.bitwise:
        return "equals eager bit for bit"
    if numerics.passed and numerics.max_abs_err is not None:
        return f"agrees with eager (largest difference {numerics.max_abs_err:.1e})"
    return "does not agree with eager"


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
