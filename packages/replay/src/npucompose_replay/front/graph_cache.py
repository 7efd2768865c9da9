"""One compiled graph, a recording for each signature it is called with: what `lower` returns for captured modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs.recordable import refused_by_recordings
from npucompose.recorder import LowerRequest, RunAsEager
from npucompose.results.graphs import Outside, Partition
from npucompose.results.measured import CallStatistics
from npucompose.schema.experiment import Partial
from npucompose.schema.recording import WhenFull, WhenNew
from npucompose.schema.sizes import MemoryBound
from npucompose.streams import decision_of
from npucompose_replay import gate
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.counted import CountedNumbers
from npucompose_replay.executor.trial import ExecutorName, PlanTrial
from npucompose_replay.front.overlapping import Overlapping
from npucompose_replay.front.recordings import Entry, Recordings
from npucompose_replay.front.segments import Segmented, nodes_of, prepared
from npucompose_replay.gate import Refused
from npucompose_replay.interface import Admission, Recording, SeenCall, is_watched, note, wants_numbers, watchers
from npucompose_replay.memory.arena import Arena, fork_safe_lock, memory_errors_in_words
from npucompose_replay.memory.inputs import signature
from npucompose_replay.plan import Workers
from npucompose_replay.state import have_tangents

WITHIN_A_REPLAY = (
    "an operator of a recorded graph calls a compiled graph whose recordings lie in the same memory: that one runs "
    "without replay there. target.pool=graph gives each graph memory of its own."
)


class GraphCache:
    """Called with the list of a graph's inputs; records signatures, up to `capture_limit` of them.

    `when_new` says which: each when it first comes (`at_once`), or when calls have earned it (`earned`, see
    Note [A recording has to be earned]); calls that somebody watches are recorded at once. `when_full` says what comes
    beyond the limit. `eager`, TorchAir's way: one warning, and new signatures run the graph as it is; recorded ones are
    still replayed. `replace`: the recording that was used longest ago makes place (detached handles of it stay good;
    see Note [Who takes whose place]).
    """

    _boxed_call = True

    def __init__(
        self,
        request: LowerRequest,
        *,
        capture_limit: int,
        clone_output: bool = False,
        executor: ExecutorName = "native",
        when_full: WhenFull = "eager",
        when_new: WhenNew = "at_once",
        workers: Workers | None = None,
        trial: PlanTrial | None = None,
        max_memory: MemoryBound | None = None,
        partial: Partial = "cut",
    ) -> None:
        self.request = request
        self.capture_limit = capture_limit
        self.clone_output = clone_output
        self.executor: ExecutorName = executor
        self.when_full: WhenFull = when_full
        self.workers = workers
        self.partial: Partial = partial
        """What happens where a node turns out, while it is recorded, to be none that a recording can hold."""
        self.segmented: Segmented | None = None
        """What calls that no recording fits become once that has happened: the graph, cut at that node."""
        self.trial = trial or PlanTrial.from_graph(request.graph_module)
        """Judges the streams of the recordings; None where no plan was left to a trial."""
        self.max_memory = max_memory or _bound_of(request.graph_module)
        """Of each recording's intermediate results; None where nobody bounds them."""
        self.arena: Arena = request.memory if isinstance(request.memory, Arena) else Arena()
        """What all recordings on this device compute in between lies here: they replay one at a time."""
        self.last: Recording | None = None
        """The recording used last; None before the first call and after an eager one."""
        self.admission = Admission(when_new, only_watched=request.only_watched)
        self.recordings = Recordings()
        self._steady: Recording | None = None
        """The recording that the last call met and the next one is expected to meet: it is asked first."""
        self._again = 0
        """Calls that met it since it became the steady one; `_settle` books them."""
        self._hits = self._replacements = self._eager = 0
        self._cost_s = self._cost_again_s = 0.0
        """What a capture takes, and what it takes where the plan was cached, each by the last one."""
        self.overlapping = Overlapping(request)
        self.counted = request.counted or CountedNumbers.from_graph(request.graph_module.graph)
        """Numbers that belong to no signature; None where there are none."""
        self._moving: tuple[int, ...] | None = None
        """Inputs that are no parameters."""
        self._unrecorded: dict[Hashable, Outside] = {}
        """Signatures, at a glance, whose calls cannot be recorded for their size."""
        self._warned: set[str] = set()
        self._lock = fork_safe_lock()

    @property
    def captured(self) -> list[Recording]:
        """All recordings, the one used last stands last; after them those of the parts where the graph is cut."""
        parts = () if self.segmented is None else self.segmented.captured
        return [*(entry.recording for entry in self.recordings), *parts]

    @property
    def statistics(self) -> CallStatistics:
        parts = CallStatistics() if self.segmented is None else self.segmented.statistics
        return parts + CallStatistics(
            hits=self._hits + self._again,
            captures=self.admission.captures,
            replacements=self._replacements,
            eager=self._eager,
        )

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self.counted is not None and self.counted.differ(inputs) and not wants_numbers():
            return self.counted.beside(self, inputs)
        if self.is_within_a_replay():
            self._warn_once("within a replay", lambda: WITHIN_A_REPLAY)
            self._eager += 1
            return self._as_it_is(inputs)
        if watchers:
            return self._watched(inputs)
        steady = self._steady
        outputs = steady.try_replay(inputs) if steady is not None else None
        if outputs is None:
            return self._other(inputs)[1]
        self._again += 1
        return outputs

    def _watched(self, inputs: list[Any]) -> list[Any]:
        """A call of which somebody who makes it on this thread may want to know."""
        given = list(inputs)
        recording, outputs = self._other(inputs)
        note(SeenCall(recording, given, outputs, self.capture_limit, self.request.constants))
        return outputs

    def _other(self, inputs: list[Any]) -> tuple[Recording | None, list[Any]]:
        """The recording of these inputs, made now if that is due, and its results; None: the graph ran as it is."""
        if gate.has_onlookers():  # who wants to see every operator does
            self._eager += 1
            return None, self._as_it_is(inputs)
        if have_tangents(inputs):
            return None, self._as_traced(inputs)
        with self._lock:  # two threads with one new signature make one recording
            call = self._settle()
            glance = self._at_a_glance(inputs)
            begun = perf_counter()
            for entry in self.recordings.alike(glance):
                outputs = self._replayed(entry.recording, inputs)
                if outputs is not None:
                    entry.replay_s = perf_counter() - begun
                    self._use(entry, call)
                    return entry.recording, outputs
            if self.segmented is None and self.overlapping.meet(inputs):
                raise RunAsEager
            if self.segmented is None and self._makes_place(glance, inputs):
                return self._capture(inputs, glance, call)
            self.last = self._steady = None
        if self.segmented is not None:
            return None, self.segmented(inputs)
        begun = perf_counter()
        outputs = self._as_it_is(inputs)
        self.ran_eagerly(glance, perf_counter() - begun)
        return None, outputs

    @staticmethod
    def _replayed(recording: Recording, inputs: list[Any]) -> list[Any] | None:
        # AOTAutograd's mode around a first call has nothing to say about what was recorded before.
        with _disable_current_modes() if gate.why_not_here() else nullcontext():
            return recording.try_replay(inputs)

    def would_record(self, glance: Hashable, inputs: Sequence[Any]) -> bool:
        """Whether a call had better come by here, of which the caller knows that it met no recording so far.

        `glance` is the caller's own, as for `ran_eagerly`: equal for all calls of one signature.
        """
        with self._lock:
            self._settle()
            worth = is_watched() or self._is_worth_it(glance, inputs)
            if worth:
                self.admission.forget(glance)
            return worth

    def ran_eagerly(self, glance: Hashable, seconds: float) -> None:
        """Book a call without a recording, whoever made it."""
        with self._lock:
            self._eager += 1
            self.admission.ran_eagerly(glance, seconds)

    def _settle(self) -> int:
        """Book the calls that met the steady recording; the number of the call that comes now."""
        if self._again and self.recordings:
            steady = self.recordings.newest
            self._hits += self._again
            self.admission.calls_s += self._again * steady.replay_s
            self._again = 0
            steady.used = self.admission.call()
        return self.admission.call()

    def _at_a_glance(self, inputs: list[Any]) -> Hashable:
        """Equal for all inputs of one signature, and nearly always different for others: shapes and numbers."""
        if self._moving is None:
            static = self.request.static_inputs
            self._moving = tuple(i for i in range(len(inputs)) if i not in static)
        values = [inputs[i] for i in self._moving]
        try:
            return tuple([value.shape if isinstance(value, torch.Tensor) else value for value in values])
        except RuntimeError:  # not every kind of tensor has one
            return tuple([type(value) for value in values])

    def _use(self, entry: Entry, call: int) -> None:
        self._hits += 1
        self.admission.calls_s += entry.replay_s
        self.recordings.use(entry, call)
        # Where signatures take turns, the one before is not asked first: its no takes longer than finding the right.
        self._steady = entry.recording if self.last is entry.recording else None
        self.last = entry.recording

    def _makes_place(self, glance: Hashable, inputs: list[Any]) -> bool:
        """Whether a signature gets a recording; the one that has to go for it is gone then."""
        if glance in self._unrecorded or not self._is_worth_it(glance, inputs):
            return False
        if self._is_full():
            self.recordings.replace_oldest(wanted=glance)
            self._replacements += 1
        return True

    def _is_worth_it(self, glance: Hashable, inputs: Sequence[Any]) -> bool:
        full = self._is_full()
        if full and self.when_full == "eager":
            self._warn_once("full", lambda: _full(self.capture_limit, inputs))
            return False
        if is_watched():
            return True
        cost_s = self._cost_again_s if glance in self.recordings.plans else self._cost_s
        return self.admission.admits(glance, cost_s, self.recordings.oldest.used if full else None)

    def _is_full(self) -> bool:
        return len(self.recordings) >= self.capture_limit

    def adopt(self, recording: Recording, glance: Hashable) -> None:
        """A recording of this graph that somebody else has made; `glance` is the tuple of the inputs' shapes."""
        with self._lock:
            self._keep(recording, glance, self._settle())

    def clear(self) -> None:
        """Let all recordings go."""
        with self._lock:
            self._settle()
            self.recordings.clear()
            self._unrecorded.clear()
            self.last = self._steady = None

    def is_within_a_replay(self) -> bool:
        """This thread is replaying what lies in the same memory: an operator of that graph has called this one."""
        return self.arena.is_mine()

    def _as_traced(self, inputs: list[Any]) -> list[Any]:
        """The graph with its operators, where a compiler's kernels would not do."""
        self._eager += 1
        return self._as_it_is(inputs)

    def _as_it_is(self, inputs: list[Any]) -> list[Any]:
        return list(self.request.graph_module.forward(*inputs))

    def _capture(self, inputs: list[Any], glance: Hashable, call: int) -> tuple[Recording | None, list[Any]]:
        captured = self.recordings.plans.recording(glance, inputs)
        outputs = self._replayed(captured, inputs) if captured is not None else None
        if captured is not None and outputs is not None:
            self._cost_again_s = captured.seconds
            self._keep(captured, glance, call)
            return captured, outputs
        try:
            captured, outputs = self.recorded(inputs)
        except Refused as refusal:
            if self.partial == "refuse":
                raise
            if refusal.node is None and refusal.index < 0:
                return None, self._too_large(refusal, glance, inputs)
            return None, self._cut(refusal, inputs)
        self._cost_s = captured.seconds
        self._cost_again_s = self._cost_again_s or captured.seconds
        self._keep(captured, glance, call)
        if self.request.recorded is not None:
            self.request.recorded(captured, inputs)
        return captured, outputs

    def _keep(self, captured: Recording, glance: Hashable, call: int) -> None:
        self.recordings.add(Entry(captured, glance, call))
        self.admission.captured(glance, captured.seconds)
        self.last = captured
        self._steady = None  # the first replay is timed

    def _cut(self, refusal: Refused, inputs: list[Any]) -> list[Any]:
        """Everything but what was refused is recorded, in parts, from the next call on; an input that no operator reads
        belongs to none of them."""
        found = nodes_of(refusal, self.request.graph_module.graph)
        if gate.reads_freed_memory(refusal, found, inputs):
            raise refusal
        segmented = Segmented(self.request, found, self.alike, clone_output=self.clone_output)
        outputs = refusal.outputs if refusal.outputs is not None else segmented(inputs)
        self.segmented = segmented
        self.last = self._steady = None
        return outputs

    def _too_large(self, refusal: Refused, glance: Hashable, inputs: list[Any]) -> list[Any]:
        """Calls of this signature run the graph as it is."""
        self._warn_once(
            "too large", lambda: f"a call is not recorded: {refusal.reason}. Calls of its sizes run as they are."
        )
        self._unrecorded[glance] = Outside.whole_graph(refusal.reason)
        if refusal.outputs is not None:
            return refusal.outputs
        with memory_errors_in_words():
            return self._as_it_is(inputs)

    def alike(self, request: LowerRequest) -> GraphCache:
        """A cache for a part of this graph, whose results the caller does not see as they are."""
        return GraphCache(
            attrs.evolve(request, memory=self.arena, only_watched=False),
            capture_limit=self.capture_limit,
            executor=self.executor,
            when_full=self.when_full,
            when_new=self.admission.when_new,
            workers=self.workers,
            partial=self.partial,
            trial=None if self.trial is None else PlanTrial(self.trial.asked),
            max_memory=self.max_memory,
        )

    def partition(self) -> Partition:
        """How the graph is cut; a graph that is not has one segment."""
        if self.segmented is not None:
            return self.segmented.partition()
        outside = tuple(self._unrecorded.values())
        return Partition(segments=1 if self.recordings or not outside else 0, outside=outside)

    def recorded(self, inputs: list[Any]) -> tuple[Recording, list[Any]]:
        """A recording of the graph for the signature of `inputs`, and the results of the call that was recorded."""
        return CapturedGraph.capture_call(
            self.request.graph_module,
            inputs,
            static=self.request.static_inputs,
            executor=self.executor,
            clone_output=self.clone_output,
            workers=self.workers,
            arena=self.arena,
            finish=self.partial == "cut",
            trial=self.trial,
            max_memory=self.max_memory,
        )

    def _warn_once(self, kind: str, words: Callable[[], str]) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(words(), RuntimeWarning, stacklevel=3)


def _bound_of(graph_module: fx.GraphModule) -> MemoryBound | None:
    decision = decision_of(graph_module)
    return None if decision is None or decision.max_memory is None else MemoryBound.from_text(decision.max_memory)


def lowered(cache: GraphCache, device: str) -> GraphCache | Segmented:
    """What a graph becomes that `cache` would record whole: the cache, or the graph in parts where it cannot be."""
    if cache.partial == "refuse":
        return cache
    cache.request = prepared(cache.request)
    refused = dict(refused_by_recordings(cache.request.graph_module.graph, device))
    if not refused:
        return cache
    return Segmented(cache.request, refused, cache.alike, clone_output=cache.clone_output)


def _full(limit: int, inputs: Sequence[Any]) -> str:
    return (
        f"capture_limit={limit} recordings of this graph are made; new signatures, such as {signature(inputs)}, run "
        "without replay from now on. Raise capture_limit, use fewer shapes, or let them take the place of the "
        "recording used longest ago: target.when_full=replace."
    )
