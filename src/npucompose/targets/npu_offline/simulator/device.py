"""The state of the one device: streams, the capture that is open, replays that wait, a ledger of all it was told."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attrs import define, field

from npucompose.vendor.devices import Soc, device_of

if TYPE_CHECKING:
    import torch

    from npucompose.targets.npu_offline.simulator.recording import Recording


@define(kw_only=True, eq=False)
class Ledger:
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
class Event:
    """A captured graph waits for an `external` one at every replay, until the host signals it."""

    number: int
    external: bool = False
    signalled: bool = False


class Device:
    """Everything that the stand-in's modules share. A stream is known by its number; 0 is the default stream."""

    def __init__(self, soc: Soc | None = None) -> None:
        self.soc = soc or device_of(None)
        self.captured_streams = 0
        """What the captured graphs hold of the `soc.streams` that there are."""
        self.ledger = Ledger()
        self.graphs: list[Recording] = []
        """Captured graphs in order; TorchAir makes an empty one first for each FX graph, which is not among them."""
        self.capturing: Recording | None = None
        self.ge_sessions: list[Any] = []
        self.options: dict[str, str] = {}
        """What torch_npu's Python set with `_npu_setOption`."""
        self.cores = {CUBE: self.soc.cube, VECTOR: self.soc.vector}
        """As torch_npu tells the limits of a device and of a stream."""
        self._pool_numbers = itertools.count(1)
        self._stream_numbers = itertools.count(1)
        self._event_numbers = itertools.count(1)
        self._waiting: dict[int, Iterator[Event]] = {}
        self._limits: dict[int, dict[str, int]] = {}
        self._stack = [0]

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

    def new_event(self, external: bool = False) -> Event:
        return Event(number=next(self._event_numbers), external=external)

    def new_pool(self) -> tuple[int, int]:
        """A handle as torch_npu makes them: two integers, one of them 0."""
        return (next(self._pool_numbers), 0)

    @property
    def current(self) -> int:
        """The number of the current stream."""
        return self._stack[-1]

    def set_stream(self, stream: int) -> None:
        self._stack[-1] = stream

    def enter(self, stream: int) -> None:
        self._stack.append(stream)

    def leave(self) -> None:
        self._stack.pop()

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        self.enter(stream)
        try:
            yield
        finally:
            self.leave()

    def record(self, event: Event, stream: int) -> None:
        self.ledger.note("event_record", f"event {event.number} on stream {stream}")
        if self.capturing is not None:
            self.capturing.taped_record(event, stream)
        if event.external:
            event.signalled = True
            self.advance(self._waiting.pop(event.number, None))

    def wait(self, event: Event, stream: int) -> None:
        self.ledger.note("event_wait", f"event {event.number} on stream {stream}")
        if self.capturing is not None:
            self.capturing.taped_wait(event, stream)

    def reset(self, event: Event) -> None:
        if self.capturing is not None:
            self.capturing.taped_reset(event)
        else:
            event.signalled = False

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        """Tensor.record_stream: the memory is not given to another value before the stream is done with it."""
        line = f"record_stream of {list(tensor.shape)} on stream {stream}"
        self.ledger.note("record_stream", line)
        self.tell(line)

    def limits(self, stream: int) -> dict[str, int]:
        """Cores on which the stream's kernels run."""
        return dict(self._limits.get(stream, self.cores))

    def limit(self, stream: int, kind: str, value: int) -> None:
        """torch_npu's Python sets the two kinds one after the other: the ledger and a capture say where they stand."""
        limits = {**self.limits(stream), kind: value}
        if lacking := self.soc.model().lacks(limits[CUBE], limits[VECTOR]):
            raise RuntimeError(f"stand-in: set_stream_limit({limits[CUBE]}, {limits[VECTOR]}): {lacking}.")
        self._limits[stream] = limits
        self._tell_limit(stream, limits)

    def reset_limit(self, stream: int) -> None:
        self._limits.pop(stream, None)
        self._tell_limit(stream, self.limits(stream))

    def _tell_limit(self, stream: int, limits: dict[str, int]) -> None:
        begin = f"stream {stream} to"
        line = f"{begin} {limits[CUBE]} cube and {limits[VECTOR]} vector cores"
        self.ledger.note("stream_limit", line)
        if self.capturing is None:
            return
        told = self.capturing.told
        if told and told[-1].startswith(f"limit {begin} "):
            told.pop()
        told.append(f"limit {line}")

    def tell(self, line: str) -> None:
        """What is neither a kernel nor an event, in the order in which a capture was told."""
        if self.capturing is not None:
            self.capturing.told.append(line)

    def advance(self, replay: Iterator[Event] | None) -> None:
        """Run a replay on to its end, or to an external event that nobody has signalled yet."""
        blocked = next(replay, None) if replay is not None else None
        if blocked is not None and replay is not None:
            self._waiting[blocked.number] = replay

    def synchronize(self) -> None:
        """A replay that still waits would hang a device here."""
        if self._waiting:
            waits = ", ".join(map(str, self._waiting))
            raise RuntimeError(f"stand-in: a replay waits for external event {waits}, which nobody has signalled.")
