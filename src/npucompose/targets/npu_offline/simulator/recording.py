"""What a captured graph is on the host: capture records, replay runs the record into the same memory.

# Note [What NPUGraph.debug_dump writes]
Each task of a captured graph as an event of a Chrome trace.
The form is the one that the wheel's readers take (npu/_npugraph_utils.py, tools/aclgraph_check). A device also writes
how many cores a kernel takes, which nobody knows without CANN: npugraph_ex's deadlock check finds the streams and
events of the graph here, and no kernel that it would count.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen

from npucompose.targets.npu_offline.simulator.order import Order
from npucompose.targets.npu_offline.simulator.recorder import Call, Recorder, tensors

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.simulator.device import Device, Event


KERNEL, RECORD, WAIT = "KERNEL", "EVENT_RECORD", "EVENT_WAIT"


@define(kw_only=True, eq=False)
class Trace:
    """`trace.kernel("aten.mm", 1)` appends a task; a record gets a handle of its own, which the waits after it name."""

    tasks: list[dict[str, Any]] = field(factory=list)
    _handles: dict[int, int] = field(factory=dict)

    def kernel(self, name: str, stream: int) -> None:
        self._task(name, KERNEL, stream)

    def record(self, event: int, stream: int) -> None:
        self._handles[event] = len(self.tasks) + 1
        self._task(f"{RECORD}_{self._handles[event]}", RECORD, stream)

    def wait(self, event: int, stream: int) -> None:
        """An event that this graph did not record is waited for by its own number, which no record has."""
        handle = self._handles.get(event, -event)
        self._task(f"{WAIT}_{handle}" if handle > 0 else f"{WAIT}_external{event}", WAIT, stream)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.tasks, indent=1), encoding="utf-8")

    def _task(self, name: str, kind: str, stream: int) -> None:
        """Times are the order in which the device was told; a dump of a device has no others."""
        number = len(self.tasks) + 1
        args = {"Task Id": number, "Stream Id": stream, "Task Type": kind}
        self.tasks.append(
            {"name": name, "pid": "npugraph", "tid": f"stream{stream}", "ph": "X", "ts": float(number), "dur": 0.5,
             "args": args}
        )  # fmt: skip


LIVE: weakref.WeakSet[Recording] = weakref.WeakSet()
"""Graphs whose memory exists: TorchAir keeps addresses of it and asks for tensors by them (`owner_of`)."""


@frozen(kw_only=True)
class Wait:
    """The replay stands here until the host signals the event."""

    event: Event


@frozen(kw_only=True)
class Reset:
    event: Event


@frozen(kw_only=True)
class Tasks:
    """A handle of graph_task_group_end: the calls of the group, for new arguments."""

    calls: Sequence[Any]


MODES = ("global", "thread_local", "relaxed")
"""What a capture may do about calls of other threads."""


class Recording:
    """One captured graph. TorchAir's first one for an FX graph is empty: it opens the memory pool."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.tape: list[Call | Wait | Reset] = []
        self.told: list[str] = []
        """Kernels, records and waits in the order in which the device was told, a line each."""
        self.blocks: dict[int, torch.UntypedStorage] = {}
        """{address: memory that was made while capturing}."""
        self.order = Order()
        self.trace = Trace()
        self.seconds = 0.0
        self.replays = 0
        self._recorder: Recorder | None = None
        self._groups: list[int] = []
        self._pool: Any = None
        self._streams = 0

    def begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self.device.capturing is not None:
            raise RuntimeError("stand-in: a capture is open already.")
        if capture_error_mode not in MODES:
            known = ", ".join(MODES)
            raise RuntimeError(f"stand-in: unknown capture_error_mode {capture_error_mode!r}; there are: {known}.")
        if self.device.current == 0:
            raise RuntimeError("stand-in: a capture on the default stream; torch.npu.graph takes one of its own.")
        self.order.begin(self.device.current)
        self._begun = perf_counter()
        self._pool = pool
        self.device.capturing = self
        self._recorder = Recorder(self)
        self._recorder.__enter__()

    def end(self) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        self.order.end(self.device.current)
        self.device.capturing = None
        recorder.__exit__(None, None, None)
        recorder.undo()
        self.seconds = perf_counter() - self._begun
        if self.tape:
            self._streams = self.device.hold_streams(self._tasks().values())
            LIVE.add(self)
            self.device.graphs.append(self)
            self.device.ledger.note("capture", f"{self.kernels} kernels, pool {self._pool}")

    def _tasks(self) -> Counter[int]:
        """{stream: kernels on it}."""
        return Counter(entry.stream for entry in self.tape if isinstance(entry, Call) and entry.computes)

    @property
    def kernels(self) -> int:
        return sum(isinstance(entry, Call) and entry.computes for entry in self.tape)

    @property
    def pool_bytes(self) -> int:
        return sum(block.nbytes() for block in self.blocks.values())

    def replay(self) -> None:
        self.device.synchronize()
        self.replays += 1
        self.device.ledger.note("replay")
        self.device.advance(self._run())

    def _run(self) -> Iterator[Event]:
        """Yields the event it is blocked on: TorchAir starts a replay *before* it updates the tasks' arguments."""
        for entry in self.tape:
            if isinstance(entry, Wait):
                if not entry.event.signalled:
                    yield entry.event
            elif isinstance(entry, Reset):
                entry.event.signalled = False
            elif entry.computes:
                with torch.no_grad():
                    entry.run()

    def reset(self) -> None:
        """Give the recording up; its memory lives on in the tensors that were handed out."""
        self.tape.clear()
        self.blocks.clear()
        self.device.captured_streams -= self._streams
        self._streams = 0

    @property
    def pool(self) -> Any:
        return self._pool

    def taped_call(self, call: Call, written: Sequence[torch.Tensor]) -> None:
        self.tape.append(call)
        for tensor in tensors(call.out):
            storage = tensor.untyped_storage()
            if (
                storage.nbytes()
                and not call.func._schema.is_mutable
                and not any(storage._cdata == given.untyped_storage()._cdata for given in tensors([*call.args]))
            ):
                self.blocks.setdefault(storage.data_ptr(), storage)
        if not call.computes:
            return
        self.told.append(f"{call.func} on stream {call.stream}")
        self.trace.kernel(str(call.func), call.stream)
        made = [t for t in tensors(call.out) if t.data_ptr() not in {r.data_ptr() for r in written}]
        given = tensors([*call.args, *call.kwargs.values()])
        self.order.call(call.stream, str(call.func), _memory(given), _memory([*written, *made]))

    def taped_record(self, event: Event, stream: int) -> None:
        self.told.append(f"record event {event.number} on stream {stream}")
        self.trace.record(event.number, stream)
        self.order.record(event.number, stream)

    def taped_wait(self, event: Event, stream: int) -> None:
        kind = "external event" if event.external else "event"
        self.told.append(f"wait {kind} {event.number} on stream {stream}")
        if event.external:
            self.tape.append(Wait(event=event))
        self.trace.wait(event.number, stream)
        self.order.wait(event.number, stream)

    def taped_reset(self, event: Event) -> None:
        self.tape.append(Reset(event=event))

    def group_begin(self) -> None:
        self._groups.append(len(self.tape))

    def group_end(self) -> Tasks:
        return Tasks(calls=self.tape[self._groups.pop() :])


def owner_of(device: Device, address: int) -> torch.UntypedStorage | None:
    """The memory of a recording that begins at `address`."""
    for live in LIVE:
        if address in live.blocks:
            return live.blocks[address]
    return device.capturing.blocks.get(address) if device.capturing is not None else None


def _memory(found: Sequence[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in found}
