"""The state of the one device: streams, captures that are open, replays that wait, a ledger of all that it was asked.

What a capture forbids is asked of npucompose.npu.capture (`captures`); what is captured stands in `graph`.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import define, field

from npu_simulator.captures import RefusingRuntime
from npu_simulator.randomness import Capturing
from npu_simulator.recorder import Recorder, enter_below, leave_below
from npu_simulator.streams import CurrentStreams, StreamPools
from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.rules import CaptureMode
from npucompose.npu.capture.simulated.kernels import broken_rule
from npucompose.npu.capture.simulated.machine import Places
from npucompose.races import RaceFinder, Touch
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
TASK_QUEUE = "TASK_QUEUE_ENABLE"
"""torch_npu's option and environment variable: 0, 1 or 2."""
RESERVED_TASKS = 32
"""A capture leaves a stream when its queue has no more room than this (hicann/runtime 681ef761, feature/aclgraph)."""


@define(kw_only=True, eq=False)
class SimulatedEvent:
    """A captured graph waits for an `external` one at every replay, until the host signals it."""

    number: int
    external: bool = False
    shared: bool = False
    """It was made for several processes."""
    signalled: bool = False


class OpenGraph(Capturing, Protocol):
    """A graph that is being captured, as the device sees it."""

    notes: list[str]
    outside: list[str]
    tape: list[Any]
    blocks: dict[int, torch.UntypedStorage]

    def end(self) -> None: ...
    def taped_record(self, event: SimulatedEvent, stream: int) -> None: ...
    def taped_wait(self, event: SimulatedEvent, stream: int) -> None: ...
    def taped_reset(self, event: SimulatedEvent, stream: int) -> None: ...
    def taped_host_call(self, function: Callable[[Any], Any], data: Any, stream: int) -> None: ...


class SimulatedDevice:
    """Everything that the simulator's modules share. A stream is known by its number; 0 is the default stream."""

    def __init__(self, soc: Soc | None = None) -> None:
        self.soc = soc or device_of(None)
        self.captured_streams = 0
        """What the captured graphs hold of the `soc.streams` that there are."""
        self.ledger = CallLedger()
        self.runtime = RefusingRuntime()
        """The captures that are open, and what is legal in them; the wheel's version is put there with the wheel."""
        self.open: dict[int, OpenGraph] = {}
        """{stream on which a capture began: its graph}."""
        self.places = Places()
        """Where tensors lie: on the device, but for those that were put on the host."""
        self.graphs: list[Any] = []
        """Captured graphs in order; TorchAir makes an empty one first for each FX graph, which is not among them."""
        self.ge_sessions: list[Any] = []
        self.not_written: list[str] = []
        """Files that CANN would have written."""
        self.options: dict[str, str] = {}
        """What torch_npu's Python set with `_npu_setOption`."""
        self.cores = {CUBE: self.soc.cube, VECTOR: self.soc.vector}
        """As torch_npu names the limits of a device and of a stream."""
        self.pools = StreamPools()
        self.streams = CurrentStreams()
        self._pool_numbers = (itertools.count(1), itertools.count(1))
        self._event_numbers = itertools.count(1)
        self._waiting: dict[int, Iterator[SimulatedEvent]] = {}
        self._limits: dict[int, dict[str, int]] = {}
        self._watching = threading.local()

    def hold_streams(self, tasks: Iterable[int]) -> int:
        """How many streams a captured graph with so many tasks on each of its own holds from now on.

        One whose queue would be full goes on in a further stream (the runtime's cascade). RuntimeError where the SoC
        has no more; `captured_streams` goes down when a graph is given up.
        """
        held = sum(math.ceil(count / (self.soc.depth - RESERVED_TASKS)) for count in tasks if count)
        if self.captured_streams + held > self.soc.streams:
            self.refuse(
                "streams_exhausted",
                f"the captured graphs hold {self.captured_streams} streams, this one needs {held}, and "
                f"{self.soc.name} has {self.soc.streams}",
            )
        self.captured_streams += held
        return held

    def new_stream(self, priority: int = 0, *, sync_launch: bool = False) -> int:
        return self.pools.take(priority, sync_launch=sync_launch)

    def new_event(self, external: bool = False, *, shared: bool = False) -> SimulatedEvent:
        return SimulatedEvent(number=next(self._event_numbers), external=external, shared=shared)

    def new_pool(self, *, of_a_graph: bool = False) -> tuple[int, int]:
        """A handle as torch_npu makes them: the first number counts graphs' own pools, the second those of users."""
        numbers = self._pool_numbers
        return (next(numbers[0]), 0) if of_a_graph else (0, next(numbers[1]))

    # Streams of this thread.

    @property
    def task_queue(self) -> int:
        """The level of torch_npu's task queue."""
        if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
            return 0
        return int(self.options.get(TASK_QUEUE, os.environ.get(TASK_QUEUE, 1)))

    @property
    def current(self) -> int:
        """The number of the current stream."""
        return self.streams.current

    def set_stream(self, stream: int) -> None:
        self.streams.set(stream)

    def enter(self, stream: int) -> None:
        self.streams.enter(stream)

    def leave(self) -> None:
        self.streams.leave()

    # Captures.

    @property
    def capturing(self) -> OpenGraph | None:
        """The graph that the current stream is captured for."""
        return self.graph_of(self.current)

    def graph_of(self, stream: int) -> OpenGraph | None:
        capture = self.runtime.capture_of(stream)
        return None if capture is None else self.open.get(capture.origin)

    def begin(self, graph: OpenGraph, mode: CaptureMode) -> RaceFinder:
        """What orders its tasks."""
        self.runtime.begin(self.current, model_line(), mode)
        self.open[self.current] = graph
        self.watch()
        capture = self.runtime.capture_of(self.current)
        assert capture is not None
        return capture.races

    def end(self, graph: OpenGraph) -> None:
        """The runtime ends the capture; RuntimeError where it is not valid, and it is over all the same."""
        try:
            self.runtime.end(self.current, model_line())
        finally:
            self._tell_notes()
            self.open = {stream: one for stream, one in self.open.items() if one is not graph}
            recorder = self._watching.__dict__.pop("recorder", None) if not self.open else None
            if recorder is not None:
                leave_below(recorder)

    def watch(self) -> None:
        """Calls of this thread are seen from now on, until it ends the last capture that is open."""
        if not hasattr(self._watching, "recorder"):
            self._watching.recorder = Recorder(self)
            enter_below(self._watching.recorder)

    def refuse(self, rule: str, what: str) -> None:
        """RuntimeError in the device's words; `noted` where a device says nothing."""
        self.runtime.refuse(rule, what, None)
        self._tell_notes()

    def check(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """What a capture forbids of an operator."""
        broken = broken_rule(func, args, kwargs, self.runtime.torch_npu) if self.runtime.capturing else None
        if broken is None:
            return
        if broken.does in ("reads", "copies"):
            self.runtime.read(broken.what, None, self.current, broken.rule)
        elif broken.does != "synchronises" or self.capturing is not None:
            self.refuse(broken.rule, broken.what)

    def copied(self, tensor: torch.Tensor, what: str, *, blocking: bool = True) -> None:
        """A tensor of the device is copied to or from the host; page-locked memory is torch's own choice there."""
        if not self.places.on_host(tensor):
            self.runtime.copy(what, None, self.current, blocking=blocking, pageable=False)

    def printed(self, tensor: torch.Tensor) -> None:
        if not self.places.on_host(tensor):
            self.runtime.read("a tensor is printed", None, self.current)

    def launched(self, what: str, touches: Sequence[Touch] = ()) -> None:
        """A kernel on the current stream, and what it does to memory."""
        self.runtime.launch(self.current, what, model_line(), touches)
        self._tell_notes()

    def _tell_notes(self) -> None:
        notes = self.runtime.take_notes()
        for graph in self.open.values():
            graph.outside.extend(notes)

    # Events.

    def record(self, event: SimulatedEvent, stream: int) -> None:
        self.pools.own(stream, "NPUEvent::record")
        self.ledger.note("event_record", f"event {event.number} on stream {stream}")
        self.runtime.record(event.number, stream, model_line(), external=event.external, shared=event.shared)
        graph = self.graph_of(stream)
        if graph is not None:
            graph.taped_record(event, stream)
        elif event.external:
            self.signal(event)

    def signal(self, event: SimulatedEvent) -> None:
        """The replay that waits for it goes on."""
        event.signalled = True
        self.advance(self._waiting.pop(event.number, None))

    def wait(self, event: SimulatedEvent, stream: int) -> None:
        self.pools.own(stream, "NPUEvent::block")
        self.ledger.note("event_wait", f"event {event.number} on stream {stream}")
        self.runtime.wait(event.number, stream, model_line(), external=event.external, shared=event.shared)
        self._tell_notes()
        graph = self.graph_of(stream)
        if graph is not None:
            graph.taped_wait(event, stream)

    def reset(self, event: SimulatedEvent, stream: int) -> None:
        graph = self.graph_of(stream)
        if graph is not None:
            graph.taped_reset(event, stream)
        else:
            event.signalled = False

    def call_host(self, stream: int, function: Callable[[Any], Any], data: Any) -> None:
        """A function of the host as a task of a stream: now, or at every replay of the graph that captures it."""
        self.ledger.note("host_function", f"on stream {stream}")
        graph = self.graph_of(stream)
        if graph is None:
            function(data)
            return
        self.runtime.launch(stream, "a function of the host", model_line())
        graph.taped_host_call(function, data, stream)

    def use(self, tensor: torch.Tensor, stream: int) -> None:
        """Tensor.record_stream: the memory is not given to another value before the stream is done with it."""
        self.pools.own(stream, "record_stream")
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
        graph = self.capturing
        if graph is None:
            return
        notes = graph.notes
        if notes and notes[-1].startswith(f"limit {begin} "):
            notes.pop()
        notes.append(f"limit {line}")

    def note_capture(self, line: str) -> None:
        """What is neither a kernel nor an event, in the order of a capture."""
        graph = self.capturing
        if graph is not None:
            graph.notes.append(line)

    def advance(self, replay: Iterator[SimulatedEvent] | None) -> None:
        """Run a replay on to its end, or to an external event that is not signalled yet."""
        if replay is not None and (blocked := next(replay, None)) is not None:
            self._waiting[blocked.number] = replay

    def synchronize(self, what: str = "synchronize()", stream: int | None = None, *, settles: bool = True) -> None:
        """The host waits for a stream, or (none is named) for the device; or it asks only whether that is done."""
        self.runtime.synchronise(what, None, stream=stream)
        if settles:
            self.settle()

    def ask_event(self, what: str, event: SimulatedEvent) -> None:
        """The host waits for an event, or asks for its state or time."""
        self.runtime.wait_for_event(what, None, event.number)

    def settle(self) -> None:
        """A replay that still waits would hang a device here."""
        if self._waiting:
            waits = ", ".join(map(str, self._waiting))
            raise RuntimeError(f"simulator: a replay waits for external event {waits}, which is not signalled.")
