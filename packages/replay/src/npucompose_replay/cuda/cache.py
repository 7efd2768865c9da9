"""One compiled graph, a CUDA graph for each signature it is called with."""

from __future__ import annotations

from typing import Any

import attrs

from npucompose.recorder import LowerRequest
from npucompose.schema.experiment import Partial
from npucompose.schema.recording import WhenFull
from npucompose_replay.cuda.device import Cuda, SharedPool, Walk
from npucompose_replay.cuda.recording import CudaRecording, Runnable
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.gate import Refused


class CudaCache(GraphCache):
    """The recordings lie in one pool, with those of the model's other graphs where the request says so."""

    def __init__(
        self,
        request: LowerRequest,
        *,
        device: Cuda,
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
                for entry in [one for one in self.recordings if not one.recording.facts()["captures"]]:
                    self.recordings.drop(entry)
                return self._cut(refusal, inputs)

    def is_within_a_replay(self) -> bool:
        return self.pool.turns.is_mine()

    def alike(self, request: LowerRequest) -> CudaCache:
        return CudaCache(
            attrs.evolve(request, memory=self.pool, only_watched=False),
            device=self.device,
            capture_limit=self.capture_limit,
            when_full=self.when_full,
            partial=self.partial,
        )

    def recorded(self, inputs: list[Any]) -> tuple[CudaRecording, list[Any]]:
        walk = Walk(graph_module=self.request.graph_module, device=self.device, lanes=self.pool.lanes)
        return self.first_recorded(walk, inputs)

    def first_recorded(
        self, runs: Runnable, inputs: list[Any], fixed: frozenset[int] = frozenset()
    ) -> tuple[CudaRecording, list[Any]]:
        """A recording of what is run, and the results of its first call; `fixed` inputs do not move either."""
        made = CudaRecording(
            runs,
            inputs,
            device=self.device,
            pool=self.pool,
            static=self.request.static_inputs | fixed,
            clone_output=self.clone_output,
        )
        return made, made.replay(*inputs)
