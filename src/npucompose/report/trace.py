"""Timelines as a Chrome trace: open trace.json in https://ui.perfetto.dev or chrome://tracing.

The format: "Trace Event Format" (Google). A graph's predicted (or measured) run is a process, a stream a thread, a
kernel a complete slice ("X"), an event a flow arrow ("s" at the recorder, "f" at the waiter), cores and bytes are
counters ("C"). Times are microseconds. Pure: reads schema only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from npucompose.schema.streams import Timeline, Timelines

Entry = dict[str, Any]


def text(timelines: Timelines) -> str:
    """The file's content."""
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": entries(timelines)})


def entries(timelines: Timelines) -> list[Entry]:
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
