"""The steps of a graph's replay on the clock: for predictions (`streams.cost=measured`) and beside them (trace.json).

It makes a recording of its own, so that no replay of anybody else's pays for the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import fx

from npucompose.errors import CaptureError
from npucompose.replay.capture import recorder
from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.executor import build
from npucompose.replay.executor.native import Native, Refused
from npucompose.replay.memory.buffers import Memory
from npucompose.replay.plan import Step
from npucompose.replay.threads import Threads, Workers
from npucompose.schema.capabilities import Clocked
from npucompose.schema.streams import StreamTimes, Timeline

ROUNDS, MOST_ROUNDS, LONG_ENOUGH_NS = 5, 200, 100e6
"""So many replays at least and at most, and between them as many as fit into this time."""
SYNCHRONISATIONS = 201

Spans = list[tuple[int, int]]
"""When each step began and ended, in nanoseconds since the replay began."""


class Stopwatch:
    """`Stopwatch(module, inputs, workers)` records; `rounds()` replays. Without `workers` all runs on one thread.

    Raises CaptureError for what the native replayer cannot run, and where there is none.
    """

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], workers: Workers | None = None) -> None:
        self._inputs = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        self._given = list(inputs)
        self.plan = recorder.record(module, self._inputs)
        self.threads = Threads.of(self.plan, workers.count) if workers is not None else None
        self._memory = Memory.of(self.plan, threads=self.threads)
        try:
            self._native = Native(build.load(), self.plan, self._memory, threads=self.threads, workers=workers)
        except (build.Unavailable, Refused) as error:
            raise CaptureError(str(error)) from error
        for index, value in enumerate(self._inputs):
            if isinstance(value, torch.Tensor) and value.numel():
                self._native.move(index, value)
        self._written = [root.index for root in self.plan.roots if root.kind == "input" and root.written]

    def rounds(self) -> list[Spans]:
        """Every replay begins with the inputs as they were given, and with threads that are awake."""
        with torch.random.fork_rng(devices=[]):
            (first,) = self._native.recording.spans(1)
            count = min(MOST_ROUNDS, max(ROUNDS, round(LONG_ENOUGH_NS / max(_makespan(first), 1))))
            return [self._round() for _ in range(count)]

    def _round(self) -> Spans:
        for index in self._written:
            self._inputs[index].copy_(self._given[index])
        return self._native.recording.spans(2)[1]


def _makespan(spans: Spans) -> int:
    return max((end for _, end in spans), default=0)


def clocked(module: fx.GraphModule, inputs: Sequence[Any]) -> Clocked | None:
    """The kernels of a graph as the native replayer runs them; None for a graph that it cannot run."""
    try:
        watch = Stopwatch(module, inputs)
    except CaptureError:
        return None
    alone = _kernel_us(watch.plan.steps, build.load().alone(watch.rounds))
    together = alone if torch.get_num_threads() == 1 else _kernel_us(watch.plan.steps, watch.rounds())
    stream_us, event_us = synchronisation_us()
    return Clocked(kernel_us=alone, together_us=together, stream_us=stream_us, event_us=event_us)


@cache
def synchronisation_us() -> tuple[float, float]:
    """(until the first step of another thread begins, from an event to who waits for it) on threads that are awake."""
    spin_ns = round(Workers().spin_us * 1e3)
    stream_ns, event_ns = build.load().synchronisation_ns(SYNCHRONISATIONS, spin_ns, [])
    return stream_ns / 1e3, event_ns / 1e3


def _kernel_us(steps: Sequence[Step], rounds: Sequence[Spans]) -> dict[str, float]:
    """{FX node: the median of its times}. What a recording adds by itself counts for the kernel before it.

    The clock is looked at between two steps as well as within one: the gap is what it takes.
    """
    gaps = [after[0] - before[1] for spans in rounds for before, after in pairwise(spans)]
    clock_ns = median(gaps) if gaps else 0.0
    found: dict[str, float] = {}
    name = ""
    for number, step in enumerate(steps):
        name = step.name or name
        took = median(spans[number][1] - spans[number][0] for spans in rounds)
        found[name] = found.get(name, 0.0) + max(took - clock_ns, 0.0) / 1e3
    return found


def measured(captured: CapturedGraph, module: fx.GraphModule, inputs: Sequence[Any]) -> StreamTimes | None:
    """How the streams of a recording run; None where they run on one thread, or cannot be timed.

    `inputs` may be made up: they have to lie as the recording's do.
    """
    if captured.threads is None:
        return None
    try:
        watch, row = Stopwatch(module, inputs, captured.workers), Stopwatch(module, inputs)
    except CaptureError:
        return None
    side_by_side, in_a_row = watch.rounds(), row.rounds()
    spans = sorted(side_by_side, key=_makespan)[len(side_by_side) // 2]
    assert watch.threads is not None
    return StreamTimes(
        timeline=_timeline(watch.plan.steps, watch.threads, spans),
        plan_us=_makespan(spans) / 1e3,
        serial_us=median(map(_makespan, in_a_row)) / 1e3,
    )


def _timeline(steps: Sequence[Step], threads: Threads, spans: Spans) -> Timeline:
    names = _names(steps)
    return Timeline(
        source="measured",
        nodes=tuple(names),
        streams=tuple(step.stream for step in steps),
        start_us=tuple(begin / 1e3 for begin, _ in spans),
        end_us=tuple(end / 1e3 for _, end in spans),
        events=tuple((names[first], names[then]) for then, firsts in enumerate(threads.waits) for first in firsts),
    )


def _names(steps: Sequence[Step]) -> list[str]:
    """The FX node of each step; a second step of one node, and what is of no node, carry the operator and a number."""
    names: dict[str, None] = {}
    for number, step in enumerate(steps):
        is_first = step.name and step.name not in names
        names[step.name if is_first else f"{step.name} {step.op} {number}".strip()] = None
    return list(names)
