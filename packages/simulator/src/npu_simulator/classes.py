"""The compiled base classes of torch.npu's Stream, Event, ExternalEvent and NPUGraph; the classes are the wheel's.

What each method takes and gives is read from Ascend/pytorch (torch_npu/csrc/npu/Stream.cpp and Event.cpp, August 2026).
The device runs everything in one row and remembers what it was asked.
"""

from __future__ import annotations

import json
import warnings
import weakref
from pathlib import Path
from typing import Any, ClassVar

import torch

from npu_simulator.device import SimulatedDevice, SimulatedEvent
from npu_simulator.graph import SimulatedGraph
from npu_simulator.lacking import refuse, refused
from npu_simulator.recorder import chrome_trace
from npu_simulator.refusals import checks, library_error
from npu_simulator.streams import EXTERNAL, HANDLES
from npucompose.npu.capture.simulated.runtime import DEVICE_TYPE


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
        if stream_ptr and (priority or is_sync_launch):
            raise library_error("external_stream_priority" if priority else "external_stream_sync_launch")
        if stream_id or device_index or device_type:
            cls._device.pools.check(stream_id, device_index, device_type)
            number = stream_id
        elif stream_ptr:
            number = cls._device.pools.wrap(stream_ptr)
        else:
            number = cls._device.new_stream(priority, sync_launch=bool(is_sync_launch))
        return super().__new__(cls, stream_id=number, device_index=0, device_type=DEVICE_TYPE)  # type: ignore

    @property
    def npu_stream(self) -> int:
        return self._device.pools.address(self.stream_id)

    @property
    def priority(self) -> int:
        raise library_error("stream_priority")

    @staticmethod
    def priority_range() -> tuple[int, int]:
        raise library_error("priority_range")

    def query(self) -> bool:
        if self.stream_id & EXTERNAL:
            raise library_error("external_stream_query")
        self._device.synchronize("stream.query()", self.stream_id, settles=False)
        return True

    def synchronize(self) -> None:
        if self.stream_id & EXTERNAL:
            raise library_error("external_stream_synchronize")
        self._device.synchronize("stream.synchronize()", self.stream_id)

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
        made = super().__new__(cls, device="cpu")
        made._event = cls._device.new_event(bool(graph_external), shared=bool(interprocess))
        weakref.finalize(made, cls._device.runtime.forget, made._event.number)
        return made

    @property
    def npu_event(self) -> int:
        return HANDLES + self._event.number

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
        self._device.ask_event("event.query()", self._event)
        return True

    def synchronize(self) -> None:
        self._device.ask_event("event.synchronize()", self._event)
        self._device.settle()

    def elapsed_time(self, end_event: Any) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        for event in (self, end_event):
            self._device.ask_event("event.elapsed_time()", event._event)
        refuse("torch.npu.Event.elapsed_time")

    def recorded_time(self) -> int:
        self._device.ask_event("event.recorded_time()", self._event)
        refuse("torch.npu.Event.recorded_time")

    ipc_handle = refused("torch.npu.Event.ipc_handle")

    @classmethod
    def from_ipc_handle(cls, device: Any, ipc_handle: bytes) -> EventBase:
        refuse("torch.npu.Event.from_ipc_handle")


class GraphBase:
    """torch_npu._C._NPUGraph."""

    _device: ClassVar[SimulatedDevice]
    _all: ClassVar[weakref.WeakSet[GraphBase]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._recording = SimulatedGraph(self._device)
        self._all.add(self)
        weakref.finalize(self, self._recording.release)

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

    def register_generator_state(self, generator: Any) -> None:
        warnings.warn(checks().of("register_generator_state").raises, DeprecationWarning, stacklevel=2)

    def enable_debug_mode(self) -> None:
        """A device keeps more for `debug_dump`; all of it is kept here."""

    def debug_dump(self, debug_path: str) -> None:
        if not self._recording.captured:
            warnings.warn(checks().of("dump_without_capture").raises, stacklevel=3)
            return
        Path(debug_path).write_text(json.dumps(chrome_trace(self._recording.tasks), indent=1), encoding="utf-8")

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        if not self._recording.captured:
            raise library_error("optimize_without_capture")
        self._device.ledger.note("super_kernel_optimize", f"{optimize_options} {debug_options}")

    @staticmethod
    def get_currently_capturing_graph() -> Any:
        graph = GraphBase._device.capturing
        if graph is None:
            raise library_error("current_graph")
        return next(one for one in GraphBase._all if one._recording is graph)

    begin_capture_to_if_node = refused("torch.npu.NPUGraph.begin_capture_to_if_node")
    end_capture_to_conditional_node = refused("torch.npu.NPUGraph.end_capture_to_conditional_node")


def attach(device: SimulatedDevice) -> None:
    """From now on streams, events and captured graphs are this device's."""
    StreamBase._device = EventBase._device = GraphBase._device = device
