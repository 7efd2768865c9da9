"""Code that a compiler made of one graph for the CPU, a recording for each signature it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import fx

from npucompose.recorder import LowerRequest
from npucompose.schema.experiment import Partial
from npucompose.schema.recording import WhenFull, WhenNew
from npucompose_replay.capture.generated import GeneratedCode
from npucompose_replay.captured_graph import CapturedGraph, How
from npucompose_replay.executor.trial import ExecutorName
from npucompose_replay.front.as_compiled import AsCompiled
from npucompose_replay.front.contest import Contest
from npucompose_replay.interface import Recording
from npucompose_replay.memory.arena import Arena
from npucompose_replay.memory.freed_memory import hand_back
from npucompose_replay.plan import Workers

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


class GeneratedCache(AsCompiled):
    """An AsCompiled of `code`, recorded kernel by kernel."""

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
        super().__init__(request, compiled, code if isinstance(code, str) else "", **how)
        self._contest = contest
        self._first = True
        """What compiling has left, and what the contest will, is still with the process."""
        self._unfused: fx.GraphModule | None = None
        """What is recorded instead of the code: it has won."""
        self._code = None if isinstance(code, str) else code

    def recorded(self, inputs: list[Any]) -> tuple[Recording, list[Any]]:
        recording, outputs = self._recorded(inputs)
        if self._first:
            hand_back()
        self._first = False
        return recording, outputs

    def _recorded(self, inputs: list[Any]) -> tuple[Recording, list[Any]]:
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

        def unfused(given: Sequence[Any]) -> CapturedGraph:
            """In memory of its own: what does not stay leaves the common pool as it was."""
            return CapturedGraph.capture(contest.unfused, given, **{**self._recording, "arena": Arena()})

        recording = contest.won(fused, unfused, inputs, before)
        if recording is fused:
            return fused
        self._unfused = contest.unfused
        return recording.moved(inputs, self.arena)

    @property
    def _recording(self) -> How:
        return {
            "static": self.request.static_inputs,
            "executor": self.executor,
            "clone_output": self.clone_output,
            "workers": self.workers,
            "arena": self.arena,
        }
