"""One compiled graph on a GPU, a CUDA graph for each signature it is called with."""

from __future__ import annotations

from typing import Any

from npucompose.targets.base import LowerRequest
from npucompose.targets.cpu import WhenFull
from npucompose.targets.cpu.graph_cache import GraphCache
from npucompose.targets.cuda.device import Device
from npucompose.targets.cuda.recording import CudaRecording, SharedPool


class CudaCache(GraphCache):
    """The recordings share one pool: what they compute in between lies in the same memory."""

    def __init__(
        self,
        request: LowerRequest,
        *,
        device: Device,
        capture_limit: int,
        clone_output: bool = False,
        when_full: WhenFull = "eager",
    ) -> None:
        super().__init__(request, capture_limit=capture_limit, clone_output=clone_output, when_full=when_full)
        self.device = device
        self.pool = SharedPool(device)

    def recorded(self, inputs: list[Any]) -> CudaRecording:
        return CudaRecording(
            self.request.graph_module,
            inputs,
            device=self.device,
            pool=self.pool,
            static=self.request.static_inputs,
            clone_output=self.clone_output,
        )
