"""The steps of a replay on the clock: for predictions (`streams.cost=measured`) and beside them (trace.json).

It makes a recording of its own, so that no replay of anybody else's pays for the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import fx

from npucompose.errors import CaptureError
from npucompose.results.streams import StreamTimes, Timeline
from npucompose.schema.capabilities import Clocked
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose_replay.capture import recorder
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.memory.arena import Memory
from npucompose_replay.plan import (
    Step,
    Threads,
    UnsupportedStep,
    Workers,
)

ROUNDS, MOST_ROUNDS, LONG_ENOUGH_NS = 11, 200, 100e6
"""So many replays at least and at most, and between them as many as fit into this time."""
FEWEST_ROUNDS, TOO_LONG_NS = 5, 1.5e9
"""So many do where the rounds together take longer than this: stalls on a busy machine."""
LOW, MIDDLE = 0.1, 0.5
"""Quantiles. On a machine that has other work to do most replays may stall; the others show what a kernel takes."""
SYNCHRONISATIONS = 201
Spans = list[tuple[int, int]]
"""When each step began and ended, in nanoseconds since the replay began."""


class Stopwatch:
    """`Stopwatch(module, inputs, workers)` records; `round()` replays. Without `workers` all runs on one thread.

    Raises CaptureError for what the native replayer cannot run, and where there is none.
    """

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], workers: Workers | None = None) -> None:
        self._inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        self._given = list(inputs)
        self.plan = recorder.record(module, self._inputs)
        self.threads = Threads.from_plan(self.plan, workers.count) if workers is not None else None
        self._memory = Memory.from_plan(self.plan, threads=self.threads)
        try:
            self._native = Native(build.load(), self.plan, self._memory, threads=self.threads, workers=workers)
        except (build.Unavailable, UnsupportedStep) as error:
            raise CaptureError(str(error)) from error
        for index, value in enumerate(self._inputs):
            if isinstance(value, torch.Tensor) and value.numel():
                self._native.move(index, value)
        self._written = [root.index for root in self.plan.roots if root.kind == "input" and root.written]

    def once(self) -> Spans:
        """A replay of what the inputs hold now."""
        return self._native.recording.spans(1)[0]

    def round(self) -> Spans:
        """A replay that begins with the inputs as they were given, and with threads that are awake."""
        for index in self._written:
            self._inputs[index].copy_(self._given[index])
        return self._native.recording.spans(2)[1]


def _makespan(spans: Spans) -> int:
    return max((end for _, end in spans), default=0)


def in_turn(*ways: Callable[[], Spans]) -> list[list[Spans]]:
    """Rounds of each way, taken in turn, so that other work on the machine meets them alike."""
    with torch.random.fork_rng(devices=[]):
        longest = max(_makespan(way()) for way in ways)
        count = min(MOST_ROUNDS, max(ROUNDS, round(LONG_ENOUGH_NS / max(longest, 1))))
        begun, turns = perf_counter_ns(), []
        while len(turns) < count and (len(turns) < FEWEST_ROUNDS or perf_counter_ns() - begun < TOO_LONG_NS):
            turns.append([way() for way in ways])
    return [list(rounds) for rounds in zip(*turns, strict=True)]


@frozen(kw_only=True)
class ClockedTwice:
    """The low quantiles of the kernels' times, which are what work takes, and the middle ones."""

    low: Clocked
    middle: Clocked


def clocked(module: fx.GraphModule, inputs: Sequence[Any]) -> Clocked | None:
    """The kernels of a graph as the native replayer runs them; None for a graph that it cannot run."""
    try:
        return clocked_twice(module, inputs).low
    except CaptureError:
        return None


def clocked_twice(module: fx.GraphModule, inputs: Sequence[Any]) -> ClockedTwice:
    """The same with the middle quantiles; CaptureError for a graph that the native replayer cannot run."""
    watch = Stopwatch(module, inputs)
    ways = [partial(build.load().alone, watch.round), watch.round]
    seen = in_turn(*ways[: min(2, torch.get_num_threads())])
    low = [_kernel_us(watch.plan.steps, rounds, LOW) for rounds in seen]
    middle = [_kernel_us(watch.plan.steps, rounds, MIDDLE) for rounds in seen]
    spread = max(_spread(*both) for both in zip(low, middle, strict=True))
    stream_us, event_us = synchronisation_us()
    found = (
        Clocked(kernel_us=us[0], together_us=us[-1], stream_us=stream_us, event_us=event_us, spread=spread)
        for us in (low, middle)
    )
    return ClockedTwice(low=next(found), middle=next(found))


def _spread(low: Mapping[str, float], middle: Mapping[str, float]) -> float:
    total = sum(low.values())
    return sum(middle.values()) / total - 1 if total else 0.0


@cache
def synchronisation_us() -> tuple[float, float]:
    """(until the first step of another thread begins, from an event to who waits for it) on threads that are awake.

    The lowest tenth of the rounds: other processes on the same cores disturb it least. 0 where no round was
    completed.
    """
    spin_ns = round(Workers().spin_us * 1e3)
    starts_ns, events_ns = build.load().synchronisation_ns(SYNCHRONISATIONS, spin_ns, [])
    return _lowest_tenth(starts_ns) / 1e3, _lowest_tenth(events_ns) / 1e3


def _lowest_tenth(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 10] if times else 0.0


def _kernel_us(steps: Sequence[Step], rounds: Sequence[Spans], share: float) -> dict[str, float]:
    """{FX node: that quantile of its times}. What a recording adds by itself counts for the kernel before it.

    The clock is looked at between two steps as well as within one: the gap is what it takes.
    """
    gaps = [after[0] - before[1] for spans in rounds for before, after in pairwise(spans)]
    clock_ns = median(gaps) if gaps else 0.0
    found: dict[str, float] = {}
    name = ""
    for number, step in enumerate(steps):
        name = step.name or name
        times = sorted(spans[number][1] - spans[number][0] for spans in rounds)
        took = times[int((len(times) - 1) * share)]
        found[name] = found.get(name, 0.0) + max(took - clock_ns, 0.0) / 1e3
    return found


class OnThreads(Protocol):
    """A recording whose streams may run on several threads."""

    threads: Threads | None
    workers: Workers
    executor: Any
    """What replays it: a Native, or Python."""


def kernel_clock(captured: OnThreads, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[], Timeline] | None:
    """A call that replays the kernels of a recording once, as its replays run them but on memory of its own, and says
    when each of them ran; None where Python replays. `inputs` as for `measured`.
    """
    if not isinstance(captured.executor, Native):
        return None
    try:
        watch = Stopwatch(module, inputs, captured.workers if captured.threads is not None else None)
    except CaptureError:
        return None
    return lambda: _timeline(watch.plan.steps, watch.threads, watch.once())


def measured(captured: OnThreads, module: fx.GraphModule, inputs: Sequence[Any]) -> StreamTimes | None:
    """How the streams of a recording run; None where they run on one thread, or cannot be timed.

    `inputs` may be made up: they have to lie as the recording's do.
    """
    if captured.threads is None:
        return None
    try:
        watch, row = Stopwatch(module, inputs, captured.workers), Stopwatch(module, inputs)
    except CaptureError:
        return None
    side_by_side, in_a_row = in_turn(watch.round, row.round)
    spans, alone = (sorted(rounds, key=_makespan)[len(rounds) // 2] for rounds in (side_by_side, in_a_row))
    assert watch.threads is not None
    return StreamTimes(
        timeline=_timeline(watch.plan.steps, watch.threads, spans),
        plan_us=_makespan(spans) / 1e3,
        serial_us=median(map(_makespan, in_a_row)) / 1e3,
        one_stream=_timeline(row.plan.steps, None, alone),
    )


def _timeline(steps: Sequence[Step], threads: Threads | None, spans: Spans) -> Timeline:
    """Without threads the steps ran on one, whatever stream they are planned for."""
    names, waits = _names(steps), threads.waits if threads is not None else ()
    return Timeline(
        source="measured" if threads is not None else "measured on one stream",
        nodes=tuple(names),
        streams=tuple(step.stream if threads is not None else DEFAULT_STREAM for step in steps),
        start_us=tuple(begin / 1e3 for begin, _ in spans),
        end_us=tuple(end / 1e3 for _, end in spans),
        events=tuple((names[first], names[then]) for then, firsts in enumerate(waits) for first in firsts),
    )


def _names(steps: Sequence[Step]) -> list[str]:
    """The FX node of each step; a second step of one node, and what is of no node, carry the operator and a number."""
    names: dict[str, None] = {}
    for number, step in enumerate(steps):
        is_first = step.name and step.name not in names
        names[step.name if is_first else f"{step.name} {step.op} {number}".strip()] = None
    return list(names)
