"""An NVIDIA GPU: reduce-overhead is a CUDA graph of our FX graph, max-autotune one of Inductor's code."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.recording import CACHE_OPTIONS, PoolOf, WhenFull, pool_option, when_full_option
from npucompose.table.options import option
from npucompose.targets.base import ModeSupport, Profiler, placed_on
from npucompose.targets.recorded import RecordedTarget

if TYPE_CHECKING:
    from npucompose.models.base import Built


@frozen(kw_only=True)
class CudaTarget(RecordedTarget):
    """Model and inputs are moved to `cuda:<index>`; times are taken after torch.cuda.synchronize."""

    name: ClassVar[str] = "cuda"
    device_variable: ClassVar[str | None] = "CUDA_VISIBLE_DEVICES"
    modes: ClassVar[Mapping[str, ModeSupport]] = {
        "max-autotune": ModeSupport(fuses=True, replays_fused=True, trains=True),
        "reduce-overhead": ModeSupport(captures=True, options=CACHE_OPTIONS["reduce-overhead"].supported),
        "eager": ModeSupport(compiles=False),
    }

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

    def profiler(self) -> Profiler:
        return attrs.evolve(super().profiler(), activities=("CPU", "CUDA"))

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)
