"""A device as a few calls. Importing this or a target's file loads no torch and no vendor package.

Where a target has nothing to say, the base class answers. What only a vendor's compiler can do is a protocol each
(targets/vendor_compiled.py): who wants it asks `isinstance(target, …)`, never for a name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose.recorder import Lowered, LowerRequest
from npucompose.schema.capabilities import Capabilities
from npucompose.table.modes import MODES
from npucompose.table.options import option
from npucompose.vendor.devices import ATLAS_A2, STREAMS, DeviceModel, soc_of

if TYPE_CHECKING:
    from torch import fx

    from npucompose.models.base import Built, Inputs
    from npucompose.recorder import PlannedRecording
    from npucompose.results.graphs import Partition
    from npucompose.results.streams import StreamTimes, Timeline
    from npucompose.targets.compilation import Compilation

TORCH_COMPILE = ("torch", "torch._dynamo", "torch._functorch.aot_autograd", "npucompose.targets.compilers")
"""What torch.compile needs with a backend of ours: two seconds of imports."""

OWN_PROCESS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Keeps `import torch` from importing torch_npu, which raises where the wheel is installed and CANN is not."""


@frozen(kw_only=True, eq=False)
class VendorCompiler:
    """The objects of the vendor's own compiler that an experiment became."""

    config: Any
    """torchair.CompilerConfig or npugraph_ex.CompilerConfig, every requested leaf set and no other touched."""
    backend: Callable[..., Callable[..., Any]]
    """What `torch.compile(backend=…)` takes."""
    options: Mapping[str, Any] | None = None
    """npugraph_ex only: what `torch.compile(backend="npugraph_ex", options=…)` takes."""
    runs: Callable[[], int] | None = None
    """How often graphs that it took have run in this process; None where it does not say."""


@frozen(kw_only=True)
class Folders:
    """Where a vendor's compiler may write; None leaves it where it writes by itself."""

    files: Path | None = None
    """What it writes for a person: dumps, summaries, exported graphs."""
    cache: Path | None = None
    """What it keeps for a later process."""
    profile: Path | None = None
    """Where traces of profiled calls go."""


NO_FOLDERS = Folders()


@frozen(kw_only=True)
class Profiler:
    """What watches the calls of a device."""

    module: Any
    """torch.profiler, or a vendor's module of the same interface: `profile`, `schedule`, `ProfilerActivity`."""
    activities: tuple[str, ...] = ("CPU",)
    """Names of ProfilerActivity."""


@frozen(kw_only=True)
class ModeSupport:
    """What a target can do in one mode."""

    options: frozenset[str] = frozenset()
    """Dotted paths of the compiler options (CompilerOptions) that act."""
    compiles: bool = True
    """The model does not run as it is."""
    captures: bool = False
    """Kernels are recorded and replayed."""
    fuses: bool = False
    """Inductor makes the kernels, so that the options of `inductor` act."""
    replays_fused: bool = False
    """Those kernels can be recorded and replayed (`inductor.replay`)."""
    trains: bool = False
    """Gradients flow through what is compiled."""
    caches: bool = False
    """A later process can load what this one compiles (`CachesGraphs`)."""
    exports: bool = False
    """The graph can be written for offline use instead of being run (`ExportsGraphs`)."""
    numerics_note: str | None = None
    """What a comparison with eager does not prove here, in one sentence."""


NO_SUPPORT = ModeSupport()


def simulated_model(soc: str | None) -> DeviceModel:
    """What plans for an NPU are simulated on: the SoC that is asked about, else an Atlas A2."""
    found = soc_of(soc)
    return ATLAS_A2 if found is None else found.model()


def streams_of(soc: str | None) -> int:
    """How many streams a process can have on the SoC that is asked about, else on any device."""
    found = soc_of(soc)
    return STREAMS if found is None else found.streams


class OptionalMethods:
    """What only some targets do, or have to say. A target that has nothing of it leaves these answers: none."""

    def warnings(self, mode: str) -> tuple[str, ...]:
        """What a person should know before it runs, a line each."""
        return ()

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        """How to tell the device's compiler which sizes a dimension may have; None where a mode takes none."""
        return None

    def common_memory(self) -> Any:
        """What the recordings of all graphs of one backend compute in, taking turns; None: no graph shares with others.

        Asked for once for each backend and handed to `lower` with each of its graphs.
        """
        return None

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        """How `lower` would cut the graph, as far as the graph itself tells; None where nothing of it is recorded."""
        return None

    def planned(self, mode: str, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None:
        """The memory of the recording that a call with these real inputs would be given, which is not made; None where
        the target makes none whose memory is planned. CaptureError for a graph that no one recording holds."""
        return None

    def synchronize(self) -> None:
        """Return when everything that the device was asked for is done."""

    def recordings(self, mode: str, graphs: Sequence[Compilation]) -> list[Mapping[str, Any]]:
        """What was recorded so far of these graphs: `seconds`, `kernels`; where known `executor`, `pool_bytes`, …"""
        return [one.facts() for graph in graphs if graph.lowered is not None for one in graph.lowered.captured]

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]:
        """{graph: how its streams run}, measured on replays of its own."""
        return {}

    def profiler(self) -> Profiler:
        """What records the calls of `benchmark.profile`; asked on targets that measure."""
        import torch.profiler

        return Profiler(module=torch.profiler)

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]:
        """{graph: replays it once, on memory of its own, and says when each kernel ran}, of the graphs whose kernels
        the profiler does not see because no dispatcher starts them."""
        return {}

    def device_memory(self) -> Mapping[str, int]:
        """What the device's allocator says so far, by the names of `Memory`: `device_peak_bytes`, …; {} where the
        device is the process's own, or says nothing."""
        return {}


@frozen(kw_only=True)
class Target(OptionalMethods, ABC):
    """A device; its fields are its options. What only a vendor's compiler can do: the protocols below."""

    name: ClassVar[str]
    modes: ClassVar[Mapping[str, ModeSupport]]
    """{mode that this target can run: what it can do in it}."""
    measures: ClassVar[bool] = True
    """Whether a time taken here means anything."""
    executes: ClassVar[bool] = True
    """Whether results come out that can be compared with eager."""
    detaches: ClassVar[bool] = True
    """Whether a recording can be replayed without torch.compile around it."""

    follows_inputs: ClassVar[bool] = False
    """Whether a replay finds an input at another address without a copy of it."""
    without_device: ClassVar[str | None] = None
    """The target that compiles the same on a machine that has no such device; None where there is none."""

    runs_plain: ClassVar[bool] = False
    """Whether a graph can be called as the passes left it, in a mode that neither records nor fuses."""

    previews_npu: ClassVar[bool] = False
    """Whether people try here what is to run on an NPU, and are told what an NPU would refuse."""

    modes_share_a_process: ClassVar[bool] = True
    """Whether a model can be compiled in one mode and then in another."""

    soc: str | None = option(
        None,
        "the chip that the predictions are for (`npucompose list socs`): Ascend910B4, or a family such as ascend910b",
    )

    device_variable: ClassVar[str | None] = None
    """The environment variable that says which devices a process may see; None where there is but one."""

    @property
    def loaded(self) -> tuple[str, ...]:
        """Modules that a fork server loads before it forks workers for this target; no device is touched by that."""
        return ("torch",)

    @property
    def device_index(self) -> int:
        """Which of several devices."""
        return 0

    @abstractmethod
    def capabilities(self, mode: str) -> Capabilities:
        """What a pass may know of the device."""

    def support(self, mode: str) -> ModeSupport:
        """What `modes` says of a mode; one that cannot run here can do nothing."""
        return self.modes.get(mode, NO_SUPPORT)

    def check(self, mode: str) -> None:
        """Raise ConfigError when this machine, or this target, cannot run `mode`. Runs nothing on the device."""
        if mode not in self.modes and not (self.runs_plain and MODES.get(mode).is_plain):
            raise ConfigError(
                f"mode={mode} cannot run on target={self.name}. Modes of this target: {', '.join(self.modes)}."
            )

    def leaves_as_passed(self, mode: str) -> bool:
        """Whether a graph is called as the passes left it: in a plain mode, of which `check` lets no other pass."""
        return mode not in self.modes

    def sources(self) -> tuple[str, ...]:
        """Installed packages beside its own whose code decides what a run gives, by the names they are imported by."""
        return ()

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What of the device belongs to the key of a result, e.g. {"cpu": "…model name…"}. Loads no torch."""

    def environment(self) -> Mapping[str, str]:
        """Environment variables that a worker needs before torch is imported."""
        return OWN_PROCESS

    def prepare(self, mode: str) -> None:
        """Load what the device needs in this process; called before anything else that needs torch."""

    def start_build(self, mode: str) -> None:
        """Begin to build what graphs need that this machine lacks, in a thread: the model is traced meanwhile."""

    def finish_build(self, mode: str) -> None:
        """Return when that is built and loaded; called before the passes of a graph that will be lowered, so that no
        time taken of it is the build's. CaptureError where it failed and nothing else will do."""

    def why_idle(self, option: str, mode: str) -> str | None:
        """Why an option has no effect here, where there is more to say than that this target has no such thing."""
        return None

    def place(self, built: Built) -> Built:
        """The model and its inputs on this device."""
        return built

    @abstractmethod
    def lower(self, request: LowerRequest) -> Lowered:
        """Make `request.graph_module` runnable in `request.mode`."""


def placed_on(built: Built, device: Any) -> Built:
    """The model and its inputs on a device that torch knows."""
    from npucompose.models.inputs import mapped

    def moved(step: int) -> Inputs:
        return mapped(dict(built.inputs(step)), lambda tensor: tensor.to(device))

    return evolve(built, module=built.module.to(device), inputs=moved)


def check_stages(target: Target, stages: Sequence[str]) -> None:
    """Raise ConfigError when one of these stages has no meaning on a target that executes nothing."""
    beyond = [stage for stage in stages if stage not in ("compile", "capture")]
    if beyond and not target.executes:
        raise ConfigError(
            f"target={target.name} executes nothing: {', '.join(beyond)} cannot run. Add pipeline=compile_only."
        )


class Restored(Protocol):
    """A graph of which an earlier process kept a recording, which is called in its place."""

    hits: int
    """Calls that the recording answered."""

    def full(self) -> Any:
        """Compile it as if nothing had been kept."""
        ...
