"""One compiled graph on a GPU, a CUDA graph for each signature it is called with."""

from __future__ import annotations

from typing import Any

import attrs

from npucompose.replay.cache.graph_cache import GraphCache
from npucompose.replay.cuda.device import Device
from npucompose.replay.cuda.recording import CudaRecording, SharedPool
from npucompose.replay.interface import LowerRequest, WhenFull
from npucompose.replay.refusals import Refused
from npucompose.schema.partition import Partial


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
        partial: Partial = "cut",
    ) -> None:
        super().__init__(
            request, capture_limit=capture_limit, clone_output=clone_output, when_full=when_full, partial=partial
        )
        self.device = device
        self.pool: SharedPool = request.memory if isinstance(request.memory, SharedPool) else SharedPool(device)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """The second call of a signature captures: only then the device says what it does not record."""
        try:
            return super().__call__(inputs)
        except Refused as refusal:
            if self.partial == "refuse":
                raise
            with self._lock:
                for kept in [one for one in self._kept if not one.recording.facts()["captures"]]:
                    self._drop(kept)
                return self._cut(refusal, inputs)

    def is_within_a_replay(self) -> bool:
        return self.pool.turns.is_mine()

    def alike(self, request: LowerRequest) -> CudaCache:
        return CudaCache(
            attrs.evolve(request, memory=self.pool),
            device=self.device,
            capture_limit=self.capture_limit,
            when_full=self.when_full,
            partial=self.partial,
        )

    def recorded(self, inputs: list[Any]) -> tuple[CudaRecording, list[Any]]:
        made = CudaRecording(
            self.request.graph_module,
            inputs,
            device=self.device,
            pool=self.pool,
            static=self.request.static_inputs,
            clone_output=self.clone_output,
        )
        return made, made.replay(*inputs)
