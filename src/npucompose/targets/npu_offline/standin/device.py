"""The state of the one device: streams, the capture that is open, replays that wait, and the ledger."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from npucompose.schema.soc import Soc, device_of
from npucompose.targets.npu_offline.standin.ledger import Ledger
from npucompose.targets.npu_offline.standin.streams import Event, ExternalEvent, Stream

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.standin.graphs import NPUGraph

RESERVED_TASKS = 32
"""A capture leaves a stream when its queue has no more room than this (hicann/runtime 681ef761, feature/aclgraph)."""


class Device:
    """Everything that the stand-in's modules share."""

    def __init__(self, soc: Soc | None = None) -> None:
        self.soc = soc or device_of(None)
        self.captured_streams = 0
        """What the captured graphs hold of the `soc.streams` that there are."""
        self.ledger = Ledger()
        self.graphs: list[NPUGraph] = []
        """Captured graphs in order; TorchAir makes an empty one first for each FX graph, which is not among them."""
        self.capturing: NPUGraph | None = None
        self.ge_sessions: list[Any] = []
        self.pools: dict[str, tuple[int, int]] = {}
        self._pool_numbers = itertools.count(1)
        self._stream_numbers = itertools.count(0)
        self._event_numbers = itertools.count(1)
        self._waiting: dict[int, Iterator[ExternalEvent]] = {}
        Stream.device_of = Event.device_of = self
        self.default_stream = Stream()
        self._stack = [self.default_stream]

    @property
    def cores(self) -> dict[str, int]:
        """As torch_npu tells the limits of a device and of a stream."""
        return {"cube_core_num": self.soc.cube, "vector_core_num": self.soc.vector}

    def hold_streams(self, tasks: Iterable[int]) -> int:
        """How many streams a captured graph with so many tasks on each of its own holds from now on.

        One whose queue would be full goes on in a further stream (the runtime's cascade). RuntimeError where the SoC
        has no more; `captured_streams` goes down when a graph is given up.
        """
        held = sum(math.ceil(count / (self.soc.depth - RESERVED_TASKS)) for count in tasks if count)
        if self.captured_streams + held > self.soc.streams:
            raise RuntimeError(
                f"stand-in: resources exhausted (207008): the captured graphs hold {self.captured_streams} streams, "
                f"this one needs {held}, and {self.soc.name} has {self.soc.streams}."
            )
        self.captured_streams += held
        return held

    def new_stream(self) -> int:
        return next(self._stream_numbers)

    def new_event(self) -> int:
        return next(self._event_numbers)

    def new_pool(self) -> tuple[int, int]:
        """A handle as torch_npu makes them: two integers, one of them 0."""
        return (next(self._pool_numbers), 0)

    def current_stream(self) -> Stream:
        return self._stack[-1]

    def enter(self, stream: Stream) -> None:
        self._stack.append(stream)

    def leave(self) -> None:
        self._stack.pop()

    def set_stream(self, stream: Stream) -> None:
        self._stack[-1] = stream

    @contextmanager
    def stream(self, stream: Stream | None) -> Iterator[Stream]:
        self.enter(stream or self.current_stream())
        try:
            yield self.current_stream()
        finally:
            self.leave()

    def record(self, event: Event, stream: Stream) -> None:
        self.ledger.note("event_record", f"event {event.number} on stream {stream.stream_id}")
        if self.capturing is not None:
            self.capturing.taped_record(event, stream)
        if isinstance(event, ExternalEvent):
            event.signalled = True
            self.advance(self._waiting.pop(event.number, None))

    def wait(self, event: Event, stream: Stream) -> None:
        self.ledger.note("event_wait", f"event {event.number} on stream {stream.stream_id}")
        if self.capturing is not None:
            self.capturing.taped_wait(event, stream)

    def reset(self, event: ExternalEvent) -> None:
        if self.capturing is not None:
            self.capturing.taped_reset(event)
        else:
            event.signalled = False

    def limit(self, stream: Stream, cube: int, vector: int) -> None:
        if lacking := self.soc.model().lacks(cube, vector):
            raise RuntimeError(f"stand-in: set_stream_limit({cube}, {vector}): {lacking}.")
        stream.limit = {"cube_core_num": cube, "vector_core_num": vector}
        line = f"stream {stream.stream_id} to {cube} cube and {vector} vector cores"
        self.ledger.note("stream_limit", line)
        if self.capturing is not None:
            self.capturing.told.append(f"limit {line}")

    def advance(self, replay: Iterator[ExternalEvent] | None) -> None:
        """Run a replay on to its end, or to an external event that nobody has signalled yet."""
        blocked = next(replay, None) if replay is not None else None
        if blocked is not None and replay is not None:
            self._waiting[blocked.number] = replay

    def synchronize(self) -> None:
        """A replay that still waits would hang a device here."""
        if self._waiting:
            waits = ", ".join(map(str, self._waiting))
            raise RuntimeError(f"stand-in: a replay waits for external event {waits}, which nobody has signalled.")
