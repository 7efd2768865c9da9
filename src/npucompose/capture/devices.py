"""`torch.npu`, `torch.cuda` and the collectives of torch.distributed as a model under the simulated capture finds them.

Only what model code calls between layers: streams, events, waiting, task groups, collectives. Each call asks the
simulated runtime; none needs a device. What is replaced is put back.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from npucompose.capture.collectives import collectives
from npucompose.capture.lines import model_line
from npucompose.capture.runtime import CAPTURING, DEFAULT
from npucompose.capture.watch import SimulatedMachine

_EVENTS = itertools.count(1)


class Api:
    """The calls on one machine."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine, self.runtime = machine, machine.runtime

    def line(self) -> str | None:
        """The model's line, which is put down: torch.compile cannot trace streams here."""
        line = model_line()
        if line is not None and self.runtime.capturing:
            self.machine.used.add(line)
        return line

    def synchronise(self, what: str, **of: Any) -> None:
        self.runtime.synchronise(what, self.line(), **of)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """`with torch.npu.graph(g):` in the model's own code."""
        self.runtime.refuse("nested_capture", "a capture begins while one is open", self.line())
        yield

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """`with torch.npu.stream(s):`; None changes nothing."""
        self.line()
        self.machine.streams.append(self.machine.stream if stream is None else stream.stream_id)
        try:
            yield
        finally:
            self.machine.streams.pop()


def stream_class(api: Api) -> type:
    """A class of streams of this machine."""

    class Stream:
        def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
            self.stream_id = more.get("stream_id", -1)
            if self.stream_id < 0:
                self.stream_id = api.runtime.new_stream()

        def wait_stream(self, other: Any) -> None:
            event, line = next(_EVENTS), api.line()
            api.runtime.record(event, other.stream_id, line)
            api.runtime.wait(event, self.stream_id, line)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = api.event() if event is None else event  # type: ignore[attr-defined]
            event.record(self)
            return event

        def synchronize(self) -> None:
            api.synchronise("stream.synchronize()", stream=self.stream_id)

        def query(self) -> bool:
            api.synchronise("stream.query()", stream=self.stream_id)
            return True

        def __enter__(self) -> Any:
            self._within = api.on(self)
            self._within.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self._within.__exit__(*error)

    return Stream


def event_class(api: Api) -> type:
    """A class of events of this machine."""

    class Event:
        def __init__(self, *_: Any, external: bool = False, **more: Any) -> None:
            self.number, self.external = next(_EVENTS), external or bool(more.get("graph_external"))

        def record(self, stream: Any = None) -> None:
            api.runtime.record(self.number, _number(api, stream), api.line())

        def wait(self, stream: Any = None) -> None:
            api.runtime.wait(self.number, _number(api, stream), api.line(), external=self.external)

        def reset(self, stream: Any = None) -> None:
            """Of an external event: the host takes its signal back."""

        def synchronize(self) -> None:
            api.synchronise("event.synchronize()", event=self.number)

        def query(self) -> bool:
            api.synchronise("event.query()", event=self.number)
            return True

    return Event


def graph_class(api: Api) -> type:
    """A class of captured graphs: the model is in a capture, and can begin none."""

    class NPUGraph:
        def capture_begin(self, *_: Any, **__: Any) -> None:
            api.runtime.refuse("nested_capture", "a capture begins while one is open", api.line())

        def capture_end(self) -> None:
            if api.machine.stream != CAPTURING:
                api.runtime.refuse("unmatched_end", f"the capture ends on stream {api.machine.stream}", api.line())

        def replay(self) -> None:
            api.runtime.refuse("nested_capture", "a graph is replayed while a capture is open", api.line(), sure=False)

    return NPUGraph


def _number(api: Api, stream: Any) -> int:
    return api.machine.stream if stream is None else stream.stream_id


def functions(api: Api) -> dict[str, Any]:
    """What stands in `torch.npu` and, by the same names, in `torch.cuda`."""
    stream, event = stream_class(api), event_class(api)
    api.event = event  # type: ignore[attr-defined]

    def current(device: Any = None) -> Any:
        return stream(stream_id=api.machine.stream)

    def set_stream(chosen: Any) -> None:
        api.line()
        api.machine.streams[-1] = chosen.stream_id

    def seed(*_: Any) -> None:
        api.runtime.refuse("generator_state", "a generator is seeded", api.line())

    return {
        "Stream": stream,
        "Event": event,
        "ExternalEvent": lambda *_, **more: event(external=True),
        "stream": api.on,
        "current_stream": current,
        "default_stream": lambda device=None: stream(stream_id=DEFAULT),
        "set_stream": set_stream,
        "synchronize": lambda device=None: api.synchronise("synchronize()"),
        "empty_cache": lambda: api.synchronise("empty_cache() waits for the device"),
        "is_current_stream_capturing": lambda: api.runtime.capturing,
        "manual_seed": seed,
        "manual_seed_all": seed,
    }


def _only_npu(api: Api) -> dict[str, Any]:
    """What `torch.npu` has beyond that."""

    def number(stream: Any) -> int:
        return _number(api, stream)

    def callback(*_: Any) -> None:
        api.runtime.refuse("host_callback", "a function of the host is put on a stream", api.line(), sure=False)

    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "graph_task_group_begin": lambda stream: api.runtime.group_begin(number(stream), api.line()),
        "graph_task_group_end": lambda stream: api.runtime.group_end(number(stream), api.line()),
        "graph_task_update_begin": lambda stream, handle: api.runtime.update(number(stream), api.line()),
        "graph_task_update_end": lambda stream: None,
        "NPUGraph": graph_class(api),
        "graph": lambda *_, **__: api.nested(),
        "graph_pool_handle": lambda: (0, 0),
        "_launch_host_func": callback,
        "_subscribe_report": lambda *_: None,
        "_unsubscribe_report": lambda *_: None,
    }


def _seeded(api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
    def seed(*args: Any) -> Any:
        api.runtime.refuse("generator_state", "a generator is seeded", model_line())
        return original(*args)

    return seed


def _choosing(api: Api) -> Callable[..., Any]:
    """`torch.cond`: the branch that the data choose, which a host would have to read."""

    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if isinstance(pred, torch.Tensor):
            api.runtime.refuse("conditional", "torch.cond reads its condition on the host", model_line())
            pred = _value(api, pred)
        return (true_fn if pred else false_fn)(*operands)

    return cond


def _value(api: Api, tensor: torch.Tensor) -> bool:
    """Without that anybody is asked."""
    before, api.machine.quiet = api.machine.quiet, True
    try:
        with torch._C.DisableTorchFunction():
            return bool(tensor)
    finally:
        api.machine.quiet = before


def _starting(api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
    """A thread that the model starts is seen too."""

    def start(thread: threading.Thread) -> Any:
        run = thread.run

        def watched() -> None:
            with api.machine.watching():
                run()

        thread.run = watched  # type: ignore[method-assign]
        return original(thread)

    return start


@contextmanager
def simulated(machine: SimulatedMachine) -> Iterator[None]:
    """In here streams, events, collectives, seeds, threads and `torch.cond` are this machine's."""
    api = Api(machine)
    shared = functions(api)
    npu = ModuleType("torch.npu")
    npu.__dict__.update(shared, **_only_npu(api))
    with ExitStack() as stack:
        put = stack.enter_context
        put(patch.object(torch, "npu", npu, create=True))
        put(patch.multiple(torch.cuda, **{name: shared[name] for name in shared if hasattr(torch.cuda, name)}))
        put(patch.object(torch, "manual_seed", _seeded(api, torch.manual_seed)))
        put(patch.object(torch, "cond", _choosing(api)))
        put(patch.object(threading.Thread, "start", _starting(api, threading.Thread.start)))
        _replace(put, torch.distributed, collectives(api.machine, api.line))
        yield


def _replace(put: Callable[[Any], Any], module: Any, functions: Mapping[str, Any]) -> None:
    for name, function in functions.items():
        if hasattr(module, name):
            put(patch.object(module, name, function))
