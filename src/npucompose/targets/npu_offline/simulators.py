"""What takes the place of torch_npu's compiled modules: an installed package is asked, and nothing of it is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from npucompose.registry import Registry


class Simulator(ABC):
    """A simulated NPU for a whole process: from its installation on `torch_npu` and `torch.npu` are its own."""

    variable: ClassVar[str]
    """Environment variable: `1` in a process that may be turned into a device without CANN."""

    @abstractmethod
    def install(self, tree: Path, soc: str | None = None) -> Any:
        """The device of this process, the SoC of that name; `tree` holds `torch_npu/`. The second call returns the
        first's: its `graphs`, its `ledger` of counted calls and what was `not_written`."""

    @abstractmethod
    def place_ge_graphs(self) -> None:
        """From now on TorchAir's GE graphs are run here."""


SIMULATORS: Registry[type[Simulator]] = Registry(kind="simulator", base=Simulator, group="npucompose.simulators")


def installed_simulator() -> Simulator:
    """ConfigError that names the package where none is installed."""
    return SIMULATORS.get("npu", "target=npu_offline")()
