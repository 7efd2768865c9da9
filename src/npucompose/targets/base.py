"""A device as a few calls. Importing this or a target's file loads no torch and no vendor package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.replay.interface import Captured, Lowered, LowerRequest, Partitioned
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.compiler import CompilerOptions
from npucompose.schema.device_model import ATLAS_A2, DeviceModel
from npucompose.schema.effective import Effective
from npucompose.schema.options import option
from npucompose.schema.partition import Partition
from npucompose.schema.soc import soc_of

if TYPE_CHECKING:
    from torch import fx, nn

    from npucompose.models.base import Built
    from npucompose.models.binding import Bound
    from npucompose.schema.record import NpuFacts
    from npucompose.schema.streams import StreamTimes
    from npucompose.sinking import GeFacts
    from npucompose.targets.compilation import Backend

TORCH_COMPILE = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "npucompose.targets.compilation")
"""What torch.compile needs with a backend of ours: two seconds of imports."""

OWN_PROCESS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Keeps `import torch` from importing torch_npu, which raises where the wheel is installed and CANN is not."""


@frozen(kw_only=True, eq=False)
class Genuine:
    """The objects of the vendor's own compiler that an experiment became."""

    config: Any
    """torchair.CompilerConfig or npugraph_ex.CompilerConfig, every requested leaf set and no other touched."""
    backend: Callable[..., Callable[..., Any]]
    """What `torch.compile(backend=…)` takes."""
    options: Mapping[str, Any] | None = None
    """npugraph_ex only: what `torch.compile(backend="npugraph_ex", options=…)` takes."""


@frozen(kw_only=True)
class Folders:
    """Where a vendor's compiler may write; None leaves it where it writes by itself."""

    files: Path | None = None
    """What it writes for a person: dumps, summaries, exported graphs."""
    cache: Path | None = None
    """What it keeps for a later process."""


NO_FOLDERS = Folders()


@frozen(kw_only=True)
class Target(ABC):
    """A device; its fields are its options."""

    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]]
    """Modes that this target can run."""
    measures: ClassVar[bool] = True
    """Whether a time taken here means anything."""
    executes: ClassVar[bool] = True
    """Whether results come out that can be compared with eager."""
    detaches: ClassVar[bool] = True
    """Whether a recording can be replayed without torch.compile around it."""

    previews_npu: ClassVar[bool] = False
    """Whether people try here what is to run on an NPU, and are told what an NPU would refuse."""

    modes_share_a_process: ClassVar[bool] = True
    """Whether a model can be compiled in one mode and then in another."""

    soc: str | None = option(
        None, "the device that is asked about (`npucompose list socs`): Ascend910B4, or a family such as ascend910b"
    )

    device_variable: ClassVar[str | None] = None
    """The environment variable that says which devices a process may see; None where there is but one."""
    loaded: ClassVar[tuple[str, ...]] = ("torch",)
    """Modules that a fork server loads before it forks workers for this target; no device is touched by that."""

    def simulated(self) -> DeviceModel:
        """What plans for an NPU are simulated on: the SoC that is asked about, else an Atlas A2."""
        soc = soc_of(self.soc)
        return ATLAS_A2 if soc is None else soc.model()

    @property
    def device_index(self) -> int:
        """Which of several devices."""
        return 0

    @abstractmethod
    def capabilities(self, mode: str) -> Capabilities: ...

    @abstractmethod
    def honours(self, mode: str) -> frozenset[str]:
        """Dotted paths of the compiler options (CompilerOptions) that act here in this mode."""

    def check(self, mode: str) -> None:
        """Raise ConfigError when this machine, or this target, cannot run `mode`. Runs nothing on the device."""
        if mode not in self.modes:
            raise ConfigError(
                f"mode={mode} cannot run on target={self.name}. Modes of this target: {', '.join(self.modes)}."
            )

    def check_stages(self, stages: Sequence[str]) -> None:
        """Raise ConfigError when one of these stages has no meaning here."""
        beyond = [stage for stage in stages if stage not in ("compile", "capture")]
        if beyond and not self.executes:
            raise ConfigError(
                f"target={self.name} executes nothing: {', '.join(beyond)} cannot run. Add pipeline=compile_only."
            )

    def warnings(self, mode: str) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        return ()

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What of the device belongs to the key of a result, e.g. {"cpu": "…model name…"}. Loads no torch."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables that a worker needs before torch is imported."""
        return OWN_PROCESS

    def prepare(self, mode: str) -> None:
        """Load what the device needs in this process; called before anything else that needs torch."""

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        """How to tell the device's compiler which sizes a dimension may have; None where it takes no such thing."""
        return None

    def genuine(self, backend: Backend) -> Genuine | None:
        """The vendor's own configuration and backend object; None where the compiler is ours."""
        return None

    def fuses(self, mode: str) -> bool:
        """Whether Inductor makes the kernels in this mode, so that the options of `inductor` act."""
        return False

    def trains(self, mode: str) -> bool:
        """Whether gradients flow through what is compiled in this mode."""
        return False

    def caches(self, mode: str) -> bool:
        """Whether a later process can load what this one compiles (`cached`)."""
        return False

    def exports(self, mode: str) -> bool:
        """Whether the graph can be written for offline use instead of being run (`export`)."""
        return False

    def cached(self, backend: Backend, module: nn.Module, dynamic: bool | None) -> Callable[..., Any]:
        """`module.forward`, compiled at its first call or loaded from `backend.folders.cache`; see `caches`."""
        raise ConfigError(f"target={self.name} has no cache of compiled graphs.")

    def export(self, backend: Backend, module: nn.Module, call: Bound, dynamic: bool | None) -> None:
        """Write the graph of `module`, called so, for offline use; see `exports`."""
        raise ConfigError(f"target={self.name} exports no graph.")

    def overrides(self, mode: str, options: CompilerOptions) -> tuple[Effective, ...]:
        """What the vendor's compiler itself turns into something else than was asked."""
        return ()

    def numerics_note(self, mode: str) -> str | None:
        """What a comparison with eager does not prove here, in one sentence."""
        return None

    def recordings(self, backend: Backend) -> list[Mapping[str, Any]]:
        """What was recorded so far: `seconds`, `kernels`; where it is known `executor`, `pool_bytes`, …"""
        return [g.facts() for c in backend.compilations if c.lowered is not None for g in _recordings(c.lowered)]

    def device_memory(self) -> Mapping[str, int]:
        """What the device's allocator says so far, by the names of `Memory`: `device_peak_bytes`, …; {} where the
        device is the process's own, or says nothing."""
        return {}

    def stream_times(self, backend: Backend) -> Mapping[str, StreamTimes]:
        """{graph: how its streams run}, measured on replays of its own; {} where nobody can look into a replay."""
        return {}

    def device_facts(self, backend: Backend) -> NpuFacts | None:
        """What came out on the vendor's side, for the report; None where there is no such side."""
        return None

    def ge_facts(self, backend: Backend) -> tuple[GeFacts, ...]:
        """The graphs that were handed to GE, in the order of the FX graphs; () where nobody saw any."""
        return ()

    def device_texts(self, backend: Backend) -> Mapping[str, str]:
        """{file name: text} to lie beside the FX graphs."""
        return {}

    def decompositions(self, backend: Backend) -> Mapping[Any, Callable[..., Any]]:
        """{operator: what AOTAutograd writes in its place} before the passes see a graph of this backend."""
        if not self.fuses(backend.mode):
            return {}
        from torch._inductor.decomposition import select_decomp_table

        return select_decomp_table()

    def place(self, built: Built) -> Built:
        """The model and its inputs on this device."""
        return built

    def common_memory(self) -> Any:
        """What the recordings of all graphs of one backend compute in, taking turns; None: no graph shares with others.

        Asked for once for each backend and handed to `lower` with each of its graphs.
        """
        return None

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Dynamo's graph -> a callable. The usual way is AOTAutograd, the passes, then `lower`."""
        from npucompose.targets.aot import through_aot

        return through_aot(backend, graph_module, example_inputs)

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        """How `lower` would cut the graph, as far as the graph itself tells; None where nothing of it is recorded."""
        return None

    @abstractmethod
    def lower(self, request: LowerRequest) -> Lowered:
        """Make `request.graph_module` runnable in `request.mode`."""

    def synchronize(self) -> None:
        """Return when everything told to the device is done."""


def _recordings(lowered: Lowered) -> Sequence[Captured]:
    return lowered.recordings() if isinstance(lowered, Partitioned) else lowered.captured
