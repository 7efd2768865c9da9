"""The picture that a report opens with: eager, one stream and the plan on one scale of time. Values only; no markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from npucompose.report.pictures import (
    LABEL,
    NARROWEST,
    WIDTH,
    Axis,
    Box,
    Drawing,
    arrows,
    lane_kernels,
    lane_spans,
    streams_of,
    time_axis,
)
from npucompose.report.words import as_count, as_time, is_wrong
from npucompose.results.record import BenchmarkFacts, Report
from npucompose.results.streams import Timeline, Timelines
from npucompose.schema.streams import DEFAULT_STREAM

LONGEST = 3.0
"""Times the plan: what takes longer is cut off at the right edge, or the plan would be a line."""
HEIGHT = 42
"""Of a row, so that a name and a time fit below each other on a telephone too."""
AXIS = 24
FEW_EVENTS = 40
"""Arrows that have heads and full colour; more of them would hide the kernels."""
ON_ONE_STREAM = " on one stream"
"""What the source of such a timeline ends in."""


@frozen(kw_only=True)
class TimelineRow:
    """A lane: its name, how long it takes as a whole (in its first lane), and what it is made of."""

    name: str
    us: float | None
    kernels: Timeline | None = None
    stream: str = ""


def overview(report: Report, timelines: Timelines) -> Drawing | None:
    """None where results are wrong, or nothing was timed or predicted.

    Rows are whole calls (medians, with all that surrounds kernels) and below them kernels: those of the graph that
    takes longest, on one stream and as planned, as measured where that was done, else as predicted.
    """
    if is_wrong(report):
        return None
    calls = _calls(report.stages.benchmark)
    graph, plan, alone = _heaviest(timelines)
    kernels = [*_alone(report, alone, len({name for name, _ in timelines})), *_lanes(plan)] if plan is not None else []
    rows = [*calls, *kernels]
    if not rows:
        return None
    longest = max(row.us or 0.0 for row in rows)
    high = min(longest, LONGEST * max(plan.end_us)) if plan is not None else longest
    scale = Axis(low=0.0, high=high)
    return {
        "rows": [_drawn(number, row, scale) for number, row in enumerate(rows)],
        "arrows": list(arrows(plan, _heights(plan, len(rows)), scale)) if plan is not None else [],
        "crowded": plan is not None and len(plan.events) > FEW_EVENTS,
        "words": _words(calls, graph, plan, report),
        "axis": time_axis(scale, HEIGHT * len(rows) + AXIS),
    }


def _words(calls: Sequence[TimelineRow], graph: str, plan: Timeline | None, report: Report) -> str:
    parts = ["whole calls (medians)"] if calls else []
    if plan is not None:
        events = f"; {as_count(len(plan.events), 'event')} as arrows, waits as thin bars" if plan.events else ""
        device = report.streams.device if report.streams is not None and plan.source == "predicted" else None
        source = f"{plan.source} for {device}" if device else plan.source
        parts.append(f"the kernels of {graph}, {source}, by stream{events}")
    return " and ".join(parts)


def _calls(times: BenchmarkFacts | None) -> list[TimelineRow]:
    if times is None:
        return []
    found = {**{name: one.p50_us for name, one in times.baselines.items()}, times.candidate: times.p50_us}
    return [TimelineRow(name=name, us=found[name]) for name in ("eager", "compiled", "replay") if name in found]


def _heaviest(timelines: Timelines) -> tuple[str, Timeline | None, Timeline | None]:
    """(graph, its plan, the same kernels on one stream) of the graph whose plan takes longest; measured before
    predicted."""
    found: dict[str, dict[str, Timeline]] = {}
    for name, line in timelines:
        if line.nodes:
            found.setdefault(name, {})[line.source] = line
    plans = {name: lines.get("measured") or lines.get("predicted") for name, lines in found.items()}
    best = max((name for name, plan in plans.items() if plan), key=lambda name: _end(plans[name]), default=None)
    if best is None:
        return "", None, None
    plan = plans[best]
    alone = found[best].get(plan.source + ON_ONE_STREAM) if plan is not None else None
    return best, plan, alone


def _end(line: Timeline | None) -> float:
    return max(line.end_us) if line is not None else 0.0


def _alone(report: Report, alone: Timeline | None, graphs: int) -> Iterator[TimelineRow]:
    """Kernel by kernel; as one predicted figure where a run left no more than that, and has one graph."""
    if alone is not None:
        yield TimelineRow(name="one stream", us=_end(alone), kernels=alone, stream=DEFAULT_STREAM)
    elif report.streams is not None and report.streams.serial_us is not None and graphs == 1:
        yield TimelineRow(name="one stream", us=report.streams.serial_us)


def _lanes(plan: Timeline) -> Iterator[TimelineRow]:
    for number, stream in enumerate(streams_of(plan)):
        name = "plan" if number == 0 else stream
        yield TimelineRow(name=name, us=None if number else _end(plan), kernels=plan, stream=stream)


def _heights(plan: Timeline, rows: int) -> dict[str, float]:
    """{stream: the middle of its row}; the lanes of the plan are the last rows."""
    streams = streams_of(plan)
    first = rows - len(streams)
    return {stream: (first + lane + 0.5) * HEIGHT for lane, stream in enumerate(streams)}


def _drawn(number: int, row: TimelineRow, scale: Axis) -> Drawing:
    top, boxes, waits = number * HEIGHT, [], []
    if row.kernels is None:
        assert row.us is not None
        boxes = [_box(top, 0.0, row.us, scale, "call", f"{row.name}: {as_time(row.us)}")]
    else:
        boxes, waits = list(_kernels(row, top, scale)), list(_waits(row, top, scale))
    return {
        "name": row.name,
        "time": as_time(row.us) if row.us is not None else "",
        "top": top,
        "boxes": boxes,
        "waits": waits,
        "cut": row.us is not None and row.us > scale.high,
    }


def _box(top: float, start: float, end: float, scale: Axis, kind: str, words: str) -> Box:
    left = scale.x(min(start, scale.high))
    width = max(scale.x(min(end, scale.high)) - left, NARROWEST)
    return left, top + 6, width, HEIGHT - 12, kind, words


def _kernels(row: TimelineRow, top: float, scale: Axis) -> Iterator[Box]:
    assert row.kernels is not None
    colour = f"kernel c{streams_of(row.kernels).index(row.stream) % 6}"
    for name, start, end in lane_spans(row.kernels, row.stream, scale):
        if start <= scale.high:
            words = f"{name}: {as_time(end - start)}, from {as_time(start)} to {as_time(end)}"
            yield _box(top, start, end, scale, colour, words)


def _waits(row: TimelineRow, top: float, scale: Axis) -> Iterator[Box]:
    """From the end of the kernel before, or the beginning, until a kernel that waits for an event starts; a pixel
    and more."""
    assert row.kernels is not None
    awaited: Mapping[str, list[str]] = {waiter: [] for _, waiter in row.kernels.events}
    for recorder, waiter in row.kernels.events:
        awaited[waiter].append(recorder)
    pixel, free = scale.high / (WIDTH - LABEL), 0.0
    for node, start, end in lane_kernels(row.kernels, row.stream):
        if node in awaited and start - free > pixel and free < scale.high:
            left, _, width, *_ = _box(top, free, start, scale, "", "")
            words = f"{node} waits for {', '.join(awaited[node])}: {as_time(start - free)}"
            yield left, top + HEIGHT / 2 - 3, width, 6, "wait", words
        free = max(free, end)
