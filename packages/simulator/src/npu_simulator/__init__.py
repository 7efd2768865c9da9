"""What takes the place of torch_npu's C++ modules, so that the genuine TorchAir runs up to the border of CANN.

For the whole life of a process: `torch_npu`, `torch.npu` and `torch.Tensor.is_npu` become the simulator's. So it is
installed only in a process that was started for it (see `ALLOWED`); the process of a caller is never touched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from npucompose.errors import ConfigError
from npucompose.targets.npu_offline import Simulator, wheel
from npucompose.vendor.devices import device_of

if TYPE_CHECKING:
    from npu_simulator.device import SimulatedDevice

ALLOWED = "NPUCOMPOSE_SIMULATED_NPU"
"""Environment variable: `1` in a process that may be turned into a device without CANN."""
_INSTALLED: list[SimulatedDevice] = []


class NpuSimulator(Simulator):
    """This package, as npucompose asks for it."""

    variable: ClassVar[str] = ALLOWED

    def install(self, tree: Path, soc: str | None = None) -> SimulatedDevice:
        return install(tree, soc)

    def place_ge_graphs(self) -> None:
        from npu_simulator.ge_session import place_ge_graphs

        place_ge_graphs()


def install(tree: Path, soc: str | None = None) -> SimulatedDevice:
    """Turn this process into a device without CANN, the SoC of that name; `tree` holds `torch_npu/`. The second call
    returns the first's."""
    if _INSTALLED:
        return _INSTALLED[0]
    if os.environ.get(ALLOWED) != "1":
        raise ConfigError(
            "target=npu_offline replaces torch_npu for the whole process, so it runs in processes of its own: "
            f"`python run.py target=npu_offline …`. In a process that you start for it set {ALLOWED}=1."
        )
    from npu_simulator import device as devices
    from npu_simulator import modules, operators

    device = devices.SimulatedDevice(device_of(soc))
    modules.install(device, tree / "torch_npu")
    operators.define(device, tree / "torch_npu", wheel.version(tree))
    _INSTALLED.append(device)
    return device
