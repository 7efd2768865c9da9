"""A CUDA graph of the kernels that a compiler's code starts, which is called while the device captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from attrs import frozen
from torch import fx

from npucompose.recorder import LowerRequest
from npucompose.schema.experiment import Partial
from npucompose.schema.recording import WhenFull
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.device import Cuda
from npucompose_replay.cuda.recording import CudaRecording
from npucompose_replay.front.as_compiled import AsCompiled
from npucompose_replay.gate import Refused


class HowOften(TypedDict):
    """What CudaCache takes."""

    device: Cuda
    capture_limit: int
    clone_output: bool
    when_full: WhenFull
    partial: Partial


@frozen(kw_only=True, eq=False)
class Code:
    """What a compiler made of `graph_module`, in the place of a Walk of it; its kernels run on the current stream."""

    graph_module: fx.GraphModule
    """Says which inputs are written, and whose memory a result has."""
    compiled: Callable[[list[Any]], Any]
    """Takes the list of the graph's inputs, which it empties."""
    kernels: int

    def check(self) -> None:
        """What no recording can hold was looked for before it was compiled."""

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return list(self.compiled(list(inputs)))

    def refused(self, reason: str) -> Refused:
        return Refused(f"cannot capture what was compiled: {reason}", reason=reason)


class CudaCodeCache(AsCompiled, CudaCache):
    """`compiled`, in CUDA graphs, with the rules of CudaRecording.

    The graph of the request is the one that it was compiled of, as it was before.
    """

    def __init__(
        self,
        request: LowerRequest,
        compiled: Callable[[list[Any]], Any],
        *,
        kernels: int,
        why_not: str,
        how: HowOften,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        """`why_not`: as for AsCompiled; `kernels`: how many the code starts; `kept`: ids of tensors of the model that
        are inputs, and do not move."""
        super().__init__(request, compiled, why_not, **how)
        self._kept = kept
        self._code = Code(graph_module=request.graph_module, compiled=compiled, kernels=kernels)

    def recorded(self, inputs: list[Any]) -> tuple[CudaRecording, list[Any]]:
        fixed = frozenset(i for i, value in enumerate(inputs) if id(value) in self._kept)
        return self.first_recorded(self._code, inputs, fixed)
