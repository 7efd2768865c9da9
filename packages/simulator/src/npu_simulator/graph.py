"""What a captured graph is on the host: the capture records, a replay runs the record."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Literal

import torch
from attrs import frozen
from torch.utils._python_dispatch import _disable_current_modes

from npu_simulator.device import SimulatedDevice, SimulatedEvent
from npu_simulator.randomness import CapturedRandomness
from npu_simulator.recorder import (
    HOST_EFFECTS,
    KERNEL,
    RECORD,
    WAIT,
    MemoryBefore,
    RecordedCall,
    storages,
    tensors,
)
from npu_simulator.refusals import library_error, runtime_error
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.rules import CAPTURE_MODES, rules
from npucompose.npu.capture.simulated.memory import CaptureMemory
from npucompose.races import RaceFinder

LIVE: weakref.WeakSet[SimulatedGraph] = weakref.WeakSet()
"""Graphs whose memory exists: TorchAir keeps addresses of it and asks for tensors by them (`owner_of`)."""


@frozen(kw_only=True)
class HostSignal:
    """The replay waits here until the event is signalled, or signals it, or clears its signal."""

    event: SimulatedEvent
    act: Literal["wait", "set", "clear"] = "wait"


@frozen(kw_only=True)
class HostCall:
    """The replay calls a function of the host here."""

    function: Callable[[Any], Any]
    data: Any

    def run(self) -> None:
        self.function(self.data)


class SimulatedGraph:
    """One captured graph. TorchAir's first one for an FX graph is empty: it opens the memory pool."""

    randomness: CapturedRandomness
    _memory: MemoryBefore
    _touched: CaptureMemory

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.tape: list[Any] = []
        """What a replay does, in order: recorded calls, signals, functions of the host, states of random numbers."""
        self.notes: list[str] = []
        """Kernels, records and waits in the order in which the device got them, a line each."""
        self.outside: list[str] = []
        """What was called during the capture and is in no replay, a sentence each."""
        self.blocks: dict[int, torch.UntypedStorage] = {}
        """{address: memory that was made while capturing}."""
        self.order = RaceFinder()
        """Its calls, and which of them nothing orders: two streams run at the same time, here everything in one row."""
        self.tasks: list[tuple[str, str | int, int]] = []
        """(kind, kernel or event, stream): `chrome_trace` takes them."""
        self.groups: dict[int, list[RecordedCall]] = {}
        """{stream: the calls of the task group that is open there}."""
        self.group_fault: RuntimeError | None = None
        """What was recorded in a task group and cannot be there."""
        self.seconds = 0.0
        self.replays = 0
        self.captured = False
        """It has been captured, and not been reset."""
        self._pool: tuple[int, int] = (0, 0)
        self._stream = device.current
        self._streams = 0

    @property
    def pool(self) -> tuple[int, int]:
        if not self.captured:
            raise library_error("pool_without_capture")
        return self._pool

    def begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """In the order in which torch_npu looks at it (NPUGraph::capture_begin)."""
        if capture_error_mode not in CAPTURE_MODES:
            raise library_error("capture_error_mode", mode=capture_error_mode)
        if self.device.task_queue == 2:
            self.device.refuse("task_queue", "a capture begins")
        if self.captured:
            raise library_error("second_capture")
        self.device.pools.own(self.device.current, "NPUGraph::capture_begin")
        if self.device.current == 0:
            raise library_error("capture_on_default_stream")
        first, second = pool or (0, 0)
        if first and second:
            raise library_error("pool_of_two_kinds")
        self._pool = (first, second) if first or second else self.device.new_pool(of_a_graph=True)
        self.order = self.device.begin(self, capture_error_mode)
        self._stream = self.device.current
        self._memory, self.randomness = MemoryBefore(), CapturedRandomness()
        self._touched = CaptureMemory(self.device.places.on_host)
        self._begun = perf_counter()

    def end(self) -> None:
        self.device.pools.own(self.device.current, "NPUGraph::capture_end")
        if self.device.current != self._stream:
            raise runtime_error(rules().of("unmatched_end"), "capture_end()", model_line())
        if self.device.open.get(self._stream) is not self:
            self._end_anothers()
        try:
            self.device.end(self)
            self._streams = self.device.hold_streams(self._tasks().values())
        except RuntimeError:
            self._forget()
            raise
        finally:
            with _disable_current_modes():
                self._memory.undo()
                self.randomness.undo()
        self.seconds = perf_counter() - self._begun
        self.captured = True
        if self.tape:
            LIVE.add(self)
            self.device.graphs.append(self)
            self.device.ledger.note("capture", f"{self.kernels} kernels, pool {self._pool}")

    def _end_anothers(self) -> None:
        """The runtime is asked first, by the stream, and its answer is not raised (NPUGraph.cpp:355 to 369)."""
        another = self.device.open.get(self._stream)
        try:
            if another is None:
                self.device.runtime.end(self._stream, model_line())
            else:
                another.end()
        except RuntimeError as error:
            raise library_error("end_without_begin") from error
        raise library_error("end_without_begin")

    def _tasks(self) -> Counter[int]:
        """{stream: kernels on it}."""
        return Counter(entry.stream for entry in self.tape if isinstance(entry, RecordedCall) and entry.computes)

    @property
    def kernels(self) -> int:
        return sum(isinstance(entry, RecordedCall) and entry.computes for entry in self.tape)

    def replay(self) -> None:
        if not self.captured:
            raise library_error("replay_without_capture")
        if self.device.capturing is not None:
            if self.randomness.drawn:
                raise library_error("replay_while_capturing")
            self.device.refuse("nested_replay", "replay()")
        self.device.settle()
        self.replays += 1
        self.device.ledger.note("replay")
        self.device.advance(self._run())

    def _run(self) -> Iterator[SimulatedEvent]:
        """Yields the event it is blocked on: TorchAir starts a replay *before* it updates the tasks' arguments."""
        self.randomness.begin.run()
        for entry in self.tape:
            if isinstance(entry, RecordedCall) and not entry.computes:
                continue
            if not isinstance(entry, HostSignal):
                with torch.no_grad():
                    entry.run()
            elif entry.act == "set":
                self.device.signal(entry.event)
            elif entry.act == "clear":
                entry.event.signalled = False
            elif not entry.event.signalled:
                yield entry.event

    def reset(self) -> None:
        """Give the recording up; its memory lives on in the tensors that were handed out."""
        self._forget()
        self.release()
        self.captured = False

    def release(self) -> None:
        """Its streams are the device's again."""
        self.device.captured_streams -= self._streams
        self._streams = 0

    def _forget(self) -> None:
        self.tape.clear()
        self.blocks.clear()

    # What the device puts on the tape.

    def keep(self, storage: torch.UntypedStorage) -> None:
        """It is about to be written; what is not this capture's own is as before when it is over."""
        if storage.data_ptr() not in self.blocks:
            self._memory.keep(storage)

    def taped(self, entry: Any) -> None:
        self.tape.append(entry)

    def taped_call(self, call: RecordedCall) -> None:
        self.tape.append(call)
        given = storages([*call.args])
        for storage in () if call.func._schema.is_mutable else (t.untyped_storage() for t in tensors(call.out)):
            if storage.nbytes() and storage._cdata not in given:
                self.blocks.setdefault(storage.data_ptr(), storage)
        if not call.computes:
            return
        touches = self._touched.touches(call.func, call.args, call.kwargs, call.out, call.stream)
        self.device.launched(str(call.func), touches)
        if call.func._schema.name in HOST_EFFECTS:
            self._no_kernel(str(call.func), call.stream)
        elif call.stream in self.groups:
            self.groups[call.stream].append(call)
        self.notes.append(f"{call.func} on stream {call.stream}")
        self.tasks.append((KERNEL, str(call.func), call.stream))

    def _no_kernel(self, what: str, stream: int) -> None:
        if stream in self.groups:
            self.group_fault = library_error("group_without_kernel", what=what)
            raise self.group_fault

    def taped_reset(self, event: SimulatedEvent, stream: int) -> None:
        self._no_kernel("event.reset()", stream)
        self.taped(HostSignal(event=event, act="clear"))

    def taped_host_call(self, function: Callable[[Any], Any], data: Any, stream: int) -> None:
        self._no_kernel("a function of the host", stream)
        self.notes.append(f"host function on stream {stream}")
        self.taped(HostCall(function=function, data=data))

    def taped_record(self, event: SimulatedEvent, stream: int) -> None:
        self._no_kernel("event.record()", stream)
        self.notes.append(f"record event {event.number} on stream {stream}")
        if event.external:
            self.taped(HostSignal(event=event, act="set"))
        self.tasks.append((RECORD, event.number, stream))

    def taped_wait(self, event: SimulatedEvent, stream: int) -> None:
        self._no_kernel("event.wait()", stream)
        kind = "external event" if event.external else "event"
        self.notes.append(f"wait {kind} {event.number} on stream {stream}")
        if event.external:
            self.taped(HostSignal(event=event))
        self.tasks.append((WAIT, event.number, stream))


def owner_of(device: SimulatedDevice, address: int) -> torch.UntypedStorage | None:
    """The memory of a recording that begins at `address`."""
    for live in (*LIVE, *device.open.values()):
        if address in live.blocks:
            return live.blocks[address]
    return None
