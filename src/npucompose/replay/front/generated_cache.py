"""Code that a compiler made of one graph, a recording for each signature it is called with.

What cannot be recorded is called as the compiler made it, from then on, and `partition` says why; with
`partial=refuse` it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import fx

from npucompose.errors import CaptureError
from npucompose.replay.capture.generated import GeneratedCode
from npucompose.replay.captured_graph import CapturedGraph, How
from npucompose.replay.executor.trial import ExecutorName
from npucompose.replay.front.contest import Contest
from npucompose.replay.front.graph_cache import GraphCache
from npucompose.replay.gate import Refused
from npucompose.replay.interface import LowerRequest, Recording, SeenCall, WhenFull, WhenNew, note, watchers
from npucompose.replay.memory.arena import Arena
from npucompose.replay.plan import Workers
from npucompose.results.graphs import Outside, Partition
from npucompose.schema.experiment import Partial

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _HowMany(TypedDict):
    capture_limit: int


class HowOften(_HowMany, total=False):
    """What GraphCache takes; it says what each means."""

    clone_output: bool
    executor: ExecutorName
    partial: Partial
    when_full: WhenFull
    when_new: WhenNew
    workers: Workers | None


WHOLE = "the whole graph"


class GeneratedCache(GraphCache):
    """A GraphCache of `code`; `compiled(list of inputs)` is what calls it without a recording."""

    def __init__(
        self,
        request: LowerRequest,
        compiled: Callable[[list[Any]], Any],
        code: GeneratedCode | str,
        contest: Contest | None = None,
        **how: Unpack[HowOften],
    ) -> None:
        """`code`, or why it cannot be read; CaptureError for the latter with `partial=refuse`. With a `contest` the
        first recording decides whether it and later ones are of the code or of the graph that it was made of."""
        super().__init__(request, **how)
        if isinstance(code, str) and self.partial == "refuse":
            raise CaptureError(f"cannot record what was compiled: {code}. compile.partial=cut calls it as it is.")
        self._contest = contest
        self._unfused: fx.GraphModule | None = None
        """What is recorded instead of the code: it has won."""
        self.compiled = compiled
        self._code = None if isinstance(code, str) else code
        self._outside = Outside(node="", operator=WHOLE, reason=code) if isinstance(code, str) else None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self._outside is None:
            return super().__call__(inputs)
        self._eager += 1
        given = list(inputs) if watchers else []
        outputs = self._as_it_is(inputs)
        if watchers:
            words = f"Inductor's wrapper calls its kernels, because {self._outside.reason}"
            note(SeenCall(None, given, outputs, self.capture_limit, instead=words))
        return outputs

    def _as_it_is(self, inputs: list[Any]) -> list[Any]:
        return list(self.compiled(list(inputs)))  # which empties its list

    def recorded(self, inputs: list[Any]) -> tuple[Recording, list[Any]]:
        if self._unfused is not None:
            return CapturedGraph.capture_call(self._unfused, inputs, finish=self.partial == "cut", **self._recording)
        assert self._code is not None
        contest, self._contest = self._contest, None
        before = contest.before(inputs) if contest is not None else {}
        fused, outputs = CapturedGraph.capture_code(self._code, inputs, finish=self.partial == "cut", **self._recording)
        return (fused if contest is None else self._won(contest, fused, inputs, before)), outputs

    def _won(
        self, contest: Contest, fused: CapturedGraph, inputs: list[Any], before: Mapping[int, torch.Tensor]
    ) -> CapturedGraph:
        """What this recording and later ones are made of is decided now."""

        def unfused() -> CapturedGraph:
            """In memory of its own: what does not stay leaves the common pool as it was."""
            return CapturedGraph.capture(contest.unfused, inputs, **{**self._recording, "arena": Arena()})

        recording = contest.won(fused, unfused, inputs, before)
        if recording is fused:
            return fused
        self._unfused = contest.unfused
        return CapturedGraph.from_plan(recording.plan, inputs, **self._recording)

    @property
    def _recording(self) -> How:
        return {
            "static": self.request.static_inputs,
            "executor": self.executor,
            "clone_output": self.clone_output,
            "workers": self.workers,
            "arena": self.arena,
        }

    def _cut(self, refusal: Refused, inputs: list[Any]) -> list[Any]:
        """All calls are the compiler's own from now on."""
        self._outside = Outside(
            node="" if refusal.node is None else refusal.node.name,
            operator=WHOLE if refusal.node is None else str(refusal.node.target),
            reason=refusal.reason,
        )
        self.clear()
        return refusal.outputs if refusal.outputs is not None else self._as_it_is(inputs)

    def partition(self) -> Partition:
        return Partition() if self._outside is None else Partition(segments=0, outside=(self._outside,))
