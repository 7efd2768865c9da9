"""What records for target cuda: CUDA graphs of an FX graph, or of what Inductor made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from npucompose.schema.recording import CACHE_OPTIONS
from npucompose.targets.cuda import CudaTarget
from npucompose_replay.devices.base import TargetRecorder

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import Lowered, LowerRequest
    from npucompose.targets.backend import Backend
    from npucompose_replay.cuda.code import HowOften
    from npucompose_replay.cuda.device import SharedPool


@frozen
class CudaRecorder(TargetRecorder):
    target: CudaTarget

    def through_inductor(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        from npucompose_replay.inductor import through as inductor
        from npucompose_replay.inductor.captured import CapturingRecorder

        recorder = CapturingRecorder(backend=backend, how=self.how) if backend.records else None
        return inductor.through_inductor(backend, graph_module, example_inputs, recorder=recorder)

    def common_memory(self) -> SharedPool | None:
        from npucompose_replay.cuda.device import Cuda, SharedPool

        return SharedPool(Cuda(self.target.index)) if self.target.pool == "model" else None

    def lower(self, request: LowerRequest) -> Lowered:
        from npucompose_replay.cuda.cache import CudaCache
        from npucompose_replay.front.graph_cache import lowered

        return lowered(CudaCache(request, **self.how(request)), "cuda")

    def how(self, request: LowerRequest) -> HowOften:
        """How the graph of a request is recorded."""
        from npucompose_replay.cuda.device import Cuda

        capture_limit, clone_output = CACHE_OPTIONS[request.mode].values(request.options)
        return {
            "device": Cuda(self.target.index),
            "capture_limit": capture_limit,
            "clone_output": clone_output,
            "when_full": self.target.when_full,
            "partial": request.partial,
        }
