"""An Ascend NPU: TorchAir on CANN. The same code as npu_offline; only what is imported underneath differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata, util
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.npu.torchair.target import TorchairTarget
from npucompose.table.options import option
from npucompose.targets.base import Profiler, placed_on

if TYPE_CHECKING:
    from npucompose.models.base import Built

ADVICE = "`npucompose doctor` shows what is missing; target=npu_offline compiles and captures without a device."
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")


@frozen(kw_only=True)
class NpuTarget(TorchairTarget):
    """Model and inputs are moved to `npu:<index>`; times are taken after torch.npu.synchronize."""

    name: ClassVar[str] = "npu"
    without_device: ClassVar[str | None] = "npu_offline"
    device_variable: ClassVar[str | None] = "ASCEND_RT_VISIBLE_DEVICES"
    communicates: ClassVar[bool] = True

    index: int = option(0, "which NPU", ge=0)

    @property
    def device_index(self) -> int:
        return self.index

    def check(self, mode: str) -> None:
        """What can be known without starting the device: the package, and CANN's environment."""
        super().check(mode)
        missing: list[str] = []
        if util.find_spec("torch_npu") is None:
            missing.append("the package torch_npu is not installed")
        if not any(os.environ.get(name) for name in CANN_VARIABLES):
            missing.append(f"CANN's environment is not set ({' or '.join(CANN_VARIABLES)}; source its set_env.sh)")
        if missing:
            raise ConfigError(f"target={self.name} needs an Ascend device with CANN: {'; '.join(missing)}. {ADVICE}")

    def identity(self) -> Mapping[str, str]:
        return {"npu": f"device {self.index}"}

    def load_platform(self, mode: str) -> None:
        """The genuine torch_npu; where a library is missing, the loader's own words."""
        try:
            import torch_npu  # noqa: F401  # pyright: ignore[reportMissingImports]

            npu = _npu()
            count = npu.device_count() if npu.is_available() else 0
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(f"target={self.name}: torch_npu cannot be loaded: {error}. {ADVICE}") from error
        if self.index >= count:
            raise ConfigError(
                f"target={self.name} needs device npu:{self.index}, and torch_npu finds {count}. {ADVICE}"
            )
        npu.set_device(self.index)

    def platform(self) -> str:
        return "device"

    def package_version(self) -> str:
        return metadata.version("torch_npu")

    def counts(self, mode: str) -> Mapping[str, Any]:
        """TorchAir's own counters say how often it captured; what the device did nobody counts."""
        from torch._dynamo.utils import counters

        captured = {key: n for key, n in counters["npugraph_ex"].items() if key.startswith("captured_")}
        return {"captures": 0 if self.support(mode).ge else sum(captured.values())}

    def place(self, built: Built) -> Built:
        return placed_on(built, f"npu:{self.index}")

    def device_memory(self) -> Mapping[str, int]:
        """By torch_npu's caching allocator, which counts since the process began."""
        npu = _npu()
        return {
            "device_peak_bytes": int(npu.max_memory_allocated(self.index)),
            "device_reserved_peak_bytes": int(npu.max_memory_reserved(self.index)),
            "device_total_bytes": int(npu.get_device_properties(self.index).total_memory),
        }

    def profiler(self) -> Profiler:
        """torch_npu's, which records the device by msprof and has torch.profiler's interface."""
        import torch_npu.profiler  # pyright: ignore[reportMissingImports]

        return Profiler(module=torch_npu.profiler, activities=("CPU", "NPU"))  # pyright: ignore[reportUnknownMemberType]

    def synchronize(self) -> None:
        _npu().synchronize(self.index)


def _npu() -> Any:
    """torch.npu, of which torch's own stubs know nothing."""
    import torch

    return torch.npu  # pyright: ignore[reportAttributeAccessIssue]
