"""Which of two runs of the same work is faster, by how much, and do both compute what eager computes: one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import quantiles
from typing import Any, cast

from attrs import frozen

from npucompose.report.words import as_time
from npucompose.schema.record import Numerics, Report

WORK = ("model", "shapes", "seed", "compile")
"""Fields of an experiment that say what is computed; runs that differ in one of them do not compete."""
NOISE = 0.05
"""Two runs are two processes: differences up to this share count as none."""


@frozen(kw_only=True)
class Speed:
    """How many times as fast as eager: the median and the quartiles over the rounds of a benchmark."""

    name: str
    report: Report
    low: float
    middle: float
    high: float


def verdict(one: Report, other: Report) -> str | None:
    """`mode=max-autotune is 1.38 × as fast as mode=reduce-overhead: medians 611.0 µs and 842.0 µs, …`.

    The ratio is that of the speed-ups, each measured against eager in its own process, so that a slower hour of the
    machine cancels. None where the two did other work, or one was not measured.
    """
    if any(one.experiment.get(field) != other.experiment.get(field) for field in WORK) or _device(one) != _device(
        other
    ):
        return None
    speeds = [_speed(name, report) for name, report in zip(_names(one, other), (one, other), strict=True)]
    found = sorted((s for s in speeds if s is not None), key=lambda s: -s.middle)
    if len(found) < 2:
        return None
    fast, slow = found
    ratio = fast.middle / slow.middle
    says = f"{fast.name} is {ratio:.2f} × as fast as {slow.name}"
    if ratio <= 1 + NOISE:
        says = f"{fast.name} and {slow.name} are equally fast within {NOISE:.0%} ({ratio:.2f} ×)"
    elif fast.low <= slow.high:
        says = f"{fast.name} and {slow.name} cannot be told apart ({ratio:.2f} ×, and the quartiles overlap)"
    return (
        f"{says}: medians {_median(fast.report)} and {_median(slow.report)}, {fast.middle:.2f} × and "
        f"{slow.middle:.2f} × eager beside each. "
        f"{fast.name} {_agrees(fast.report.numerics)}, {slow.name} {_agrees(slow.report.numerics)}."
    )


def _speed(name: str, report: Report) -> Speed | None:
    """None for a run without a measurement, or with wrong results."""
    times = report.stages.benchmark
    middle = times.speedup.get("eager") if times is not None else None
    if times is None or middle is None or report.status == "numerics_failed":
        return None
    eager = times.baselines["eager"].samples_us if "eager" in times.baselines else ()
    ratios = [e / own for e, own in zip(eager, times.samples_us, strict=False)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
    return Speed(name=name, report=report, low=low, middle=middle, high=high)


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
