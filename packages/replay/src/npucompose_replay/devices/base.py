"""What recorders of devices share. Importing this, or a recorder's file, loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

if TYPE_CHECKING:
    from torch import fx

    from npucompose.recorder import PlannedRecording
    from npucompose.results.graphs import Partition
    from npucompose.results.streams import StreamTimes, Timeline
    from npucompose.targets.backend import Backend
    from npucompose.targets.base import Target
    from npucompose.targets.compilation import Compilation


@frozen
class TargetRecorder:
    """What compiles for a target without recordings of its own; a `targets.recorded.DeviceRecorder` adds `lower`."""

    loaded: ClassVar[tuple[str, ...]] = ()

    target: Target

    @property
    def replayer(self) -> str:
        return ""

    def capabilities(self, mode: str) -> Mapping[str, Any]:
        return {}

    def check(self, mode: str) -> None:
        """Nothing is asked for."""

    def warnings(self, mode: str) -> tuple[str, ...]:
        return ()

    def start_build(self, mode: str) -> None:
        """Nothing is built."""

    def finish_build(self, mode: str) -> None:
        """Nothing is built."""

    def compile(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        if not self.target.support(backend.mode).fuses:
            from npucompose.targets.compilers import through_aot

            return through_aot(backend, graph_module, example_inputs)
        return self.through_inductor(backend, graph_module, example_inputs)

    def through_inductor(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        from npucompose_replay.inductor import through as inductor

        return inductor.through_inductor(backend, graph_module, example_inputs)

    def restored(
        self, backend: Backend, graph_module: fx.GraphModule, example_inputs: Sequence[Any], code: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        return None

    def common_memory(self) -> Any:
        return None

    def partition(self, graph_module: fx.GraphModule) -> Partition:
        from npucompose_replay.front.segments import planned

        return planned(graph_module, self.target.name)

    def planned(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> PlannedRecording | None:
        return None

    def stream_times(self, graphs: Sequence[Compilation]) -> Mapping[str, StreamTimes]:
        return {}

    def kernel_clocks(self, graphs: Sequence[Compilation]) -> Mapping[str, Callable[[], Timeline]]:
        return {}
