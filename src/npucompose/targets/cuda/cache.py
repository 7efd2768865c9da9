"""One compiled graph on a GPU, a CUDA graph for each signature it is called with."""

from __future__ import annotations

from typing import Any

from npucompose.targets.base import LowerRequest
from npucompose.targets.cpu import WhenFull
from npucompose.targets.cpu.graph_cache import GraphCache
from npucompose.targets.cuda.device import Device
from npucompose.targets.cuda.recording import CudaRecording, SharedPool


class CudaCache(GraphCache):
    """The recordings lie in one pool, with those of the model's other graphs where the request says so."""

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
        self.pool: SharedPool = request.memory if isinstance(request.memory, SharedPool) else SharedPool(device)

    def is_within_a_replay(self) -> bool:
        return self.pool.turns.is_mine()

    def recorded(self, inputs: list[Any]) -> CudaRecording:
        return CudaRecording(
            self.request.graph_module,
            inputs,
            device=self.device,
            pool=self.pool,
            static=self.request.static_inputs,
            clone_output=self.clone_output,
        )
