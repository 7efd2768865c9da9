"""Captures as the runtime's public rules have them: which streams take part, what is refused. No torch.

It refuses by noting (`refusals`) and goes on, so that one run finds every mistake; a device stops at the first, and
each later one is what it would say after that was mended. A device that stops overrides `refuse`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from attrs import define, field, frozen

from npucompose.npu.capture.rules import RULE_OF_RACE, CaptureMode, missing_wait, race_words, rules
from npucompose.races import Race, RaceFinder, Touch

DEFAULT, CAPTURING = 0, 1
"""The default stream, and the one on which the model's capture begins."""
DEVICE_TYPE = 20
"""torch's number of PrivateUse1, the kind of device that its streams are of."""
STREAMS_OF_A_POOL = 32
"""Ascend/pytorch 9e73e708 torch_npu/csrc/core/npu/NPUStream.cpp:59: a pool for each of two priorities."""


@frozen(kw_only=True)
class Refusal:
    """What was refused: the rule's name, what was done, the model's line."""

    rule: str
    what: str
    source: str | None
    sure: bool = True
    """False: no public rule decides it."""
    fix: str | None = None
    """What to write here; None: what the rule says."""


@define(kw_only=True, eq=False)
class Record:
    """The newest record of an event: in which capture it lies, and behind how many tasks of its stream."""

    capture: Capture | None
    stream: int
    position: int


@frozen(kw_only=True)
class Task:
    """What a captured stream was given: a kernel, a wait or a record."""

    what: str
    source: str | None
    kernel: bool = False


@define(kw_only=True, eq=False)
class Capture:
    """One capture that is open: `Capture(origin=1, mode="global", thread=17)`."""

    origin: int
    mode: CaptureMode
    thread: int
    lost: bool = False
    """An error has made it invalid."""
    tasks: dict[int, list[Task]] = field(factory=dict[int, "list[Task]"])
    """{stream that takes part: what it was given}."""
    joined: dict[int, int] = field(factory=dict[int, int])
    """{stream: how many of these lie before a record that another stream of the capture waits for}."""
    groups: dict[int, str | None] = field(factory=dict[int, "str | None"])
    """{stream: the line that opened the task group that is open there}."""
    races: RaceFinder = field(factory=RaceFinder)
    """What its tasks touch, and which of them nothing orders."""


@define(kw_only=True, eq=False)
class CaptureRuntime:
    """`begin`, then what the model does on streams, then `end`; `refusals` holds what the rules forbid of it.

    `rt.begin(); rt.launch(2, "mm", line)` refuses `uncaptured_stream`: nothing made stream 2 wait for the capture.
    """

    mode: CaptureMode = "global"
    torch_npu: str | None = None
    """The version whose rules hold; None: all of them."""
    refusals: list[Refusal] = field(factory=list[Refusal])
    tasks: Counter[int] = field(factory=Counter[int])
    """{captured stream: its kernels}."""
    captures: list[Capture] = field(factory=list[Capture])
    """Those that are open, the model's own first."""
    task_queue: int = 1
    """The level of torch_npu's task queue."""
    _events: dict[int, Record] = field(factory=dict[int, Record])
    _waited: set[int] = field(factory=set[int])
    """External events that a wait has used up."""
    _updating: set[int] = field(factory=set[int])
    _communicators: set[int] = field(factory=set[int])
    """Streams of communicators."""
    _given: list[int] = field(factory=lambda: [CAPTURING, 0])
    """Streams that each pool has given: torch.npu.graph takes its own first."""

    @property
    def capturing(self) -> bool:
        return bool(self.captures)

    def pooled_stream(self, *, high: bool = False) -> int:
        """The stream that torch.npu.Stream() gives: its pool's next, which begins again behind the last."""
        self._given[high] += 1
        return high * STREAMS_OF_A_POOL + (self._given[high] - 1) % STREAMS_OF_A_POOL + 1

    def capture_of(self, stream: int) -> Capture | None:
        """The capture that the stream takes part in."""
        return next((one for one in self.captures if stream in one.tasks), None)

    def refuse(self, rule: str, what: str, source: str | None, *, sure: bool = True, fix: str | None = None) -> None:
        refusal = Refusal(rule=rule, what=what, source=source, sure=sure, fix=fix)
        if self.capturing and refusal not in self.refusals and rules().of(rule).holds(self.torch_npu):
            self.refusals.append(refusal)

    # Captures begin and end.

    def begin(self, stream: int = CAPTURING, source: str | None = None, mode: CaptureMode | None = None) -> bool:
        """Whether a capture is open on the stream then that was not before."""
        capture = Capture(origin=stream, mode=mode or self.mode, thread=threading.get_ident())
        if self.capture_of(stream) is not None:
            self.refuse("nested_capture", "a capture begins on a stream that is captured", source)
        elif stream == DEFAULT:
            self.refuse("default_stream", "a capture begins on the default stream", source)
        else:
            self.captures.append(capture)
            capture.tasks[stream] = []
        if self.task_queue == 2:
            self.refuse("task_queue", "a capture begins while the task queue works at level 2", source)
        return capture in self.captures

    def end(self, stream: int = CAPTURING, source: str | None = None) -> None:
        """The capture ends: all that its other streams did last must be waited for. It is over whatever is refused."""
        capture = self.capture_of(stream)
        if capture is None:
            self.refuse("not_capturing", f"a capture ends on stream {stream}, which is not captured", source)
        elif stream != capture.origin:
            self.refuse("unmatched_end", f"the capture ends on stream {stream}", source)
        else:
            try:
                self._close(capture, source)
            finally:
                self.captures.remove(capture)

    def _close(self, capture: Capture, source: str | None) -> None:
        if capture.thread != threading.get_ident() and capture.mode in rules().of("wrong_thread").modes:
            self.refuse("wrong_thread", "the capture ends in another thread", source)
        if not capture.lost:
            self._validate(capture)
        self._refuse_races(capture)

    def _validate(self, capture: Capture) -> None:
        for line in capture.groups.values():
            self.refuse("task_group", "the task group is still open when the capture ends", line)
        for stream in sorted(capture.tasks.keys() - {capture.origin}):
            loose = _loose(capture, stream)
            if loose:
                last = next((task for task in reversed(loose) if task.kernel), loose[0])
                rule = "unjoined_collective" if stream in self._communicators else "unjoined_stream"
                missing = next((race for race in capture.races.races if _is_loose(capture, race, stream)), None)
                fix = None if missing is None else missing_wait(missing, self._named(capture))
                self.refuse(rule, f"no stream waits for {last.what}, the last of its stream", last.source, fix=fix)

    def _refuse_races(self, capture: Capture) -> None:
        """Not what comes of a stream that no other waits for: that is refused already, with the wait that it lacks."""
        name = self._named(capture)
        for race in capture.races.races:
            if capture.lost or not _is_loose(capture, race, race.first.stream):
                what, fix = race_words(race, name), missing_wait(race, name)
                self.refuse(RULE_OF_RACE[race.kind], what, race.then.source, sure=race.sure, fix=fix)

    def _named(self, capture: Capture) -> Callable[[int], str]:
        def name(stream: int) -> str:
            if stream == capture.origin:
                return "the capturing stream"
            return "the communicator's stream" if stream in self._communicators else f"stream {stream}"

        return name

    def abandon(self) -> None:
        """No capture is open any more, whatever became of them."""
        for capture in self.captures:
            self._refuse_races(capture)
        self.captures.clear()

    # Kernels, events and streams.

    def launch(self, stream: int, what: str, source: str | None, touches: Iterable[Touch] = ()) -> None:
        """A kernel, or another task of the device, on a stream, and what it does to memory."""
        capture = self.capture_of(stream)
        if not self.capturing:
            return
        if stream == DEFAULT:
            self.refuse("default_stream", f"{what} on the default stream", source)
        elif capture is None:
            self.refuse("uncaptured_stream", f"{what} on stream {stream}, which waits for nothing captured", source)
        else:
            self.tasks[stream] += 1
            self._put(stream, Task(what=what, source=source, kernel=True))
            capture.races.call(stream, what, touches, source)

    def record(
        self, event: int, stream: int, source: str | None, *, external: bool = False, shared: bool = False
    ) -> None:
        capture = self.capture_of(stream)
        self._waited.discard(event)
        if shared and capture is not None:
            self.refuse("ipc_event", "an event that processes share is recorded on a captured stream", source)
        elif external:
            self._put(stream, Task(what="the record of an external event", source=source))
            if capture is not None:
                capture.races.record(event, stream)
        elif capture is not None:
            position = self._put(stream, Task(what="the record of an event", source=source))
            self._events[event] = Record(capture=capture, stream=stream, position=position)
            capture.races.record(event, stream)
        elif not self._in_a_capture(event):
            self._events[event] = Record(capture=None, stream=stream, position=0)

    def wait(
        self, event: int, stream: int, source: str | None, *, external: bool = False, shared: bool = False
    ) -> None:
        """The stream waits for the event: nothing where it was never recorded; an external one is the host's."""
        capture, found = self.capture_of(stream), self._events.get(event)
        if external:
            self._wait_outside(event, stream, source)
        elif shared and capture is not None:
            self.refuse("ipc_event", "a captured stream waits for an event that processes share", source)
        elif found is None or not self.capturing:
            return
        elif not self._in_a_capture(event):
            if capture is not None and found.capture is None:
                self.refuse("border_event", "a captured stream waits for an event from outside the capture", source)
        elif stream == DEFAULT:
            self.refuse("default_stream_waits", "the default stream waits for an event of the capture", source)
        elif capture is not None and found.capture is not None and capture is not found.capture:
            capture.lost = found.capture.lost = True
            self.refuse("crossed_captures", "a stream waits for an event of another capture", source)
        else:
            self._join(found, event, stream, source)

    def _in_a_capture(self, event: int) -> bool:
        found = self._events.get(event)
        return found is not None and found.capture is not None and found.capture in self.captures

    def _join(self, record: Record, event: int, stream: int, source: str | None) -> None:
        """The stream takes part in the capture of the record, and what came before that is waited for."""
        capture = record.capture
        assert capture is not None
        capture.tasks.setdefault(stream, [])
        self._put(stream, Task(what="a wait", source=source))
        capture.races.wait(event, stream)
        if stream != record.stream:
            capture.joined[record.stream] = max(record.position, capture.joined.get(record.stream, 0))

    def _wait_outside(self, event: int, stream: int, source: str | None) -> None:
        if event in self._waited:
            self.refuse("external_event", "a second wait for an external event", source, sure=False)
        self._waited.add(event)
        self._put(stream, Task(what="a wait for an external event", source=source))
        capture = self.capture_of(stream)
        if capture is not None:
            capture.races.wait(event, stream)

    def _put(self, stream: int, task: Task) -> int:
        """The task on a captured stream; how many it has then."""
        capture = self.capture_of(stream)
        if capture is None:
            return 0
        if capture.groups and stream not in capture.groups:
            capture.lost = True
            self.refuse("task_group_broken", f"{task.what} on another stream than that of the task group", task.source)
        capture.tasks[stream].append(task)
        return len(capture.tasks[stream])

    # The host waits, reads and copies.

    def synchronise(self, what: str, source: str | None, *, stream: int | None = None) -> None:
        """The host waits for a stream, or (none is named) for the device."""
        if self.capturing and (stream is None or self.capture_of(stream) is not None):
            self.refuse("synchronise", what, source)

    def wait_for_event(self, what: str, source: str | None, event: int) -> None:
        """The host waits for an event, or asks for its state or time."""
        if self._in_a_capture(event):
            self.refuse("event_wait", what, source)

    def read(self, what: str, source: str | None, stream: int, rule: str = "host_read") -> None:
        """The host reads what the stream computes: the stream is synchronised, then the value is copied."""
        if self.capture_of(stream) is not None:
            self.refuse(rule, what, source)
        else:
            self._unsafe("outside_copy", what, source)

    def copy(
        self, what: str, source: str | None, stream: int, *, blocking: bool, pageable: bool,
        touches: Iterable[Touch] = (),
    ) -> None:  # fmt: skip
        """Memory is copied between host and device."""
        captured = self.capture_of(stream) is not None
        if blocking:
            self.read(what, source, stream, "sync_copy")
        elif pageable and captured:
            self.refuse("pageable_copy", what, source)
        elif pageable:
            self._unsafe("outside_pageable", what, source)
        else:
            self.launch(stream, what, source, touches)

    def _unsafe(self, rule: str, what: str, source: str | None) -> None:
        """What the modes of the open captures decide about; the strictest of them holds for every thread."""
        own = {one.mode for one in self.captures if one.thread == threading.get_ident()}
        if own & set(rules().of(rule).modes):
            self.refuse(rule, what, source)
        elif any(one.mode in rules().of("other_thread").modes for one in self.captures):
            self.refuse("other_thread", f"{what} in another thread", source)

    # Collectives and task groups.

    def collective(self, what: str, stream: int, source: str | None, touches: Iterable[Touch] = ()) -> int:
        """A collective begins after `stream` on a stream of the communicator's own; the event that ends it."""
        own = 2 * STREAMS_OF_A_POOL + 1 + len(self._communicators)
        begun, done = -2 * own, -2 * own - 1
        self._communicators.add(own)
        self.record(begun, stream, source)
        self.wait(begun, own, source)
        if self.capture_of(own) is not None:
            self.launch(own, what, source, touches)
        self.record(done, own, source)
        return done

    def group_begin(self, stream: int, source: str | None) -> None:
        capture = self.capture_of(stream)
        if capture is None:
            self.refuse("not_capturing", "graph_task_group_begin on a stream that is not captured", source)
        elif stream in capture.groups or stream in self._updating:
            self.refuse("task_group", "a second task group is opened on one stream", source)
        else:
            capture.groups[stream] = source

    def group_end(self, stream: int, source: str | None) -> None:
        capture = self.capture_of(stream)
        if capture is None:
            self.refuse("not_capturing", "graph_task_group_end on a stream that is not captured", source)
        elif capture.groups.pop(stream, self) is self:
            self.refuse("task_group", "graph_task_group_end without a begin on this stream", source)

    def update_begin(self, stream: int, source: str | None) -> None:
        if self.capture_of(stream) is not None:
            self.refuse("task_update", "graph_task_update_begin on a stream that is captured", source)
        elif stream in self._updating:
            self.refuse("task_group", "graph_task_update_begin twice on one stream", source)
        else:
            self._updating.add(stream)

    def update_end(self, stream: int, source: str | None) -> None:
        if self.capture_of(stream) is not None:
            self.refuse("task_update", "graph_task_update_end on a stream that is captured", source)
        elif stream not in self._updating:
            self.refuse("task_group", "graph_task_update_end without a begin on this stream", source)
        self._updating.discard(stream)


def _loose(capture: Capture, stream: int) -> list[Task]:
    """What the stream was given behind the last record that another one waits for."""
    return capture.tasks[stream][capture.joined.get(stream, 0) :]


def _is_loose(capture: Capture, race: Race, stream: int) -> bool:
    """Whether the earlier task of the race is such a task of a side stream."""
    if race.first.stream != stream or stream == capture.origin:
        return False
    loose = sum(task.kernel for task in _loose(capture, stream))
    return race.first.time > capture.races.count(stream) - loose
