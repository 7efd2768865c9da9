"""A recording of one FX graph with its static buffers, good for one signature."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import fx

from npucompose.machine import gc_paused
from npucompose.results.streams import TrialVerdict
from npucompose.schema.sizes import MemoryBound
from npucompose.table.structure import facts_of
from npucompose_replay import gate
from npucompose_replay.capture import generated, recorder
from npucompose_replay.capture.generated import GeneratedCode
from npucompose_replay.capture.kernels import Computes, OneThread
from npucompose_replay.executor.native import Call, Entry, Native, NativeFront
from npucompose_replay.executor.portable import StraightLine
from npucompose_replay.executor.python_front import Front, PythonFront
from npucompose_replay.executor.trial import ONE_STREAM, ExecutorName, Executors, PlanTrial
from npucompose_replay.gate import isolated_capture
from npucompose_replay.memory.arena import Arena, OneAtATime, memory_errors_in_words, pool_bytes, within
from npucompose_replay.memory.huge_pages import move_weights
from npucompose_replay.memory.inputs import Inputs, Slots, refusal
from npucompose_replay.memory.results import HeldOutputs, outputs_of
from npucompose_replay.operands import layout_of, over, sharing
from npucompose_replay.plan import Literally, Plan, Register, Root, ViewOfInput, Workers, lent_inputs
from npucompose_replay.rest_of_graph import RestOfCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack


class How(TypedDict, total=False):
    """How a graph is captured; `CapturedGraph.capture` says what each means."""

    static: frozenset[int]
    executor: ExecutorName
    clone_output: bool
    workers: Workers | None
    arena: Arena | None
    trial: PlanTrial | None
    max_memory: MemoryBound | None


class CapturedGraph:
    """`CapturedGraph.capture(gm, inputs, static=…)`, then `replay(*inputs)` as often as wanted.

    Outputs lie in static buffers. One that is still held at the next replay, or a view of it, is left to its holder,
    and the replay gets other memory; with `reuse` results that were given out with `reuse` are overwritten, and with
    `clone_output` every result is a copy. An output that is an input comes back as the caller's own tensor. Replays of
    recordings that lie in one arena run one at a time, so calls of several threads wait for each other.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Any],
        *,
        static: frozenset[int],
        executors: Executors,
        clone_output: bool,
        workers: Workers,
        arena: Arena,
        trial: PlanTrial | None = None,
        before: Mapping[int, torch.Tensor] | None = None,
        max_memory: MemoryBound | None = None,
    ) -> None:
        self.plan = plan
        self.workers = workers
        self.seconds = self.record_seconds = 0.0
        """What the capture took, and what of it went by until the plan stood."""
        shared = sharing(inputs)
        self.shares_inputs = bool(shared)
        """Whether some inputs overlapped: the plan took that for granted."""
        self.how: How = {"static": static, "executor": executors.wanted, "clone_output": clone_output}
        self.how |= {"workers": workers, "arena": arena, "max_memory": max_memory}
        arena = arena.joined(executors.extension)
        assert arena.turns is not None
        threads, why = executors.threads(plan, workers, shared)
        streams_only = False
        if max_memory is not None:
            threads, why, streams_only = within(max_memory, plan, threads, why)
        way = executors.way(plan, threads, why, workers, arena)
        self.verdict: TrialVerdict | None = None
        """What came of the trial of the streams; None where none was asked for."""
        if trial is not None and not streams_only:
            way, self.verdict = trial.judged(
                plan,
                way,
                lambda: executors.way(plan, None, ONE_STREAM, workers, arena),
                before=before or {},
                overlapping=shared,
                turns=arena.turns,
            )
        self.threads, self.why_threads = way.threads, way.why_threads
        """Who runs which step; None, and a reason where streams were asked for, when one thread runs all of them."""
        self.memory, self.executor, self._why_executor = way.memory, way.executor, way.why_executor
        if self.threads is not None and workers.falls_back and isinstance(self.executor, Native):
            self.executor.watch(self.verdict.one_stream_us if self.verdict is not None else None)
        written = frozenset(root.index for root in plan.roots if root.kind == "input" and root.written)
        self.fixed = static | plan.pinned | _overlapping_themselves(inputs) | _pinned_together(shared, written)
        self._make_front(inputs, written, clone_output, arena.turns)

    def _make_front(self, given: Sequence[Any], written: frozenset[int], clone_output: bool, turns: OneAtATime) -> None:
        """What admits inputs, replays and hands results out; a second one overwrites what it gave."""
        plan, memory, executor = self.plan, self.memory, self.executor
        self._inputs = Inputs(
            given,
            fixed=self.fixed,
            written=written,
            from_zero=plan.from_zero,
            lent=frozenset().union(*lent_inputs(plan.steps)),
            places=executor
            if isinstance(executor, Native)
            else Slots(given, memory.slots, executor.lay, copies=not executor.lends),
        )
        outputs = outputs_of(plan, memory, clone_output)
        self._native: NativeFront | None = None
        self._front: Front
        self._reusing: Front
        if isinstance(executor, Native):
            go_on = RestOfCalls(plan.steps, executor, self._inputs.give_back)
            self._native = executor.front(given, self._inputs, memory, outputs, go_on, plan.fills, turns)
            self._front, self._reusing = self._native.replayer(False), self._native.replayer(True)
            return
        results = [output.static for output in outputs if output.static is not None]
        held = HeldOutputs(memory, results, executor.lay)
        # What TorchScript runs no call can leave.
        can_be_left = isinstance(executor, StraightLine)
        rest = RestOfCalls(plan.steps, executor, self._inputs.give_back) if can_be_left else None
        self._front = PythonFront(self._inputs, executor, outputs, held, rest, plan.fills, turns)
        self._reusing = partial(self._front, reuse=True)

    @classmethod
    def capture(cls, graph_module: fx.GraphModule, inputs: Sequence[Any], **how: Unpack[How]) -> CapturedGraph:
        """Run `graph_module` once on the real `inputs` and record it; inputs and RNG are as before afterwards.

        `static` inputs (parameters, buffers) are used in place and their address belongs to the signature. Streams that
        the graph names run on `workers` where the native replayer can; by default on every core of this process. What
        is computed in between lies in `arena`: recordings with one arena use the same memory and replay one at a time.
        With `trial` the streams are kept where they are faster than one, with `max_memory` where they take no more.
        Raises CaptureError, naming the operator and the model's line, for what cannot be replayed, and where even one
        stream takes more than `max_memory`.
        """
        return cls._captured(
            lambda one_thread, _: (recorder.record(graph_module, inputs, one_thread), None), graph_module, inputs, **how
        )[0]

    @classmethod
    def capture_call(
        cls, graph_module: fx.GraphModule, inputs: Sequence[Any], *, finish: bool = False, **how: Unpack[How]
    ) -> tuple[CapturedGraph, list[Any]]:
        """`capture`, and the results of the run that was recorded: a call in which every operator ran once.

        On CaptureError inputs and RNG are as before; with `finish` a call that has a node that cannot be recorded is
        made all the same, and its results are the error's `outputs`.
        """

        def run(one_thread: OneThread | None, _: Computes | None) -> tuple[Plan, list[Any]]:
            return recorder.record_call(graph_module, inputs, one_thread, finish=finish)

        return cls._captured(run, graph_module, inputs, **how)

    @classmethod
    def capture_code(
        cls, code: GeneratedCode, inputs: Sequence[Any], *, finish: bool = False, **how: Unpack[How]
    ) -> tuple[CapturedGraph, list[Any]]:
        """`capture_call` of code that a compiler made of a graph."""

        def run(_: OneThread | None, computes: Computes | None) -> tuple[Plan, list[Any]]:
            return generated.record_call(code, inputs, finish=finish, computes=computes)

        return cls._captured(run, None, inputs, **how)

    @classmethod
    def from_plan(cls, plan: Plan, inputs: Sequence[Any], **how: Unpack[How]) -> CapturedGraph:
        """A recording of what was recorded before for the signature of `inputs`; the roots of inputs lie where they do.

        There may be several recordings of one plan.
        """
        return cls._captured(lambda _one_thread, _computes: (plan, None), None, inputs, **how)[0]

    @classmethod
    def _captured(
        cls,
        run: Callable[[OneThread | None, Computes | None], tuple[Plan, Any]],
        graph_module: fx.GraphModule | None,
        inputs: Sequence[Any],
        *,
        static: frozenset[int] = frozenset(),
        executor: ExecutorName = "native",
        clone_output: bool = False,
        workers: Workers | None = None,
        arena: Arena | None = None,
        trial: PlanTrial | None = None,
        max_memory: MemoryBound | None = None,
    ) -> tuple[CapturedGraph, Any]:
        begin = time.perf_counter()
        workers = workers or Workers()
        executors = Executors.from_name(executor)
        if trial is not None:  # which copies inputs before they are recorded
            for index, value in enumerate(inputs):
                gate.check_input(index, value)
        with gc_paused(), memory_errors_in_words():
            before = trial.before(graph_module, inputs) if trial is not None and graph_module is not None else {}
            plan, results = run(executors.one_thread(workers), executors.computes)
            recorded = time.perf_counter()
            with _with_results(results), memory_errors_in_words(), isolated_capture():
                _check_still_there(inputs)
                captured = cls(
                    plan,
                    inputs,
                    static=static,
                    executors=executors,
                    clone_output=clone_output,
                    workers=workers,
                    arena=arena or Arena(),
                    trial=trial,
                    before=before,
                    max_memory=max_memory,
                )
            packed = None if executors.extension is None else executors.extension.address_of_packed
            move_weights(plan, static, packed)
        captured.seconds, captured.record_seconds = time.perf_counter() - begin, recorded - begin
        return captured, results

    @property
    def signature(self) -> tuple[str, ...]:
        """Shapes and numbers, and the addresses of the inputs in `fixed`."""
        return self._inputs.signature

    def moved(self, inputs: Sequence[Any], arena: Arena) -> CapturedGraph:
        """Another recording of its plan, for inputs of its signature that lie elsewhere, fixed ones too."""
        lie_at(self.plan, inputs)
        return CapturedGraph.from_plan(self.plan, inputs, **{**self.how, "arena": arena})

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]:
        """The outputs for inputs of the recording's signature; SignatureError for others."""
        outputs = (self._reusing if reuse else self._front)(inputs)
        if outputs is None:
            raise refusal(inputs, self._inputs.signature, self.fixed)
        return outputs

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Like replay, but None, with nothing done, when the inputs do not have this recording's signature."""
        return self._front(inputs)

    def caller(
        self,
        held: list[Any],
        taken: Sequence[tuple[int, int]],
        result: type | int,
        entries: Sequence[Entry] = (),
        reuse: bool = False,
        weights: Any = None,
    ) -> Call | None:
        """A quick `replay` for inputs that are `held`, but for those that `taken`, (input, argument), names.

        `call(arguments)` returns all outputs in a row of the type `result`, tuple or list, or only the one of that
        number. It does nothing and returns None for what `replay` would refuse or copy, for arguments that want
        gradients, in another mode of autograd or autocast than this one, where one of `entries`, (dict, name, tensor),
        is no longer so, and where `weights`, as `Constants.native` has them, do not hold. No caller where an output is
        made by Python, or all is.
        """
        if self._native is None or any(isinstance(o, (ViewOfInput, Literally)) for o in self.plan.outputs):
            return None
        return self._native.caller(held, taken, result, list(entries), reuse, weights)

    def facts(self) -> Mapping[str, Any]:
        steps, placement = self.plan.steps, self.memory.placement
        fallback = self.executor.fallback() if isinstance(self.executor, Native) else None
        return {
            "executor": self.executor.name,
            "executor_reason": self._why_executor,
            "streams": len(self.plan.streams),
            "threads": 1 if self.threads is None else self.threads.count,
            "why_threads": self.why_threads,
            "trial": None if self.verdict is None else facts_of(self.verdict),
            "fallback": None if fallback is None else facts_of(fallback),
            "ways": self.executor.facts() if isinstance(self.executor, Native) else {},
            "kernels": len(steps),
            "fresh": sum(1 for step in steps if any(isinstance(result, Register) for result in step.made)),
            "views_resolved": self.plan.views_resolved,
            "constants": self.plan.constants,
            "pool_bytes": placement.pool_bytes,
            "one_stream_pool_bytes": placement.pool_bytes if self.threads is None else pool_bytes(self.plan, None),
            "slabs": [(slab.number, slab.nbytes) for slab in self.memory.slabs],
            "unplanned_bytes": placement.unplanned_bytes,
            "live_bytes": placement.live_bytes,
            "output_bytes": sum(buffer.nbytes for buffer in self.memory.outputs),
            "seconds": self.seconds,
            "signature": self._inputs.signature,
        }


@contextlib.contextmanager
def _with_results(results: list[Any] | None) -> Iterator[None]:
    """What is refused when the call is over goes with its results: the call does not run a second time."""
    try:
        yield
    except gate.Refused as refusal:
        refusal.outputs = results
        raise


def _check_still_there(inputs: Sequence[Any]) -> None:
    """Refused where an operator has freed the memory of an input, or cut it short."""
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and (gone := gate.why_no_memory(value)):
            raise gate.Refused(
                f"cannot record what reads input {index}: when the call was over, it {gone}.",
                reason=f"an operator frees the memory of an input: it {gone}",
                index=index,
            )


def _pinned_together(shared: frozenset[int], written: frozenset[int]) -> frozenset[int]:
    """Inputs that overlap while one is written: right only where they lie, so their addresses are in the signature."""
    return shared if written & shared else frozenset()


def _overlapping_themselves(inputs: Sequence[Any]) -> frozenset[int]:
    """Inputs that cannot be copied element by element, other than expanded ones: good only where they lie."""
    tensors = ((i, t) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor))
    return frozenset(i for i, t in tensors if layout_of(t).collapsed().overlaps_itself())


def lie_at(plan: Plan, inputs: Sequence[Any]) -> None:
    """Let the roots of inputs lie where these do, with what the plan knows of their layouts.

    Recordings that were made of the plan before have storages of their own.
    """
    for root in plan.roots:
        if root.kind == "input":
            _move(root, inputs[root.index])


def _move(root: Root, given: torch.Tensor) -> None:
    if given.numel() == 0:
        return
    layout = layout_of(root.contents)
    begin = given.data_ptr() - layout.offset * layout.dtype.itemsize
    root.tensor = layout.over(over(begin, root.nbytes))
