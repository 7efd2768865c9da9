"""What the core asks of recordings: `RECORDER` is registered as `replay` in `npucompose.recorders`. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npucompose.targets.cpu import CpuTarget
from npucompose.targets.cuda import CudaTarget
from npucompose_replay.devices.base import TargetRecorder
from npucompose_replay.devices.cpu import CpuRecorder
from npucompose_replay.devices.cuda import CudaRecorder

if TYPE_CHECKING:
    from npucompose.errors import CaptureError
    from npucompose.recorder import FrozenWeights, Handle, Outputs, PlannedRecording
    from npucompose.schema.cost_table import CostTable
    from npucompose.targets.base import Target


class Replay:
    """A `npucompose.recorder.Recorder`, where each method is described."""

    def device(self, target: Target) -> TargetRecorder:
        if isinstance(target, CpuTarget):
            return CpuRecorder(target)
        return CudaRecorder(target) if isinstance(target, CudaTarget) else TargetRecorder(target)

    def frozen_weights(self, policy: str, *, shared: bool = False) -> FrozenWeights:
        from npucompose_replay.inductor import frozen_weights

        return frozen_weights.FrozenWeights(policy, shared=shared)

    def freezing_while_tracing(self, compiled: Callable[..., Any], weights: Any) -> Callable[..., Any]:
        from npucompose_replay.inductor.freezing import freezing_while_tracing

        return freezing_while_tracing(compiled, weights)

    def detach_call(
        self,
        call: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        model: Callable[..., Any] | None = None,
        outputs: Outputs = "reuse",
    ) -> Handle:
        from npucompose_replay.front import detached

        return detached.detach_call(call, args, kwargs, **_watching(model, outputs))

    def call_and_detach(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        model: Callable[..., Any] | None = None,
        outputs: Outputs = "reuse",
    ) -> tuple[Any, Handle | CaptureError]:
        from npucompose_replay.front import detached

        return detached.call_and_detach(run, args, kwargs, **_watching(model, outputs))

    def recapturing(
        self, compiled: Callable[..., Any], *, model: Callable[..., Any], outputs: Outputs = "reuse"
    ) -> Callable[..., Any]:
        from npucompose_replay.front import detached

        return detached.Recapturing(compiled, **_watching(model, outputs))

    def is_watched(self) -> bool:
        from npucompose_replay.interface import is_watched

        return is_watched()

    def held_bytes(self, recordings: Sequence[PlannedRecording], *, shared: bool) -> int:
        from npucompose_replay.memory.forecast import held_bytes

        return held_bytes(recordings, shared=shared)

    def native_replayer(self) -> str:
        from npucompose_replay.executor import build

        found = build.state()
        return f"{found.kind}: {found.words}"

    def kernel_times(self) -> Sequence[CostTable]:
        from npucompose_replay.executor import tables

        return tables.kept()

    def calibrate(self) -> bool:
        from npucompose_replay.executor.calibration import calibrate_again

        return bool(calibrate_again())


def _watching(model: Callable[..., Any] | None, outputs: Outputs) -> Mapping[str, Any]:
    from npucompose_replay.front.detached import modules_of

    return {"modules": () if model is None else modules_of(model), "outputs": outputs}


RECORDER = Replay()
