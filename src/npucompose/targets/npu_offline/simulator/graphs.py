"""The compiled base class of torch.npu.NPUGraph and the functions of its tasks; class and checks are the wheel's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from npucompose.targets.npu_offline.simulator.recorder import Updater
from npucompose.targets.npu_offline.simulator.recording import Recording, Tasks

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.simulator.device import Device


class GraphBase:
    """torch_npu._C._NPUGraph."""

    _device: ClassVar[Device]

    def __init__(self) -> None:
        self._recording = Recording(self._device)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", report_shape: bool = False) -> None:
        self._recording.begin(pool, capture_error_mode)

    def capture_end(self) -> None:
        self._recording.end()

    def replay(self) -> None:
        self._recording.replay()

    def reset(self) -> None:
        self._recording.reset()

    def pool(self) -> Any:
        return self._recording.pool

    def debug_dump(self, debug_path: str) -> None:
        self._recording.trace.write(Path(debug_path))

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        self._device.ledger.note("super_kernel_optimize", f"{optimize_options} {debug_options}")


class TaskGroups:
    """torch_npu._C._graph_task_*: the calls between begin and end are a group that gets new arguments later."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._updating: list[Updater] = []

    def begin(self, stream: Any) -> None:
        self._open("graph_task_group_begin").group_begin()

    def end(self, stream: Any) -> Tasks:
        tasks = self._open("graph_task_group_end").group_end()
        self._device.ledger.note("task_group")
        return tasks

    def update_begin(self, stream: Any, handle: Tasks) -> None:
        updater = Updater(handle.calls)
        updater.__enter__()
        self._updating.append(updater)

    def update_end(self, stream: Any) -> None:
        updater = self._updating.pop()
        updater.__exit__(None, None, None)
        self._device.ledger.note("task_update", f"{updater.updated} calls")

    def _open(self, asked: str) -> Recording:
        if self._device.capturing is None:
            raise RuntimeError(f"stand-in: {asked} outside a capture.")
        return self._device.capturing


def attach(device: Device) -> None:
    """From now on captured graphs are this device's."""
    GraphBase._device = device
