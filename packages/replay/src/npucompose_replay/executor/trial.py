"""Who runs a plan: the native replayer or a portable one, on the plan's streams or on one, whichever is faster here.

# Note [The trial of a plan]
Both are run in turns when a graph is captured. Nobody notices: what lies between the kernels is scratch memory, outputs
are the trial's own, inputs that the graph writes are copies of what they were before the captured call, taken back
before every turn. So both ways compute what the captured call computed, and must give the same bits. A graph that draws
random numbers, has effects, or calls operators that are not torch's own is not run for a trial: there the prediction
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from time import perf_counter_ns
from types import ModuleType
from typing import Any, Literal

import attrs
import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.bits import same_bytes
from npucompose.graphs import written_inputs
from npucompose.graphs.effects import facts
from npucompose.results.streams import TrialRequest, TrialVerdict
from npucompose.streams import decision_of
from npucompose_replay.capture.kernels import Computes, OneThread
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native, computes
from npucompose_replay.executor.portable import StraightLine, TorchScript
from npucompose_replay.memory.arena import Arena, Memory
from npucompose_replay.operands import copy_of, traits_of
from npucompose_replay.plan import Buffer, Plan, Threads, UnsupportedStep, Workers

LEAST_TURNS, MOST_TURNS = 5, 200
"""Fewer turns say nothing; more of them say nothing new."""
STALLS = 3
"""So many times a trial whose turns are short is given its time anew: the machine had other work to do in between."""
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

    asked: TrialRequest
    _tried: TrialVerdict | None = field(default=None, init=False)

    @classmethod
    def from_graph(cls, graph_module: fx.GraphModule) -> PlanTrial | None:
        """None where no plan stands in the graph whose worth the capture is to find out."""
        decision = decision_of(graph_module)
        return cls(decision.trial) if decision is not None and decision.trial is not None else None

    def before(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Mapping[int, torch.Tensor]:
        """Copies of the inputs that the graph writes, by index, as they are before the call that is captured; {} for
        those that take too much memory, and where nothing will be tried."""
        return {} if self._tried is not None else copies_of_written(graph_module, inputs)

    def judged(
        self,
        plan: Plan,
        streams: Way,
        one_stream: Callable[[], Way],
        *,
        before: Mapping[int, torch.Tensor],
        overlapping: frozenset[int],
        turns: AbstractContextManager[Any],
    ) -> tuple[Way, TrialVerdict]:
        """The way to keep, and what was found; `overlapping` are inputs that share memory with others."""
        if streams.threads is None or not isinstance(streams.executor, Native):
            return streams, TrialVerdict(applied=False, why=streams.why_threads or NOTHING_BESIDE)
        if self._tried is not None:
            verdict = TrialVerdict(applied=self._tried.applied, why=TOGETHER)
        elif why := why_untriable(plan, before, overlapping) or _too_long(self.asked):
            verdict = _by_prediction(self.asked, why)
        else:
            other = one_stream()
            with turns:
                verdict = self._tried = _Race(plan, streams, other, before, self.asked).verdict()
            return (streams if verdict.applied else other), verdict
        return (streams if verdict.applied else one_stream()), verdict


def copies_of_written(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Copies of the inputs that a graph writes, by index; {} for those that take too much memory."""
    indices = written_inputs(graph_module.graph)
    written = {i: value for i, value in enumerate(inputs) if i in indices and isinstance(value, torch.Tensor)}
    if sum(value.untyped_storage().nbytes() for value in written.values()) > COPIED_BYTES:
        return {}
    return {i: copy_of(value) for i, value in written.items()}


def why_only_once(op: torch._ops.OpOverload) -> str:
    """Why an operator is not called again where only its results are compared or timed; '' where it may be."""
    traits = traits_of(op)
    if not traits.may_be_tried:
        return f"{op} is not torch's own"
    if traits.draws or traits.takes_generator:
        return f"{op} draws random numbers"
    return f"{op} does more than it returns" if facts(op).effect else ""


def why_untriable(plan: Plan, before: Mapping[int, torch.Tensor], overlapping: frozenset[int]) -> str:
    """Why a plan cannot be run again for a trial, from the copies `before` of what it writes; '' where it can."""
    for step in plan.steps:
        if why := why_only_once(step.op):
            return why
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
    return ""


def _too_long(asked: TrialRequest) -> str:
    if asked.predicted_serial_us is not None and asked.predicted_serial_us > asked.ms * 1e3:
        return f"one replay is predicted to take longer than streams.trial_ms={asked.ms:g}"
    return ""


class _OutOfTime(Exception):
    pass


class _Race:
    def __init__(
        self, plan: Plan, streams: Way, one: Way, before: Mapping[int, torch.Tensor], asked: TrialRequest
    ) -> None:
        self.plan, self.asked, self.before = plan, asked, before
        self.ways = (streams, one)
        self.written = {index: copy_of(value) for index, value in before.items()}
        self.deadline, self.stalls = 0.0, 0
        self.shortest = ((asked.predicted_us or inf) + (asked.predicted_serial_us or inf)) * 1e3
        """Nanoseconds of a turn, predicted and then measured."""
        self.given = {root.index: root.tensor for root in plan.roots if root.kind == "input" and root.index in before}

    def verdict(self) -> TrialVerdict:
        for way in self.ways:
            self._lay(way, self.written)
        try:
            return self._run()
        except _OutOfTime:
            return _by_prediction(
                self.asked, f"{LEAST_TURNS} turns take longer than streams.trial_ms={self.asked.ms:g}"
            )
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises, it must not end a capture that has succeeded
            return _by_prediction(self.asked, f"a replay of the trial failed: {str(error).partition(chr(10))[0]}")
        finally:
            for way in self.ways:
                self._lay(way, self.given)

    def _lay(self, way: Way, where: Mapping[int, torch.Tensor | None]) -> None:
        assert isinstance(way.executor, Native)
        for index, value in where.items():
            if value is not None and value.numel():
                way.executor.move(index, value)

    def _run(self) -> TrialVerdict:
        self.deadline = perf_counter_ns() + self.asked.ms * 1e6
        streams, one = self.ways
        self._replay(one)
        in_a_row = self._seen(one)
        self._replay(streams)
        if not all(map(same_bytes, self._seen(streams), in_a_row)):
            return TrialVerdict(applied=False, why="threads gave other bits than one stream")
        longest = 0
        times: dict[Way, list[int]] = {streams: [], one: []}
        while len(times[one]) < LEAST_TURNS or (
            len(times[one]) < MOST_TURNS and perf_counter_ns() + longest < self.deadline
        ):
            turn = perf_counter_ns()
            for way in self.ways if len(times[one]) % 2 else self.ways[::-1]:
                took = self._replay(way)
                times[way].append(took if took > LONG_NS else self._replay(way))
            took_all = perf_counter_ns() - turn
            longest, self.shortest = max(longest, took_all), min(self.shortest, took_all)
        return self._judged(times[streams], times[one])

    def _replay(self, way: Way) -> int:
        """Nanoseconds of one replay, from the inputs of the captured call."""
        if perf_counter_ns() > self.deadline:
            self._stalled()
        assert isinstance(way.executor, Native)
        for index, value in self.written.items():
            value.copy_(self.before[index])
        (took,) = way.executor.recording.took(1)
        return took

    def _stalled(self) -> None:
        """A graph whose turns take too long is out of time; where one was short, something else took it."""
        allowed = self.asked.ms * 1e6
        if self.stalls == STALLS or self.shortest * LEAST_TURNS > allowed:
            raise _OutOfTime
        self.stalls += 1
        self.deadline = perf_counter_ns() + allowed

    def _seen(self, way: Way) -> list[torch.Tensor]:
        """Copies of what the replay left: outputs, and inputs that it wrote."""
        return [tensor.clone() for tensor in (*_outputs(self.plan, way.memory), *self.written.values())]

    def _judged(self, plan_ns: list[int], one_ns: list[int]) -> TrialVerdict:
        verdict = TrialVerdict(
            applied=True,
            turns=len(plan_ns),
            plan_us=_quantile(plan_ns, 0.1),
            plan_p90_us=_quantile(plan_ns, 0.9),
            one_stream_us=_quantile(one_ns, 0.1),
            one_stream_p90_us=_quantile(one_ns, 0.9),
            threads=self.ways[0].threads.count if self.ways[0].threads is not None else 0,
            intra_op_threads=torch.get_num_threads(),
        )
        gain, least = verdict.gain, self.asked.min_gain
        if gain is not None and gain >= least:
            return verdict
        why = f"measured gain {gain:.1%} is below streams.min_gain {least:.1%}" if gain is not None and gain > 0 else ""
        return attrs.evolve(verdict, applied=False, why=why)


def _by_prediction(asked: TrialRequest, why: str) -> TrialVerdict:
    return TrialVerdict(applied=asked.is_expected_to_pay, why=f"not tried: {why}")


def _outputs(plan: Plan, memory: Memory) -> Iterator[torch.Tensor]:
    for output in plan.outputs:
        if isinstance(output, Buffer):
            yield output.slot.layout.over(memory.storages[id(output.slot.root)])


def _quantile(nanoseconds: Sequence[int], share: float) -> float:
    ordered = sorted(nanoseconds)
    return ordered[round((len(ordered) - 1) * share)] / 1e3


@frozen(kw_only=True, eq=False)
class Executors:
    """Who may run a plan: the native replayer's extension, or None and why; portable ones after it."""

    wanted: ExecutorName
    extension: ModuleType | None = None
    why: str = ""

    @classmethod
    def from_name(cls, wanted: ExecutorName) -> Executors:
        try:
            return cls(wanted=wanted, extension=build.load() if wanted == "native" else None)
        except build.Unavailable as error:
            return cls(wanted=wanted, why=error.line)

    def one_thread(self, workers: Workers) -> OneThread | None:
        """How to try a kernel on one thread, where streams may run on threads and kernels take more than one."""
        if self.extension is None or workers.count < 2 or torch.get_num_threads() == 1:
            return None
        return self.extension.alone

    @property
    def computes(self) -> Computes | None:
        """What tells of an operator whether a replay computes it into given memory; None where nothing can."""
        return None if self.extension is None else partial(computes, self.extension)

    def way(self, plan: Plan, threads: Threads | None, why: str, workers: Workers, arena: Arena) -> Way:
        """`plan` laid out in `arena` and ready to run on `threads`; `why` it has none."""
        memory = Memory.from_plan(plan, threads=threads, arena=arena)
        executor, why_executor = self.make(plan, memory, threads, workers)
        if threads is not None and not isinstance(executor, Native):
            threads, why = None, PORTABLE
        return Way(threads=threads, why_threads=why, memory=memory, executor=executor, why_executor=why_executor)

    def make(
        self, plan: Plan, memory: Memory, threads: Threads | None, workers: Workers
    ) -> tuple[Native | TorchScript | StraightLine, str]:
        """The executor that is wanted, or the next one that can run this plan, and why it is not the wanted one."""
        reason = self.why
        if self.extension is not None:
            try:
                return Native(self.extension, plan, memory, threads=threads, workers=workers), reason
            except UnsupportedStep as error:
                reason = str(error)
        if self.wanted != "python":
            try:
                return TorchScript(plan.steps, memory.slots, memory.tensors), reason
            except UnsupportedStep as error:
                reason = f"{reason}; " if reason else ""
                reason += f"not expressible in TorchScript: {error}"
        return StraightLine(plan.steps, memory.slots, memory.tensors), reason

    def threads(self, plan: Plan, workers: Workers, sharing: frozenset[int]) -> tuple[Threads | None, str]:
        """The plan's streams on threads; or None and why they run in a row, '' for a plan of one stream."""
        if len(plan.streams) < 2:
            return None, ""
        if self.extension is None:
            return None, PORTABLE
        if workers.count < 2:
            return None, "one thread is all that streams may have here"
        if plan.thread_sensitive:
            return None, (
                f"{plan.thread_sensitive}: torch.set_num_threads(1) (benchmark.threads=1) lets streams run side by side"
            )
        return Threads.from_plan(plan, workers.count, sharing), ""


ONE_STREAM = "one stream was kept"


PORTABLE = "the portable replayer runs one kernel after the other"


ExecutorName = Literal["native", "torchscript", "python"]
