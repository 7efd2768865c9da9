"""An NVIDIA GPU: reduce-overhead is a CUDA graph of our FX graph, max-autotune one of Inductor's code."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.replay.interface import (
    CACHE_OPTIONS,
    Lowered,
    LowerRequest,
    PoolOf,
    WhenFull,
    pool_option,
    when_full_option,
)
from npucompose.schema.capabilities import Capabilities
from npucompose.table.options import option
from npucompose.targets.base import TORCH_COMPILE, ModeSupport, Profiler, Target, placed_on

if TYPE_CHECKING:
    from torch import fx

    from npucompose.models.base import Built
    from npucompose.replay.cuda.code import HowOften
    from npucompose.replay.cuda.device import SharedPool
    from npucompose.results.graphs import Partition
    from npucompose.targets.backend import Backend


@frozen(kw_only=True)
class CudaTarget(Target):
    """Model and inputs are moved to `cuda:<index>`; times are taken after torch.cuda.synchronize."""

    name: ClassVar[str] = "cuda"
    previews_npu: ClassVar[bool] = True
    device_variable: ClassVar[str | None] = "CUDA_VISIBLE_DEVICES"
    runs_plain: ClassVar[bool] = True
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        "max-autotune": ModeSupport(fuses=True, replays_fused=True, trains=True),
        "reduce-overhead": ModeSupport(captures=True, options=CACHE_OPTIONS["reduce-overhead"].supported),
        "eager": ModeSupport(compiles=False),
    }
    loaded: ClassVar[tuple[str, ...]] = TORCH_COMPILE

    index: int = option(0, "which GPU", ge=0)
    when_full: WhenFull = when_full_option()
    pool: PoolOf = pool_option()

    def capabilities(self, mode: str) -> Capabilities:
        return Capabilities(
            target=self.name, mode=mode, device=f"cuda:{self.index}", captures=self.support(mode).captures
        )

    @property
    def device_index(self) -> int:
        return self.index

    def check(self, mode: str) -> None:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.index >= count:
            has = f"{count} CUDA device(s)" if count else "no CUDA device"
            raise ConfigError(
                f"target={self.name} needs device cuda:{self.index}, and torch {torch.__version__} finds {has} here. "
                "Targets that every machine has: cpu, null_device; `npucompose doctor` shows what is missing."
            )
        super().check(mode)

    def identity(self) -> Mapping[str, str]:
        # nvidia-smi, so that asking for a key does not start CUDA in the parent of a worker.
        tool = shutil.which("nvidia-smi")
        if tool is None:
            return {"cuda": f"device {self.index}"}
        query = [tool, f"--id={self.index}", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        return {"cuda": answer.stdout.strip() or f"device {self.index}"}

    def place(self, built: Built) -> Built:
        import torch

        return placed_on(built, torch.device("cuda", self.index))

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        from npucompose.replay.front.segments import planned

        return planned(graph_module, "cuda") if self.support(mode).captures else None

    def common_memory(self) -> SharedPool | None:
        from npucompose.replay.cuda.device import Cuda, SharedPool

        return SharedPool(Cuda(self.index)) if self.pool == "model" else None

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        if not self.support(backend.mode).fuses:
            from npucompose.targets.aot import through_aot

            return through_aot(backend, graph_module, example_inputs)
        from npucompose.targets import inductor
        from npucompose.targets.captured_inductor import CapturingRecorder

        recorder = CapturingRecorder(backend=backend, how=self._how) if backend.records else None
        return inductor.through_inductor(backend, graph_module, example_inputs, recorder=recorder)

    def lower(self, request: LowerRequest) -> Lowered:
        from npucompose.replay.cuda.cache import CudaCache
        from npucompose.replay.front.graph_cache import lowered

        return lowered(CudaCache(request, **self._how(request)), "cuda")

    def _how(self, request: LowerRequest) -> HowOften:
        from npucompose.replay.cuda.device import Cuda

        capture_limit, clone_output = CACHE_OPTIONS[request.mode].values(request.options)
        return {
            "device": Cuda(self.index),
            "capture_limit": capture_limit,
            "clone_output": clone_output,
            "when_full": self.when_full,
            "partial": request.partial,
        }

    def profiler(self) -> Profiler:
        return attrs.evolve(super().profiler(), activities=("CPU", "CUDA"))

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)
