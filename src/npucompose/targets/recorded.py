"""Targets whose graphs the installed recorder records and replays; without one a graph runs as the passes left it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from attrs import evolve, frozen

from npucompose import recorder
from npucompose.errors import ConfigError
from npucompose.recorder import Lowered, LowerRequest
from npucompose.targets.base import TORCH_COMPILE, ModeSupport, Target

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import PlannedRecording
    from npucompose.results.graphs import Partition
    from npucompose.results.streams import StreamTimes, Timeline
    from npucompose.targets.backend import Backend
    from npucompose.targets.compilation import Compilation


class DeviceRecorder(Protocol):
    """What records for one target, whose options it reads; asked for when a graph is compiled, never in a call."""

    loaded: ClassVar[tuple[str, ...]]
    """Modules that a fork server loads before it forks workers."""

    @property
    def replayer(self) -> str:
        """What replays here: a part of the key of a result."""
        ...

    def capabilities(self, mode: str) -> Mapping[str, Any]:
        """What passes may know of recordings: fields of `Capabilities`."""
        ...

    def check(self, mode: str) -> None:
        """Raise ConfigError where what the target's options ask for cannot be had here."""
        ...

    def warnings(self, mode: str) -> tuple[str, ...]: ...

    def start_build(self, mode: str) -> None: ...

    def finish_build(self, mode: str) -> None: ...

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Dynamo's graph -> a callable, through AOTAutograd and `lower`, or through Inductor in a mode that fuses."""
        ...

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None: ...

    def lower(self, request: LowerRequest) -> Lowered: ...

    def common_memory(self) -> Any: ...

    def partition(self, graph_module: fx.GraphModule) -> Partition: ...

    def planned(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None: ...

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]: ...

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]: ...


@frozen(kw_only=True)
class RecordedTarget(Target):
    """Hands each question about recordings to `recording`; each method is described in targets/base.py."""

    previews_npu: ClassVar[bool] = True
    runs_plain: ClassVar[bool] = True

    @property
    def recording(self) -> DeviceRecorder | None:
        """None where no recorder is installed."""
        found = recorder.installed()
        return None if found is None else cast("DeviceRecorder", found.device(self))

    @property
    def loaded(self) -> tuple[str, ...]:
        return TORCH_COMPILE if (found := self.recording) is None else (*TORCH_COMPILE, *found.loaded)

    def sources(self) -> tuple[str, ...]:
        found = recorder.installed()
        return () if found is None else (type(found).__module__.partition(".")[0],)

    def support(self, mode: str) -> ModeSupport:
        can = super().support(mode)
        if recorder.installed() is not None:
            return can
        return evolve(can, options=frozenset(), captures=False, fuses=False, replays_fused=False)

    def leaves_as_passed(self, mode: str) -> bool:
        return super().leaves_as_passed(mode) or recorder.installed() is None

    def check_recording(self, mode: str) -> None:
        """ConfigError where what the options ask of the recorder cannot be had here."""
        if (found := self.recording) is not None:
            found.check(mode)

    def warnings(self, mode: str) -> tuple[str, ...]:
        if (found := self.recording) is not None:
            return found.warnings(mode)
        words = f"target={self.name} runs the graph as the passes left it: {recorder.MISSING}."
        return (words,) if self.support(mode).compiles else ()

    def start_build(self, mode: str) -> None:
        if (found := self.recording) is not None:
            found.start_build(mode)

    def finish_build(self, mode: str) -> None:
        if (found := self.recording) is not None:
            found.finish_build(mode)

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        if (found := self.recording) is not None:
            return found.compile(backend, graph_module, example_inputs)
        from npucompose.targets.compilers import through_aot

        return through_aot(backend, graph_module, example_inputs)

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        found = self.recording
        return None if found is None else found.restored(backend, graph_module, example_inputs, code)

    def lower(self, request: LowerRequest) -> Lowered:
        if (found := self.recording) is None:
            raise ConfigError(f"target={self.name} lowers no graph: {recorder.MISSING}.")
        return found.lower(request)

    def common_memory(self) -> Any:
        return None if (found := self.recording) is None else found.common_memory()

    def partition(self, mode: str, graph_module: fx.GraphModule) -> Partition | None:
        found = self.recording if self.support(mode).captures else None
        return None if found is None else found.partition(graph_module)

    def planned(self, mode: str, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None:
        found = self.recording if self.support(mode).captures else None
        return None if found is None else found.planned(graph_module, inputs)

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]:
        return {} if (found := self.recording) is None else found.stream_times(graphs)

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]:
        return {} if (found := self.recording) is None else found.kernel_clocks(graphs)
