"""The compiled base classes of torch.npu's Stream, Event, ExternalEvent and NPUGraph; the classes are the wheel's.

What each method takes and gives is read from Ascend/pytorch (torch_npu/csrc/npu/Stream.cpp and Event.cpp, August 2026).
The device runs everything in one row and remembers what it was asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch

from npucompose.targets.npu_offline.simulator.device import SimulatedDevice, SimulatedEvent, SimulatedGraph
from npucompose.targets.npu_offline.simulator.lacking import refuse, refused
from npucompose.targets.npu_offline.simulator.recorder import chrome_trace

DEVICE_TYPE = 20
"""torch's number of PrivateUse1."""
_HANDLES = 0x1000
"""An address that is not zero: torch_npu prints an event whose address is zero as one that does not exist yet."""


def handle(stream: int) -> int:
    """What torch_npu gives as the address of a stream."""
    return _HANDLES + stream


class StreamBase(torch.Stream):
    """torch_npu._C._NPUStreamBase: made new, or by the three numbers of one that exists."""

    _device: ClassVar[SimulatedDevice]

    def __new__(
        cls,
        priority: int = 0,
        is_sync_launch: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> StreamBase:
        if stream_ptr:
            refuse("torch.npu.ExternalStream")
        given = stream_id or device_index or device_type
        number = stream_id if given else cls._device.new_stream()
        return super().__new__(cls, stream_id=number, device_index=device_index, device_type=DEVICE_TYPE)  # type: ignore

    @property
    def npu_stream(self) -> int:
        return handle(self.stream_id)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._device.synchronize()

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool) -> None:
        """A hint for the runtime's queue of tasks; there is none here."""

    def __enter__(self) -> StreamBase:
        self._device.enter(self.stream_id)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.leave()


class EventBase(torch.Event):
    """torch_npu._C._NPUEventBase."""

    _device: ClassVar[SimulatedDevice]
    _event: SimulatedEvent

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
        graph_external: bool = False,
    ) -> EventBase:  # fmt: skip
        if interprocess:
            refuse("torch.npu.Event(interprocess=True)")
        made = super().__new__(cls, device="cpu")
        made._event = cls._device.new_event(bool(graph_external))
        return made

    @property
    def npu_event(self) -> int:
        return _HANDLES + self._event.number

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.device("npu", 0)

    def record(self, stream: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._device.record(self._event, stream.stream_id)

    def wait(self, stream: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._device.wait(self._event, stream.stream_id)

    def reset(self, stream: Any) -> None:
        self._device.reset(self._event, stream.stream_id)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._device.synchronize()

    elapsed_time = refused("torch.npu.Event.elapsed_time")
    recorded_time = refused("torch.npu.Event.recorded_time")
    ipc_handle = refused("torch.npu.Event.ipc_handle")

    @classmethod
    def from_ipc_handle(cls, device: Any, ipc_handle: bytes) -> EventBase:
        refuse("torch.npu.Event.from_ipc_handle")


class GraphBase:
    """torch_npu._C._NPUGraph."""

    _device: ClassVar[SimulatedDevice]

    def __init__(self) -> None:
        self._recording = SimulatedGraph(self._device)

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
        Path(debug_path).write_text(json.dumps(chrome_trace(self._recording.tasks), indent=1), encoding="utf-8")

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        self._device.ledger.note("super_kernel_optimize", f"{optimize_options} {debug_options}")


def attach(device: SimulatedDevice) -> None:
    """From now on streams, events and captured graphs are this device's."""
    StreamBase._device = EventBase._device = GraphBase._device = device
