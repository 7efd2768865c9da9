"""Samples of several candidates, interleaved in one process; windows of calls under a profiler, each written as a
Chrome trace. Knows no device: the caller says how to synchronize, the target what watches.

Interleaving, because two runs one after the other differ by clock, temperature and neighbours more than by the thing
that is measured; each round calls every candidate once, so the n-th samples of two candidates are a pair.

# Note [Kernels that no dispatcher starts]
The native replayer calls most kernels itself, so that torch.profiler sees a replay and nothing in it. Behind each
profiled call the same kernels therefore run once more on memory of their own with a clock between them; the trace shows
these as rows of their own, at the time when they ran. Nothing is drawn into the call itself.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, frozen, validators

from npucompose.results.measured import TimeSamples
from npucompose.results.streams import Timeline
from npucompose.schema.experiment import Profile

if TYPE_CHECKING:
    from npucompose.targets.base import Profiler


Progress = Callable[[float], None]

PROGRESS_EVERY_NS = 100_000_000
COLLECT_EVERY_ROUNDS = 256


def _microseconds(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


@frozen(kw_only=True)
class Samples:
    """Microseconds of each counted call, in the order measured.

    `Samples(us=(1, 2, 3, 4)).p50` is 2.5: percentiles interpolate linearly between the two nearest samples.
    """

    us: tuple[float, ...] = field(converter=_microseconds, validator=validators.min_len(1))

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.us)
        at = (len(ordered) - 1) * percent / 100
        low, high = math.floor(at), math.ceil(at)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    @property
    def p50(self) -> float:
        return self.percentile(50)

    @property
    def p90(self) -> float:
        return self.percentile(90)

    @property
    def p99(self) -> float:
        return self.percentile(99)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.us)

    def timing(self) -> TimeSamples:
        return TimeSamples(samples_us=self.us, p50_us=self.p50, p90_us=self.p90, p99_us=self.p99, mean_us=self.mean)


def paired_ratio(slow: Samples, fast: Samples) -> float:
    """The median of slow[i] / fast[i], the samples of one round each: 2.0 says that `fast` takes half the time.

    A disturbance that lasts longer than a round hits both numbers of a pair and leaves the ratio alone, where the
    ratio of two medians would move.
    """
    return paired(slow, fast).p50


def paired(slow: Samples, fast: Samples) -> Samples:
    """slow[i] / fast[i] of every round: numbers, not microseconds, with their percentiles."""
    if len(slow.us) != len(fast.us):
        raise ValueError(f"not from the same rounds: {len(slow.us)} and {len(fast.us)} samples")
    return Samples(us=tuple(map(truediv, slow.us, fast.us)))


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    warmup: int,
    min_calls: int,
    min_seconds: float,
    max_calls: int,
    uncounted: int = 0,
    synchronize: Callable[[], None] | None = None,
    between: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> Mapping[str, Samples]:
    """Time the candidates in turns: {"eager": f, "replay": g} gives as many samples of f as of g.

    Measures until each candidate has `min_calls` counted calls and all of them together took `min_seconds`, but never
    more than `max_calls` calls of each, which wins over both. Before each counted call the same candidate is called
    `uncounted` times, so that it finds the caches as it left them itself and not as another did. A sample ends when
    `synchronize` returns; what a call returns is freed after the clock has stopped. `between` is done before each call,
    off the clock. Reading the clock adds about 0.1 µs to each sample.
    """
    if not candidates:
        raise ValueError("nothing to measure")
    if max_calls < 1:
        raise ValueError(f"max_calls must be at least 1: {max_calls}")
    names = tuple(candidates)
    taken: dict[str, list[int]] = {name: [] for name in names}
    for number in range(warmup):
        for name in _order(names, number):
            _time_one(candidates[name], synchronize, between)
    spent = reported = 0
    with _collector_paused() as collect:
        for number in range(max_calls):
            if number >= min_calls and spent >= min_seconds * 1e9:
                break
            for name in _order(names, number):
                for _ in range(uncounted):
                    _time_one(candidates[name], synchronize, between)
                nanoseconds = _time_one(candidates[name], synchronize, between)
                taken[name].append(nanoseconds)
                spent += nanoseconds
            if number % COLLECT_EVERY_ROUNDS == COLLECT_EVERY_ROUNDS - 1:
                collect()
            if progress is not None and spent - reported >= PROGRESS_EVERY_NS:
                reported = spent
                progress(_fraction(number + 1, spent, min_calls, min_seconds, max_calls))
    if progress is not None:
        progress(1.0)
    return {name: Samples(us=[nanoseconds / 1e3 for nanoseconds in values]) for name, values in taken.items()}


def _time_one(
    call: Callable[[], Any], synchronize: Callable[[], None] | None, between: Callable[[], None] | None
) -> int:
    """Nanoseconds of one call. Its result dies here, after the clock has stopped."""
    if between is not None:
        between()
    now = time.perf_counter_ns
    if synchronize is None:
        start = now()
        result = call()
        taken = now() - start
    else:
        synchronize()
        start = now()
        result = call()
        synchronize()
        taken = now() - start
    del result
    return taken


def _order(names: tuple[str, ...], number: int) -> tuple[str, ...]:
    """The turn of a round: rotated, and every second lap reversed, so that nobody has the same predecessor for ever."""
    lap, shift = divmod(number, len(names))
    rotated = names[shift:] + names[:shift]
    return rotated[::-1] if lap % 2 else rotated


def _fraction(calls: int, spent_ns: int, min_calls: int, min_seconds: float, max_calls: int) -> float:
    by_calls = calls / min_calls if min_calls else math.inf
    by_time = spent_ns / (min_seconds * 1e9) if min_seconds else math.inf
    return min(1.0, max(min(by_calls, by_time), calls / max_calls))


@contextmanager
def _collector_paused() -> Iterator[Callable[[], Any]]:
    """No automatic collection inside; yields a call that collects what was made since (cheap: the youngest only).

    A full collection with torch loaded takes tens of milliseconds and would land in whichever sample is running.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield lambda: gc.collect(0)
    finally:
        if was_enabled:
            gc.enable()


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
