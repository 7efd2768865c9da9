"""torch.npu.NPUGraph and torch.npu.graph on the host: capture records, replay runs the record into the same memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen

from npucompose.targets.npu_offline.standin.order import Order
from npucompose.targets.npu_offline.standin.recorder import Call, Recorder, Updater, tensors
from npucompose.targets.npu_offline.standin.streams import Event, ExternalEvent, Stream

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.standin.device import Device

LIVE: weakref.WeakSet[NPUGraph] = weakref.WeakSet()
"""Graphs whose memory exists: TorchAir keeps addresses of it and asks for tensors by them (`owner_of`)."""


@frozen(kw_only=True)
class Wait:
    """The replay stands here until the host signals the event."""

    event: ExternalEvent


@frozen(kw_only=True)
class Reset:
    event: ExternalEvent


@frozen(kw_only=True)
class Tasks:
    """A handle of graph_task_group_end: the calls of the group, for new arguments."""

    calls: Sequence[Any]


class NPUGraph:
    """A recording. The first one that TorchAir makes for an FX graph is empty: it only opens the memory pool."""

    device: Device

    def __init__(self, keep_graph: bool = False) -> None:
        self.tape: list[Call | Wait | Reset] = []
        self.told: list[str] = []
        """Kernels, records and waits in the order in which the device was told, a line each."""
        self.blocks: dict[int, torch.UntypedStorage] = {}
        """{address: memory that was made while capturing}."""
        self.order = Order()
        self.seconds = 0.0
        self.replays = 0
        self._recorder: Recorder | None = None
        self._groups: list[int] = []
        self._pool: Any = None
        self._streams = 0

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self.device.capturing is not None:
            raise RuntimeError("stand-in: a capture is open already.")
        self._begun = perf_counter()
        self._pool = pool
        self.device.capturing = self
        self._recorder = Recorder(self)
        self._recorder.__enter__()

    def capture_end(self) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
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

    def _run(self) -> Iterator[ExternalEvent]:
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

    def pool(self) -> Any:
        return self._pool

    def debug_dump(self, path: str, *_: Any) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.told))

    def super_kernel_optimize(self, optimize_options: Any = None, debug_options: Any = None) -> None:
        self.device.ledger.note("super_kernel_optimize", f"{optimize_options} {debug_options}")

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
        made = [t for t in tensors(call.out) if t.data_ptr() not in {r.data_ptr() for r in written}]
        given = tensors([*call.args, *call.kwargs.values()])
        self.order.call(call.stream, str(call.func), _memory(given), _memory([*written, *made]))

    def taped_record(self, event: Event, stream: Stream) -> None:
        self.told.append(f"record event {event.number} on stream {stream.stream_id}")
        self.order.record(event.number, stream.stream_id)

    def taped_wait(self, event: Event, stream: Stream) -> None:
        kind = "external event" if isinstance(event, ExternalEvent) else "event"
        self.told.append(f"wait {kind} {event.number} on stream {stream.stream_id}")
        if isinstance(event, ExternalEvent):
            self.tape.append(Wait(event=event))
        self.order.wait(event.number, stream.stream_id)

    def taped_reset(self, event: ExternalEvent) -> None:
        self.tape.append(Reset(event=event))

    def group_begin(self) -> None:
        self._groups.append(len(self.tape))

    def group_end(self) -> Tasks:
        return Tasks(calls=self.tape[self._groups.pop() :])


class graph:
    """torch.npu.graph: a capture as a context; an empty one leaves no recording."""

    device: Device

    def __init__(
        self, npu_graph: NPUGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global", **_: Any
    ) -> None:
        self._graph, self._pool, self._mode = npu_graph, pool, capture_error_mode
        # TorchAir's cache info holds the text "torch.npu.Stream()" until its generated code is run.
        self._stream = Stream() if isinstance(stream, str) else stream

    def __enter__(self) -> None:
        self.device.enter(self._stream or Stream())
        self._graph.capture_begin(self._pool, self._mode)

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()
        self.device.leave()


def task_group_begin(stream: Stream) -> None:
    graph = NPUGraph.device.capturing
    if graph is None:
        raise RuntimeError("stand-in: graph_task_group_begin outside a capture.")
    graph.group_begin()


def task_group_end(stream: Stream) -> Tasks:
    graph = NPUGraph.device.capturing
    if graph is None:
        raise RuntimeError("stand-in: graph_task_group_end outside a capture.")
    graph.device.ledger.note("task_group")
    return graph.group_end()


_UPDATING: list[Updater] = []


def task_update_begin(stream: Stream, handle: Tasks) -> None:
    updater = Updater(handle.calls)
    updater.__enter__()
    _UPDATING.append(updater)


def task_update_end(stream: Stream) -> None:
    updater = _UPDATING.pop()
    updater.__exit__(None, None, None)
    NPUGraph.device.ledger.note("task_update", f"{updater.updated} calls")


def owner_of(address: int) -> torch.UntypedStorage | None:
    """The memory of a recording that begins at `address`."""
    for live in LIVE:
        if address in live.blocks:
            return live.blocks[address]
    capturing = NPUGraph.device.capturing
    return capturing.blocks.get(address) if capturing is not None else None


def _memory(found: Sequence[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in found}
