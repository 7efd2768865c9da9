"""A run as data: report.json on disk, timelines as a Chrome trace, a report as trackers take it.

The trace: open trace.json in https://ui.perfetto.dev or chrome://tracing. The format: "Trace Event Format" (Google). A
graph's predicted (or measured) run is a process, a stream a thread, a kernel a complete slice ("X"), an event a flow
arrow ("s" at the recorder, "f" at the waiter), cores and bytes are counters ("C"). Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
from attrs import frozen

from airflow_free.store import write_atomically
from npucompose.errors import ConfigError
from npucompose.input_safety import read_text
from npucompose.report.words import written
from npucompose.results.measured import TimeSamples
from npucompose.results.record import MEASURED, Figures, Report
from npucompose.results.streams import Timeline, Timelines
from npucompose.table.structure import flat

FILE_NAME = "report.json"
MOST_BYTES = 100_000_000
"""Read of a file that may be untrusted."""
Entry = dict[str, Any]


def write(report: Report, folder: Path) -> Path:
    """Put report.json in the folder, whole or not at all, and return its path."""
    path = folder / FILE_NAME
    text = json.dumps(report.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text + "\n")
    return path


def load(place: Path) -> Report:
    """The report in a file, or in a run directory; ConfigError says what is wrong with it."""
    path = place / FILE_NAME if place.is_dir() else place
    try:
        if not path.exists():
            raise ConfigError(f"there is no {FILE_NAME} at {place}; give a run directory or the file itself.")
        data: Any = json.loads(read_text(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a report: {error}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a report: a mapping is wanted, not a {type(data).__name__}.")
    try:
        return Report.from_dict(cast("dict[str, Any]", data))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from error


def trace_text(timelines: Timelines) -> str:
    """The content of trace.json."""
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": trace_entries(timelines)})


def trace_entries(timelines: Timelines) -> list[Entry]:
    """Names first, then everything in the order of time."""
    names: list[Entry] = []
    found: list[Entry] = []
    flow = 0
    for process, (name, line) in enumerate(timelines, start=1):
        threads = {stream: number for number, stream in enumerate(dict.fromkeys(line.streams), start=1)}
        names += _names(process, f"{name} ({line.source})", threads)
        found += _slices(process, threads, line)
        found += _flows(process, threads, line, flow)
        found += _counters(process, line)
        flow += len(line.events)
    return [*names, *sorted(found, key=lambda entry: entry["ts"])]


def _names(process: int, title: str, threads: Mapping[str, int]) -> Iterator[Entry]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    for stream, thread in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": stream}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}


def _slices(process: int, threads: Mapping[str, int], line: Timeline) -> Iterator[Entry]:
    for node, stream, start, end in zip(line.nodes, line.streams, line.start_us, line.end_us, strict=True):
        yield {
            "ph": "X", "name": node, "cat": "kernel", "pid": process, "tid": threads[stream], "ts": start,
            "dur": end - start,
        }  # fmt: skip


def _flows(process: int, threads: Mapping[str, int], line: Timeline, first: int) -> Iterator[Entry]:
    """An arrow leaves from inside the recorder's slice and lands on the beginning of the waiter's."""
    at = {node: number for number, node in enumerate(line.nodes)}
    for number, (recorder, waiter) in enumerate(line.events, start=first):
        begin, end = at[recorder], at[waiter]
        common = {"name": "event", "cat": "event", "id": number, "pid": process}
        middle = (line.start_us[begin] + line.end_us[begin]) / 2
        yield {"ph": "s", **common, "tid": threads[line.streams[begin]], "ts": middle}
        yield {"ph": "f", "bp": "e", **common, "tid": threads[line.streams[end]], "ts": line.start_us[end]}


def _counters(process: int, line: Timeline) -> Iterator[Entry]:
    for name, values in line.counters.items():
        for time, value in values:
            yield {"ph": "C", "name": name, "pid": process, "ts": time, "args": {name: value}}


PAGE = "report.html"
FILES = (PAGE, "report.json", "trace.json", "recipe.lock.yaml")
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
    def from_report(report: Report, folder: Path) -> Tracked:
        """Wrong results have no speed here either."""
        figures = Figures.from_report(report)
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


def _timings(report: Report) -> dict[str, TimeSamples]:
    times = report.stages.benchmark
    return {} if times is None else {times.candidate: times, **times.baselines}


def _figures(figures: Figures) -> dict[str, float]:
    found = {name: getattr(figures, name) for name in MEASURED}
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _summaries(timings: Mapping[str, TimeSamples]) -> Iterator[tuple[str, float]]:
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
