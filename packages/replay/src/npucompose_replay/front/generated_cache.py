"""Code that a compiler made of one graph for the CPU, a recording for each signature it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from npucompose.recorder import LowerRequest
from npucompose.schema.experiment import Partial
from npucompose.schema.recording import WhenFull, WhenNew
from npucompose_replay.capture.generated import GeneratedCode
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.trial import ExecutorName
from npucompose_replay.front.as_compiled import AsCompiled
from npucompose_replay.interface import Recording
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
        **how: Unpack[HowOften],
    ) -> None:
        """`code`, or why it cannot be read; CaptureError for the latter with `partial=refuse`."""
        super().__init__(request, compiled, code if isinstance(code, str) else "", **how)
        self._first = True
        """What compiling has left is still with the process."""
        self._code = None if isinstance(code, str) else code

    def recorded(self, inputs: list[Any]) -> tuple[Recording, list[Any]]:
        assert self._code is not None
        recorded = CapturedGraph.capture_code(
            self._code,
            inputs,
            finish=self.partial == "cut",
            static=self.request.static_inputs,
            executor=self.executor,
            clone_output=self.clone_output,
            workers=self.workers,
            arena=self.arena,
        )
        if self._first:
            hand_back()
        self._first = False
        return recorded
