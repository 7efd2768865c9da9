"""A report in the words of trackers: parameters, metrics, series of samples, tags, files. Knows no tracker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
from attrs import frozen

from npucompose.report.differences import written
from npucompose.schema.figures import MEASURED, Figures
from npucompose.schema.flat import flat
from npucompose.schema.record import Report, Timing

FILES = ("report.html", "report.json", "trace.json", "recipe.lock.yaml")
"""Of a run directory, where they are there."""


@frozen(kw_only=True)
class Tracked:
    key: str
    name: str
    """The run directory's, with what it ran."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """Figures in the units that their names say; summaries of samples as `latency.eager.p50_us`."""
    samples: Mapping[str, tuple[float, ...]]
    """{candidate: microseconds, in the order measured}."""
    tags: Mapping[str, str]
    files: tuple[Path, ...]

    @staticmethod
    def of(report: Report, folder: Path) -> Tracked:
        """Wrong results have no speed here either."""
        figures = Figures.of(report)
        timings = _timings(report) if figures.p50_us is not None else {}
        choices = (figures.model, figures.target, figures.mode)
        return Tracked(
            key=report.key,
            name=f"{folder.parent.name}/{folder.name} {' '.join(c for c in choices if c)}",
            params={name: written(value) for name, value in flat(report.experiment).items()},
            metrics={**_figures(figures), **dict(_summaries(timings)), **dict(_facts(report))},
            samples={name: timing.samples_us for name, timing in timings.items()},
            tags=dict(_tags(report)),
            files=tuple(path for name in FILES if (path := folder / name).is_file()),
        )


def _timings(report: Report) -> dict[str, Timing]:
    times = report.stages.benchmark
    return {} if times is None else {times.candidate: times, **times.baselines}


def _figures(figures: Figures) -> dict[str, float]:
    found = {name: getattr(figures, name) for name in MEASURED}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _summaries(timings: Mapping[str, Timing]) -> Iterator[tuple[str, float]]:
    for name, timing in timings.items():
        for figure in ("p50_us", "p90_us", "p99_us", "mean_us"):
            yield f"latency.{name}.{figure}", getattr(timing, figure)
        yield f"latency.{name}.min_us", min(timing.samples_us)
        yield f"latency.{name}.max_us", max(timing.samples_us)
        yield f"latency.{name}.samples", float(len(timing.samples_us))


def _facts(report: Report) -> Iterator[tuple[str, float]]:
    if report.numerics is not None and report.numerics.max_abs_err is not None:
        yield "numerics.max_abs_err", report.numerics.max_abs_err
    for record in report.records:
        yield f"stages.{record.stage}_s", record.seconds
    if report.stages.compile is not None:
        for name, seconds in attrs.asdict(report.stages.compile).items():
            if seconds is not None:
                yield f"compile.{name}", seconds


def _tags(report: Report) -> Iterator[tuple[str, str]]:
    yield "npucompose.key", report.key
    yield "npucompose.status", report.status
    if report.error:
        yield "npucompose.error", report.error
    if report.environment is not None:
        yield "npucompose.platform", report.environment.platform
        yield from ((f"npucompose.version.{name}", v) for name, v in report.environment.versions.items())
        if report.environment.git_commit:
            yield "npucompose.git_commit", report.environment.git_commit
