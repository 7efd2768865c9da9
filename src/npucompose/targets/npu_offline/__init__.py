"""TorchAir without CANN: the Python of the torch_npu wheel, on a simulator for its compiled modules.

Here may live the target, its wheel and what the wheel declares; what runs in place of CANN is an installed package's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose.npu.torchair.config import MODES, TorchairMode
from npucompose.npu.torchair.target import TorchairTarget
from npucompose.registry import Registry
from npucompose.table.modes import GE
from npucompose.targets.npu_offline import wheel

if TYPE_CHECKING:
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation


# What takes the place of torch_npu's compiled modules: an installed package is asked, and nothing of it is known.


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


NEEDS = {"google.protobuf": "protobuf", "packaging": "packaging"}
"""{module: package} that the wheel imports and does not name."""
LEAST_TORCH = (2, 10)


NOT_OF_GE = (
    "the values are those of the FX graph that TorchAir converted, run on the CPU: they say nothing of how GE "
    "computes its graph"
)


@frozen(kw_only=True)
class NpuOfflineTarget(TorchairTarget):
    """Compiles, captures and replays on the CPU; everything up to libge and the runtime is TorchAir's own code."""

    name: ClassVar[str] = "npu_offline"
    modes: ClassVar[Mapping[str, TorchairMode]] = {**MODES, GE: evolve(MODES[GE], numerics_note=NOT_OF_GE)}
    measures: ClassVar[bool] = False

    def check(self, mode: str) -> None:
        super().check(mode)
        found = metadata.version("torch").partition("+")[0]
        if tuple(map(int, _minor(found).split("."))) < LEAST_TORCH:
            raise ConfigError(
                f"target=npu_offline needs torch {'.'.join(map(str, LEAST_TORCH))} or later, in which a device can be "
                f"written in Python, and torch {found} is installed; target=cpu and target=npu take it."
            )
        tree = wheel.locate()
        missing = [package for module, package in NEEDS.items() if not _installed(module)]
        if missing:
            raise ConfigError(
                f"target=npu_offline needs {' and '.join(missing)}, which TorchAir imports: "
                "pip install 'npucompose[npu_offline]'."
            )
        installed_simulator()
        wanted = wheel.version(tree)
        if _minor(wanted) != _minor(found):
            raise ConfigError(
                f"the torch_npu {wanted} wheel is for torch {_minor(wanted)}, and torch {found} is installed: fetch "
                f"the wheel of that version, or install torch {_minor(wanted)}."
            )

    def sources(self) -> tuple[str, ...]:
        return (type(installed_simulator()).__module__.partition(".")[0],)

    def identity(self) -> Mapping[str, str]:
        """Which wheel; results of one are not those of another."""
        try:
            return {"npu": "simulated", "torch_npu": wheel.version(wheel.locate())}
        except ConfigError:
            return {"npu": "simulated"}

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), installed_simulator().variable: "1"}

    def load_platform(self, mode: str) -> None:
        installed_simulator().install(wheel.locate(), self.soc)

    def prepare(self, mode: str) -> None:
        super().prepare(mode)
        if self.support(mode).ge:
            installed_simulator().place_ge_graphs()

    def platform(self) -> str:
        return "simulated"

    def package_version(self) -> str:
        return wheel.version(wheel.locate())

    def recordings(self, mode: str, graphs: Sequence[Compilation]) -> list[Mapping[str, Any]]:
        """No memory figures: the simulator gives every value memory of its own, a device's pool does not."""
        if not self.support(mode).compiles:
            return []
        return [{"seconds": graph.seconds, "kernels": graph.kernels} for graph in _device().graphs]

    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        if not self.support(backend.mode).captures:
            return super().device_texts(backend)
        graphs = enumerate(_device().graphs)
        return {f"capture_{n}.txt": "".join(f"{line}\n" for line in graph.notes) for n, graph in graphs}

    def counts(self, mode: str) -> Mapping[str, Any]:
        device = _device()
        if self.support(mode).ge:
            runs = device.ledger.counts["ge_run"]
            return {"captures": 0, "replays": runs, "not_written": tuple(device.not_written)}
        counted = device.ledger.counts
        notes = [line for graph in device.graphs for line in graph.notes]
        return {
            "captures": counted["capture"],
            "replays": counted["replay"],
            "task_updates": counted["task_update"],
            "event_records": sum(line.startswith("record") for line in notes),
            "event_waits": sum(line.startswith("wait event") for line in notes),
            "core_limits": sum(line.startswith("limit") for line in notes),
            "streams": len({stream for graph in device.graphs for stream in graph.order.clocks}),
            "unordered": tuple(sentence for graph in device.graphs for sentence in graph.outside),
        }


def _device() -> Any:
    return installed_simulator().install(wheel.locate())


def _installed(module: str) -> bool:
    """Without importing what the module is in more than its parents."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _minor(version: str) -> str:
    """`2.13` of `2.13.0.post1`."""
    return ".".join(version.split(".")[:2])
