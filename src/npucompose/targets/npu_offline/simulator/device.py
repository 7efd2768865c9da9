"""The state of the one device, and what a captured graph is on the host: capture records, replay runs the record.

Streams, the capture that is open, replays that wait, a ledger of all that the device was asked.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose.targets.npu_offline.simulator.recorder import (
    HOST_EFFECTS,
    KERNEL,
    RECORD,
    WAIT,
    Order,
    RecordedCall,
    Recorder,
    enter_below,
    leave_below,
    storages,
    tensors,
)
from npucompose.targets.npu_offline.simulator.refusals import refusal
from npucompose.vendor.devices import Soc, device_of


@define(kw_only=True, eq=False)
class CallLedger:
    """`ledger.note("replay", "graph 2")` appends one line and counts one replay."""

    counts: Counter[str] = field(factory=Counter)
    lines: list[str] = field(factory=list)

    def note(self, what: str, details: str = "") -> None:
        self.counts[what] += 1
        self.lines.append(f"{what} {details}".rstrip())


CUBE, VECTOR = "cube_core_num", "vector_core_num"
"""The two kinds of core, as torch_npu's limits name them."""
RESERVED_TASKS = 32
"""A capture leaves a stream when its queue has no more room than this (hicann/runtime 681ef761, feature/aclgraph)."""


@define(kw_only=True, eq=False)
class SimulatedEvent:
    """A captured graph waits for an `external` one at every replay, until the host signals it."""

    number: int
    external: bool = False
    signalled: bool = False


class SimulatedDevice:
    """Everything that the simulator's modules share. A stream is known by its number; 0 is the default stream."""

    def __init__(self, soc: Soc | None = None) -> None:
        self.soc = soc or device_of(None)
        self.captured_streams = 0
        """What the captured graphs hold of the `soc.streams` that there are."""
        self.ledger = CallLedger()
        self.graphs: list[SimulatedGraph] = []
        """Captured graphs in order; TorchAir makes an empty one first for each FX graph, which is not among them."""
        self.capturing: SimulatedGraph | None = None
        self.ge_sessions: list[Any] = []
        self.not_written: list[str] = []
        """Files that CANN would have written."""
        self.options: dict[str, str] = {}
        """What torch_npu's Python set with `_npu_setOption`."""
        self.cores = {CUBE: self.soc.cube, VECTOR: self.soc.vector}
        """As torch_npu names the limits of a device and of a stream."""
        self._pool_numbers = itertools.count(1)
        self._stream_numbers = itertools.count(1)
        self._event_numbers = itertools.count(1)
        self._waiting: dict[int, Iterator[SimulatedEvent]] = {}
        self._limits: dict[int, dict[str, int]] = {}
        self._current = threading.local()

    def hold_streams(self, tasks: Iterable[int]) -> int:
        """How many streams a captured graph with so many tasks on each of its own holds from now on.

        One whose queue would be full goes on in a further stream (the runtime's cascade). RuntimeError where the SoC
        has no more; `captured_streams` goes down when a graph is given up.
        """
        held = sum(math.ceil(count / (self.soc.depth - RESERVED_TASKS)) for count in tasks if count)
        if self.captured_streams + held > self.soc.streams:
            raise RuntimeError(
                f"simulator: resources exhausted (207008): the captured graphs hold {self.captured_streams} streams, "
                f"this one needs {held}, and {self.soc.name} has {self.soc.streams}."
            )
        self.captured_streams += held
        return held

    def new_stream(self) -> int:
        return next(self._stream_numbers)

    def new_event(self, external: bool = False) -> SimulatedEvent:
        return SimulatedEvent(number=next(self._event_numbers), external=external)

    def new_pool(self) -> tuple[int, int]:
        """A handle as torch_npu makes them: two integers, one of them 0."""
        return (next(self._pool_numbers), 0)

    @property
    def _stack(self) -> list[int]:
        """The current streams of this thread, the innermost last."""
        if not hasattr(self._current, "streams"):
            self._current.streams = [0]
        return self._current.streams

    @property
    def current(self) -> int:
        """The number of the current stream of this thread."""
        return self._stack[-1]

    def set_stream(self, stream: int) -> None:
        self._stack[-1] = stream

    def enter(self, stream: int) -> None:
        self._stack.append(stream)

    def leave(self) -> None:
        self._stack.pop()

    def record(self, event: SimulatedEvent, stream: int) -> None:
        self.ledger.note("event_record", f"event {event.number} on stream {stream}")
        if self.capturing is not None:
            self.capturing.taped_record(event, stream)
        if event.external:
            event.signalled = True
            self.advance(self._waiting.pop(event.number, None))

    def wait(self, event: SimulatedEvent, stream: int) -> None:
        self.ledger.note("event_wait", f"event {event.number} on stream {stream}")
        if self.capturing is not None:
            self.capturing.taped_wait(event, stream)

    def reset(self, event: SimulatedEvent, stream: int) -> None:
        if self.capturing is not None:
            self.capturing.taped_reset(event, stream)
        else:
            event.signalled = False

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        """Tensor.record_stream: the memory is not given to another value before the stream is done with it."""
        line = f"record_stream of {list(tensor.shape)} on stream {stream}"
        self.ledger.note("record_stream", line)
        self.note_capture(line)

    def limits(self, stream: int) -> dict[str, int]:
        """Cores on which the stream's kernels run."""
        return dict(self._limits.get(stream, self.cores))

    def limit(self, stream: int, kind: str, value: int) -> None:
        """torch_npu's Python sets the two kinds one after the other: the ledger and a capture say where they stand."""
        limits = {**self.limits(stream), kind: value}
        if lacking := self.soc.model().lacks(limits[CUBE], limits[VECTOR]):
            raise RuntimeError(f"simulator: set_stream_limit({limits[CUBE]}, {limits[VECTOR]}): {lacking}.")
        self._limits[stream] = limits
        self._note_limit(stream, limits)

    def reset_limit(self, stream: int) -> None:
        self._limits.pop(stream, None)
        self._note_limit(stream, self.limits(stream))

    def _note_limit(self, stream: int, limits: dict[str, int]) -> None:
        begin = f"stream {stream} to"
        line = f"{begin} {limits[CUBE]} cube and {limits[VECTOR]} vector cores"
        self.ledger.note("stream_limit", line)
        if self.capturing is None:
            return
        notes = self.capturing.notes
        if notes and notes[-1].startswith(f"limit {begin} "):
            notes.pop()
        notes.append(f"limit {line}")

    def captures(self, stream: int) -> bool:
        """Whether the open capture holds the stream."""
        return self.capturing is not None and self.capturing.order.holds(stream)

    def recording_on(self, stream: int, else_refused: str) -> SimulatedGraph:
        """The capture that holds the stream, or the refusal of that rule."""
        if self.capturing is None or not self.captures(stream):
            raise refusal(else_refused, stream=stream)
        return self.capturing

    def note_capture(self, line: str) -> None:
        """What is neither a kernel nor an event, in the order of a capture."""
        if self.capturing is not None:
            self.capturing.notes.append(line)

    def advance(self, replay: Iterator[SimulatedEvent] | None) -> None:
        """Run a replay on to its end, or to an external event that nobody has signalled yet."""
        if replay is not None and (blocked := next(replay, None)) is not None:
            self._waiting[blocked.number] = replay

    def synchronize(self) -> None:
        """A replay that still waits would hang a device here."""
        if self._waiting:
            waits = ", ".join(map(str, self._waiting))
            raise RuntimeError(f"simulator: a replay waits for external event {waits}, which nobody has signalled.")


LIVE: weakref.WeakSet[SimulatedGraph] = weakref.WeakSet()
"""Graphs whose memory exists: TorchAir keeps addresses of it and asks for tensors by them (`owner_of`)."""


@frozen(kw_only=True)
class HostSignal:
    """The replay stands here until the host signals the event, or clears its signal."""

    event: SimulatedEvent
    clears: bool = False


MODES = ("global", "thread_local", "relaxed")
"""What a capture may do about calls of other threads."""


class SimulatedGraph:
    """One captured graph. TorchAir's first one for an FX graph is empty: it opens the memory pool."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.tape: list[RecordedCall | HostSignal] = []
        self.notes: list[str] = []
        """Kernels, records and waits in the order in which the device got them, a line each."""
        self.blocks: dict[int, torch.UntypedStorage] = {}
        """{address: memory that was made while capturing}."""
        self.order = Order()
        self.tasks: list[tuple[str, str | int, int]] = []
        """(kind, kernel or event, stream): `chrome_trace` takes them."""
        self.seconds = 0.0
        self.replays = 0
        self._recorder: Recorder | None = None
        self._groups: dict[int, list[RecordedCall]] = {}
        """{stream: the calls of its open task group}."""
        self._group_fault: RuntimeError | None = None
        self.pool: Any = None
        self._streams = 0

    def begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self.device.capturing is not None:
            raise RuntimeError("simulator: a capture is open already.")
        if capture_error_mode not in MODES:
            known = ", ".join(MODES)
            raise RuntimeError(f"simulator: unknown capture_error_mode {capture_error_mode!r}; there are: {known}.")
        if self.device.current == 0:
            raise RuntimeError("simulator: a capture on the default stream; torch.npu.graph takes one of its own.")
        self.order.begin(self.device.current)
        self._begun = perf_counter()
        self.pool = pool
        self.device.capturing = self
        self._recorder = Recorder(self)
        enter_below(self._recorder)

    def end(self) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        self.order.end(self.device.current)
        self.device.capturing = None
        leave_below(recorder)
        recorder.undo()
        if self._groups:
            self.reset()
            raise refusal("left_open", stream=next(iter(self._groups)))
        self.seconds = perf_counter() - self._begun
        if self.tape:
            self._streams = self.device.hold_streams(self._tasks().values())
            LIVE.add(self)
            self.device.graphs.append(self)
            self.device.ledger.note("capture", f"{self.kernels} kernels, pool {self.pool}")

    def open_group(self, stream: int) -> None:
        if stream in self._groups:
            raise refusal("begin_in_another_state", stream=stream)
        self._groups[stream] = []

    def close_group(self, stream: int) -> list[RecordedCall]:
        """The group's calls; what has broken the group is raised again."""
        if stream not in self._groups:
            raise refusal("end_without_begin", stream=stream)
        calls = self._groups.pop(stream)
        if self._group_fault is not None:
            raise self._group_fault
        return calls

    def _group(self, stream: int, what: str, kernel: RecordedCall | None = None) -> None:
        """A kernel goes into the group of its stream; while one is open nothing else may be recorded."""
        if not self._groups:
            return
        rule = "interrupted" if stream not in self._groups else "no_kernel" if kernel is None else None
        if rule is not None:
            self._group_fault = refusal(rule, stream=stream, what=what)
            raise self._group_fault
        assert kernel is not None
        self._groups[stream].append(kernel)

    def _tasks(self) -> Counter[int]:
        """{stream: kernels on it}."""
        return Counter(entry.stream for entry in self.tape if isinstance(entry, RecordedCall) and entry.computes)

    @property
    def kernels(self) -> int:
        return sum(isinstance(entry, RecordedCall) and entry.computes for entry in self.tape)

    def replay(self) -> None:
        self.device.synchronize()
        self.replays += 1
        self.device.ledger.note("replay")
        self.device.advance(self._run())

    def _run(self) -> Iterator[SimulatedEvent]:
        """Yields the event it is blocked on: TorchAir starts a replay *before* it updates the tasks' arguments."""
        for entry in self.tape:
            if isinstance(entry, RecordedCall):
                if entry.computes:
                    with torch.no_grad():
                        entry.run()
            elif entry.clears:
                entry.event.signalled = False
            elif not entry.event.signalled:
                yield entry.event

    def reset(self) -> None:
        """Give the recording up; its memory lives on in the tensors that were handed out."""
        self.tape.clear()
        self.blocks.clear()
        self.device.captured_streams -= self._streams
        self._streams = 0

    def taped_call(self, call: RecordedCall, written: Sequence[torch.Tensor]) -> None:
        self.tape.append(call)
        given = storages([*call.args])
        for storage in () if call.func._schema.is_mutable else (t.untyped_storage() for t in tensors(call.out)):
            if storage.nbytes() and storage._cdata not in given:
                self.blocks.setdefault(storage.data_ptr(), storage)
        if not call.computes:
            return
        self._group(call.stream, str(call.func), None if call.func._schema.name in HOST_EFFECTS else call)
        self.notes.append(f"{call.func} on stream {call.stream}")
        self.tasks.append((KERNEL, str(call.func), call.stream))
        made = [t for t in tensors(call.out) if t.data_ptr() not in {r.data_ptr() for r in written}]
        reads = storages([*call.args, *call.kwargs.values()])
        self.order.call(call.stream, str(call.func), reads, storages([*written, *made]))

    def taped_record(self, event: SimulatedEvent, stream: int) -> None:
        self._group(stream, "event.record")
        self.notes.append(f"record event {event.number} on stream {stream}")
        self.tasks.append((RECORD, event.number, stream))
        self.order.record(event.number, stream)

    def taped_reset(self, event: SimulatedEvent, stream: int) -> None:
        self._group(stream, "event.reset")
        self.tape.append(HostSignal(event=event, clears=True))

    def taped_wait(self, event: SimulatedEvent, stream: int) -> None:
        self._group(stream, "event.wait")
        kind = "external event" if event.external else "event"
        self.notes.append(f"wait {kind} {event.number} on stream {stream}")
        if event.external:
            self.tape.append(HostSignal(event=event))
        self.tasks.append((WAIT, event.number, stream))
        self.order.wait(event.number, stream)


def owner_of(device: SimulatedDevice, address: int) -> torch.UntypedStorage | None:
    """The memory of a recording that begins at `address`."""
    for live in LIVE:
        if address in live.blocks:
            return live.blocks[address]
    return device.capturing.blocks.get(address) if device.capturing is not None else None
