"""One run as one row of a table: its choices and the few figures by which runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from attrs import fields, frozen

from npucompose.results.record import Report


@frozen(kw_only=True)
class Figures:
    """Read from a report; a figure is None where it was not measured, or where results were wrong."""

    model: str | None = None
    target: str | None = None
    mode: str | None = None
    shapes: str | None = None
    passes: str | None = None
    streams: str | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    speedup: float | None = None
    compile_s: float | None = None
    pool_bytes: int | None = None
    peak_rss_bytes: int | None = None

    @staticmethod
    def of(report: Report) -> Figures:
        experiment, stages, memory = report.experiment, report.stages, report.memory
        times = stages.benchmark if report.status != "numerics_failed" else None
        return Figures(
            model=choice_name(experiment, "model"),
            target=choice_name(experiment, "target"),
            mode=choice_name(experiment, "mode"),
            shapes=choice_name(experiment, "shapes"),
            passes=",".join(_mapping(experiment.get("passes"))),
            streams=choice_name(experiment, "streams") if report.streams is not None else None,
            p50_us=times.p50_us if times else None,
            p99_us=times.p99_us if times else None,
            speedup=times.speedup.get("eager") if times else None,
            compile_s=stages.compile.total_s if stages.compile else None,
            pool_bytes=memory.pool_bytes if memory else None,
            peak_rss_bytes=memory.peak_rss_bytes if memory else None,
        )


CHOICES: tuple[str, ...] = ("model", "target", "mode", "shapes", "passes", "streams")

MEASURED: tuple[str, ...] = tuple(f.name for f in fields(Figures) if f.name not in CHOICES)


def figure_stage(figure: str) -> str:
    """The stage without which there is no such figure."""
    return {"compile_s": "compile", "pool_bytes": "capture"}.get(figure, "benchmark")


def choice_name(experiment: Mapping[str, Any], group: str) -> str | None:
    """Of what an experiment has of a group of conf/."""
    name = _mapping(experiment.get(group)).get("name")
    return name if isinstance(name, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
