"""Streams, events and graphs of `torch.npu` as a model under the simulated capture finds them; each call asks the
simulated runtime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npucompose.npu.capture.lines import model_line
from npucompose.npu.capture.simulated.machine import DEVICE, SimulatedMachine
from npucompose.npu.capture.simulated.runtime import CAPTURING, DEFAULT, DEVICE_TYPE

_EVENTS = itertools.count(1)
_POOLS = itertools.count(1)


class Api:
    """The calls on one machine."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine, self.runtime = machine, machine.runtime
        self.Stream, self.Event, self.NPUGraph = stream_class(self), event_class(self), graph_class(self)

    def line(self) -> str | None:
        """The model's line, which is noted: torch.compile cannot trace streams here."""
        line = model_line()
        self.machine.note_use(line)
        return line

    def synchronise(self, what: str, stream: int | None = None) -> None:
        self.runtime.synchronise(what, self.line(), stream=stream)

    def current_stream(self, device: Any = None) -> Any:
        return self.Stream(stream_id=self.machine.stream)

    def default_stream(self, device: Any = None) -> Any:
        return self.Stream(stream_id=DEFAULT)

    def set_stream(self, chosen: Any) -> None:
        self.line()
        self.machine.streams[-1] = chosen.stream_id

    def number(self, stream: Any) -> int:
        return self.machine.stream if stream is None else stream.stream_id

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """`with torch.npu.stream(s):`; None changes nothing."""
        self.line()
        self.machine.streams.append(self.number(stream))
        try:
            yield
        finally:
            self.machine.streams.pop()

    @contextmanager
    def graph(self, *_: Any, **__: Any) -> Iterator[None]:
        """`with torch.npu.graph(g):` in the model's own code, which synchronises the device before it begins."""
        self.runtime.refuse("nested_capture", "torch.npu.graph in a capture", self.line())
        yield

    def group_begin(self, stream: Any) -> None:
        self.runtime.group_begin(self.number(stream), self.line())

    def group_end(self, stream: Any) -> Any:
        return self.runtime.group_end(self.number(stream), self.line())

    def update_begin(self, stream: Any, handle: Any) -> None:
        self.runtime.update_begin(self.number(stream), self.line())

    def update_end(self, stream: Any) -> None:
        self.runtime.update_end(self.number(stream), self.line())

    def host_function(self, stream: Any, *_: Any) -> None:
        """A task that every replay runs; nothing is called now."""
        self.runtime.launch(self.number(stream), "a function of the host", self.line())


def stream_class(api: Api) -> type:
    """A class of streams of this machine. They are torch's too, so that operators take them as arguments."""

    class Stream(torch.Stream):
        priority: int
        device = DEVICE

        def __new__(cls, device: Any = None, priority: int = 0, stream_id: int | None = None, **_: Any) -> Any:
            number = api.runtime.pooled_stream(high=priority < 0) if stream_id is None else stream_id
            made = super().__new__(cls, stream_id=number, device_index=0, device_type=DEVICE_TYPE)
            made.priority = priority
            return made

        @property
        def npu_stream(self) -> int:
            return self.stream_id

        def wait_stream(self, other: Any) -> None:
            self.wait_event(other.record_event())

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = api.Event() if event is None else event
            event.record(self)
            return event

        def synchronize(self) -> None:
            api.synchronise("stream.synchronize()", self.stream_id)

        def query(self) -> bool:
            api.synchronise("stream.query()", self.stream_id)
            return True

        def __eq__(self, other: object) -> bool:
            return isinstance(other, torch.Stream) and other.stream_id == self.stream_id

        def __hash__(self) -> int:
            return hash(self.stream_id)

        def __enter__(self) -> Any:
            self._within = api.on(self)
            self._within.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._within.__exit__(*error)

    return Stream


def event_class(api: Api) -> type:
    """A class of events of this machine."""

    class Event(torch.Event):
        number: int
        shared: bool
        external: bool

        def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False,
                    external: bool = False, graph_external: bool = False, **_: Any) -> Any:  # fmt: skip
            made = super().__new__(cls, device="cpu")
            made.number, made.shared, made.external = next(_EVENTS), interprocess, external or graph_external
            return made

        def record(self, stream: Any = None) -> None:
            number = api.number(stream)
            api.runtime.record(self.number, number, api.line(), external=self.external, shared=self.shared)

        def wait(self, stream: Any = None) -> None:
            number = api.number(stream)
            api.runtime.wait(self.number, number, api.line(), external=self.external, shared=self.shared)

        def reset(self, stream: Any = None) -> None:
            """Of an external event: the host takes its signal back."""

        def synchronize(self) -> None:
            api.runtime.wait_for_event("event.synchronize()", api.line(), self.number)

        def query(self) -> bool:
            api.runtime.wait_for_event("event.query()", api.line(), self.number)
            return True

        def elapsed_time(self, other: Any) -> float:
            for event in (self, other):
                api.runtime.wait_for_event("event.elapsed_time()", api.line(), event.number)
            return 0.0

        def recorded_time(self) -> int:
            api.runtime.wait_for_event("event.recorded_time()", api.line(), self.number)
            return 0

    return Event


def graph_class(api: Api) -> type:
    """A class of captured graphs of this machine."""

    class NPUGraph:
        def __init__(self) -> None:
            self.origin, self.captured, self.refused = api.machine.stream, False, False

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            if self.captured:
                api.runtime.refuse("graph_order", "a graph is captured a second time", api.line())
            self.origin = api.machine.stream
            self.refused = not api.runtime.begin(self.origin, api.line(), mode=capture_error_mode)  # type: ignore[arg-type]

        def capture_end(self) -> None:
            if self.refused:
                return
            if api.machine.stream != self.origin:
                api.runtime.refuse("unmatched_end", f"the capture ends on stream {api.machine.stream}", api.line())
            elif self.origin != CAPTURING:
                api.runtime.end(self.origin, api.line())
                self.captured = True
            else:
                api.runtime.refuse("nested_capture", "a graph of the model's ends the capture around it", api.line())

        def replay(self) -> None:
            if not self.captured:
                api.runtime.refuse("graph_order", "a graph is replayed before it was captured", api.line())
            elif api.runtime.capture_of(api.machine.stream) is not None:
                api.runtime.refuse("nested_replay", "a graph is replayed on a captured stream", api.line())

        def pool(self) -> tuple[int, int]:
            if not self.captured:
                api.runtime.refuse("graph_order", "a graph is asked for its pool before it was captured", api.line())
            return next(_POOLS), 0

        def reset(self) -> None:
            self.captured = False

        def register_generator_state(self, generator: torch.Generator) -> None:
            api.machine.registered.append(generator)

    return NPUGraph
