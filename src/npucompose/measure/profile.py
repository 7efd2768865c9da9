"""Windows of calls under a profiler, each written as a Chrome trace. Knows no device: the target says what watches.

# Note [Kernels that no dispatcher starts]
The native replayer calls most kernels itself, so that torch.profiler sees a replay and nothing in it. Behind each
profiled call the same kernels therefore run once more on memory of their own with a clock between them; the trace shows
these as rows of their own, at the time when they ran. Nothing is drawn into the call itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npucompose.results.streams import Timeline
from npucompose.schema.experiment import Profile

if TYPE_CHECKING:
    from npucompose.targets.base import Profiler

Clocks = Mapping[str, Callable[[], Timeline]]
Entry = dict[str, Any]
FIRST_ROW = 1_000_000
"""Number of the first row of kernels; above every thread's."""


def profiled(
    call: Callable[[], Any],
    name: str,
    windows: Profile,
    profiler: Profiler,
    folder: Path,
    *,
    clocks: Clocks,
    between: Callable[[], None] | None = None,
) -> tuple[str, ...]:
    """The traces that were written into `folder`, one for each window: `replay_0.json`.

    A call is the range `name` of a trace, a run of `clocks` behind it the range `GRAPH kernels`. `between` is done
    before each call, outside of both.
    """
    from torch.profiler import record_function

    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    seen: dict[str, list[Timeline]] = {graph: [] for graph in clocks}

    def ready(running: Any) -> None:
        file = folder / f"{name}_{len(files)}.json"
        running.export_chrome_trace(str(file))
        _add_kernels(file, seen)
        files.append(file.name)

    module, one_window = profiler.module, windows.wait + windows.warmup + windows.active
    with module.profile(
        activities=[getattr(module.ProfilerActivity, activity) for activity in profiler.activities],
        schedule=module.schedule(
            wait=windows.wait, warmup=windows.warmup, active=windows.active, repeat=windows.repeat
        ),
        on_trace_ready=ready,
    ) as running:
        for _ in range(one_window * windows.repeat):
            if between is not None:
                between()
            with record_function(name):
                call()
            for graph, clock in clocks.items():
                with record_function(_range(graph)):
                    seen[graph].append(clock())
            running.step()
    return tuple(files)


def _range(graph: str) -> str:
    return f"{graph} kernels"


def _add_kernels(file: Path, seen: Mapping[str, list[Timeline]]) -> None:
    """Into the trace of a window, the last runs of each graph: as many as it has ranges for them."""
    if not seen:
        return
    trace: Any = json.loads(file.read_text())
    events: list[Entry] = trace["traceEvents"]
    ranges = {graph: _begun(events, _range(graph)) for graph in seen}
    row = FIRST_ROW
    for graph, lines in seen.items():
        recorded = lines[len(lines) - len(ranges[graph]) :]
        streams = list(dict.fromkeys(stream for line in recorded for stream in line.streams))
        rows = {stream: row + number for number, stream in enumerate(streams)}
        row += len(rows)
        for begun, line in zip(ranges[graph], recorded, strict=True):
            events += _kernels(begun, line, rows)
        events += [
            {"ph": "M", "name": "thread_name", "pid": begun["pid"], "tid": at, "args": {"name": f"{graph}, {stream}"}}
            for begun in ranges[graph][:1]
            for stream, at in rows.items()
        ]
    file.write_text(json.dumps(trace))


def _begun(events: list[Entry], name: str) -> list[Entry]:
    found = [e for e in events if e.get("name") == name and e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    return sorted(found, key=lambda one: one["ts"])


def _kernels(begun: Entry, line: Timeline, rows: Mapping[str, int]) -> Iterator[Entry]:
    for node, stream, start, end in zip(line.nodes, line.streams, line.start_us, line.end_us, strict=True):
        yield {
            "ph": "X", "cat": "kernel", "name": node, "pid": begun["pid"], "tid": rows[stream],
            "ts": begun["ts"] + start, "dur": end - start, "args": {"stream": stream},
        }  # fmt: skip
