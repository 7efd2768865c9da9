"""Replays on the clock: which is faster here, a plan's streams or one stream, and how long each step takes.

# Note [The trial of a plan]
Both are run in turns when a graph is captured. Nobody notices: what lies between the kernels is scratch memory, outputs
are the trial's own, inputs that the graph writes are copies of what they were before the captured call, taken back
before every turn. So both ways compute what the captured call computed, and must give the same bits. A graph that draws
random numbers, has effects, or calls operators that are not torch's own is not run for a trial: there the prediction
decides.

# Note [The stopwatch]
The steps of a replay on the clock: for predictions (`streams.cost=measured`) and beside them (trace.json).
It makes a recording of its own, so that no replay of anybody else's pays for the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import attrs
import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.errors import CaptureError
from npucompose.graphs import Aliases
from npucompose.graphs.effects import facts
from npucompose.replay.capture import recorder
from npucompose.replay.executor import build
from npucompose.replay.executor.native import Native, Refused
from npucompose.replay.executor.portable import StraightLine, TorchScript
from npucompose.replay.memory.arena import Memory
from npucompose.replay.operands import copy_of, same_bytes, traits_of
from npucompose.replay.plan import Buffer, Plan, Step, Threads, Workers
from npucompose.results.streams import StreamTimes, Timeline, Trial, Verdict
from npucompose.schema.capabilities import Clocked
from npucompose.streams import decision_of

LEAST_TURNS, MOST_TURNS = 5, 200
"""Fewer turns say nothing; more of them say nothing new."""
COPIED_BYTES = 64 << 20
"""Of inputs that a graph writes, at most so much is copied for a trial."""
LONG_NS = 2e6
"""Before a replay that is shorter, another one wakes the threads and warms the caches, as the call before it would."""
NOTHING_BESIDE = "no recorded kernel is left on a second stream"
TOGETHER = "another recording of this graph was tried"


@frozen(kw_only=True, eq=False)
class Way:
    """How a plan is run: by whom, in which memory, on which threads."""

    threads: Threads | None
    why_threads: str
    """Why streams that were asked for run one after the other."""
    memory: Memory
    executor: Native | TorchScript | StraightLine
    why_executor: str


@define(eq=False)
class PlanTrial:
    """Of one compiled graph: its first recording is tried, later ones follow it, so that its shapes cost one trial."""

    asked: Trial
    _tried: Verdict | None = field(default=None, init=False)

    @classmethod
    def of(cls, graph_module: fx.GraphModule) -> PlanTrial | None:
        """None where no plan stands in the graph whose worth the capture is to find out."""
        decision = decision_of(graph_module)
        return cls(decision.trial) if decision is not None and decision.trial is not None else None

    def before(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Mapping[int, torch.Tensor]:
        """Copies of the inputs that the graph writes, by index, as they are before the call that is captured; {} for
        those that take too much memory, and where nothing will be tried."""
        if self._tried is not None:
            return {}
        aliases = Aliases.from_graph(graph_module.graph)
        nodes = graph_module.graph.find_nodes(op="placeholder")
        written = {
            i: value
            for i, (node, value) in enumerate(zip(nodes, inputs, strict=True))
            if isinstance(value, torch.Tensor) and not aliases.keys[node].isdisjoint(aliases.written)
        }
        if sum(value.untyped_storage().nbytes() for value in written.values()) > COPIED_BYTES:
            return {}
        return {i: copy_of(value) for i, value in written.items()}

    def judged(
        self,
        plan: Plan,
        streams: Way,
        one_stream: Callable[[], Way],
        *,
        before: Mapping[int, torch.Tensor],
        overlapping: frozenset[int],
        turns: AbstractContextManager[Any],
    ) -> tuple[Way, Verdict]:
        """The way to keep, and what was found; `overlapping` are inputs that share memory with others."""
        if streams.threads is None or not isinstance(streams.executor, Native):
            return streams, Verdict(applied=False, why=streams.why_threads or NOTHING_BESIDE)
        if self._tried is not None:
            verdict = Verdict(applied=self._tried.applied, why=TOGETHER)
            return (streams if verdict.applied else one_stream()), verdict
        if why := _untriable(plan, before, overlapping, self.asked):
            verdict = Verdict(applied=self.asked.is_expected_to_pay, why=f"not tried: {why}")
            return (streams if verdict.applied else one_stream()), verdict
        other = one_stream()
        with turns:
            verdict = self._tried = _Race(plan, streams, other, before, self.asked).verdict()
        return (streams if verdict.applied else other), verdict


def _untriable(plan: Plan, before: Mapping[int, torch.Tensor], overlapping: frozenset[int], asked: Trial) -> str:
    for step in plan.steps:
        traits = traits_of(step.op)
        if not traits.may_be_tried:
            return f"{step.op} is not torch's own"
        if traits.draws or traits.takes_generator:
            return f"{step.op} draws random numbers"
        if facts(step.op).effect:
            return f"{step.op} does more than it returns"
    written = [root for root in plan.roots if root.written]
    if any(root.kind == "attribute" for root in written):
        return "the graph writes a tensor of its own"
    inputs = frozenset(root.index for root in written if root.kind == "input")
    if inputs & overlapping:
        return "an input that is written overlaps another one"
    if inputs & plan.pinned:
        return "an input that is written must lie where it does"
    if not inputs <= before.keys():
        return f"the inputs that are written take more than {COPIED_BYTES >> 20} MiB"
    if asked.predicted_serial_us is not None and asked.predicted_serial_us > asked.ms * 1e3:
        return f"one replay is predicted to take longer than streams.trial_ms={asked.ms:g}"
    return ""


class _OutOfTime(Exception):
    pass


class _Race:
    def __init__(self, plan: Plan, streams: Way, one: Way, before: Mapping[int, torch.Tensor], asked: Trial) -> None:
        self.plan, self.asked, self.before = plan, asked, before
        self.ways = (streams, one)
        self.written = {index: copy_of(value) for index, value in before.items()}
        self.deadline = 0.0
        self.given = {root.index: root.tensor for root in plan.roots if root.kind == "input" and root.index in before}

    def verdict(self) -> Verdict:
        for way in self.ways:
            self._lay(way, self.written)
        try:
            return self._run()
        except _OutOfTime:
            return self._by_prediction(f"{LEAST_TURNS} turns take longer than streams.trial_ms={self.asked.ms:g}")
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, it must not end a capture that has succeeded
            return self._by_prediction(f"a replay of the trial failed: {str(error).partition(chr(10))[0]}")
        finally:
            for way in self.ways:
                self._lay(way, self.given)

    def _lay(self, way: Way, where: Mapping[int, torch.Tensor | None]) -> None:
        assert isinstance(way.executor, Native)
        for index, value in where.items():
            if value is not None and value.numel():
                way.executor.move(index, value)

    def _run(self) -> Verdict:
        self.deadline = perf_counter_ns() + self.asked.ms * 1e6
        streams, one = self.ways
        self._replay(one)
        in_a_row = self._seen(one)
        self._replay(streams)
        if not all(map(same_bytes, self._seen(streams), in_a_row)):
            return Verdict(applied=False, why="threads gave other bits than one stream")
        longest = 0
        times: dict[Way, list[int]] = {streams: [], one: []}
        while len(times[one]) < LEAST_TURNS or (
            len(times[one]) < MOST_TURNS and perf_counter_ns() + longest < self.deadline
        ):
            turn = perf_counter_ns()
            for way in self.ways if len(times[one]) % 2 else self.ways[::-1]:
                took = self._replay(way)
                times[way].append(took if took > LONG_NS else self._replay(way))
            longest = max(longest, perf_counter_ns() - turn)
        return self._judged(times[streams], times[one])

    def _replay(self, way: Way) -> int:
        """Nanoseconds of one replay, from the inputs of the captured call."""
        if perf_counter_ns() > self.deadline:
            raise _OutOfTime
        assert isinstance(way.executor, Native)
        for index, value in self.written.items():
            value.copy_(self.before[index])
        (took,) = way.executor.recording.took(1)
        return took

    def _seen(self, way: Way) -> list[torch.Tensor]:
        """Copies of what the replay left: outputs, and inputs that it wrote."""
        return [tensor.clone() for tensor in (*_outputs(self.plan, way.memory), *self.written.values())]

    def _judged(self, plan_ns: list[int], one_ns: list[int]) -> Verdict:
        verdict = Verdict(
            applied=True,
            turns=len(plan_ns),
            plan_us=_quantile(plan_ns, 0.1),
            plan_p90_us=_quantile(plan_ns, 0.9),
            one_stream_us=_quantile(one_ns, 0.1),
            one_stream_p90_us=_quantile(one_ns, 0.9),
        )
        gain, least = verdict.gain, self.asked.min_gain
        if gain is not None and gain >= least:
            return verdict
        why = f"measured gain {gain:.1%} is below streams.min_gain {least:.1%}" if gain is not None and gain > 0 else ""
        return attrs.evolve(verdict, applied=False, why=why)

    def _by_prediction(self, why: str) -> Verdict:
        return Verdict(applied=self.asked.is_expected_to_pay, why=f"not tried: {why}")


def _outputs(plan: Plan, memory: Memory) -> Iterator[torch.Tensor]:
    for output in plan.outputs:
        if isinstance(output, Buffer):
            yield output.slot.layout.over(memory.storages[id(output.slot.root)])


def _quantile(nanoseconds: Sequence[int], share: float) -> float:
    ordered = sorted(nanoseconds)
    return ordered[round((len(ordered) - 1) * share)] / 1e3


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


class OnThreads(Protocol):
    """A recording whose streams may run on several threads."""

    threads: Threads | None
    workers: Workers


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
