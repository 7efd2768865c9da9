"""One capture as the runtime's public rules have it: which streams take part, what is refused. No torch.

It refuses by writing down (`refusals`) and goes on, so that one run finds every mistake; a device stops at the first,
and each later one is what it would say after that was mended.
"""

from __future__ import annotations

import threading
from collections import Counter

from attrs import define, field, frozen

from npucompose.capture.rules import CAPTURE_MODES, CaptureMode
DEFAULT, CAPTURING = 0, 1
"""The default stream, and the one on which the capture begins."""
Clock = dict[int, int]
"""{stream: how many of its tasks are known to be done}."""


@frozen(kw_only=True)
class Refusal:
    """What was refused: the rule's name, what was done, the model's line."""

    rule: str
    what: str
    source: str | None
    sure: bool = True
    """False: no public rule decides it."""


@frozen(kw_only=True)
class Recorded:
    """What an event holds."""

    captured: bool
    clock: Clock


@define(kw_only=True, eq=False)
class CaptureRuntime:
    """`begin`, then what the model does on streams, then `end`; `refusals` holds what the rules forbid of it.

    `rt.begin(); rt.launch(2, "mm", line)` refuses `uncaptured_stream`: nothing made stream 2 wait for the capture.
    """

    mode: CaptureMode = "global"
    refusals: list[Refusal] = field(factory=list)
    tasks: Counter[int] = field(factory=Counter)
    """{captured stream: its tasks}."""
    capturing: bool = False
    _captured: set[int] = field(factory=set)
    _events: dict[int, Recorded] = field(factory=dict)
    _clocks: dict[int, Clock] = field(factory=dict)
    _last: dict[int, tuple[str, str | None]] = field(factory=dict)
    """{stream: its last task and that task's line}."""
    _groups: dict[int, str | None] = field(factory=dict)
    """{stream: the line that opened the task group that is open there}."""
    _collectives: dict[int, str] = field(factory=dict)
    """{a communicator's stream: the collective that it runs}."""
    _thread: int = 0
    _numbers: int = CAPTURING

    def new_stream(self) -> int:
        self._numbers += 1
        return self._numbers

    def refuse(self, rule: str, what: str, source: str | None, *, sure: bool = True) -> None:
        refusal = Refusal(rule=rule, what=what, source=source, sure=sure)
        if self.capturing and refusal not in self.refusals:
            self.refusals.append(refusal)

    def begin(self) -> None:
        self.capturing = True
        self._thread = threading.get_ident()
        self._captured = {CAPTURING}

    def launch(self, stream: int, what: str, source: str | None) -> None:
        """A kernel, or another task of the device, on a stream."""
        if not self.capturing:
            return
        if stream == DEFAULT:
            self.refuse("default_stream", f"{what} on the default stream", source)
        elif stream not in self._captured:
            self.refuse("uncaptured_stream", f"{what} on stream {stream}, which waits for nothing captured", source)
        else:
            self.tasks[stream] += 1
            self._clock(stream)[stream] = self.tasks[stream]
            self._last[stream] = (what, source)

    def record(self, event: int, stream: int, source: str | None) -> None:
        if self.capturing and stream == DEFAULT:
            self.refuse("default_stream", "an event is recorded on the default stream", source)
        captured = self.capturing and stream in self._captured
        self._events[event] = Recorded(captured=captured, clock=dict(self._clock(stream)) if captured else {})

    def wait(self, event: int, stream: int, source: str | None, *, external: bool = False) -> None:
        """The stream waits for the event: nothing where nobody has recorded it; an external one is the host's."""
        found = self._events.get(event)
        if not self.capturing or found is None or external:
            return
        if not found.captured:
            if stream in self._captured:
                self.refuse("border_event", "a captured stream waits for an event from outside the capture", source)
            return
        if stream == DEFAULT:
            self.refuse("default_stream", "the default stream waits for an event of the capture", source)
            return
        self._captured.add(stream)
        clock = self._clock(stream)
        for other, time in found.clock.items():
            clock[other] = max(clock.get(other, 0), time)

    def synchronise(
        self, what: str, source: str | None, *, stream: int | None = None, event: int | None = None
    ) -> None:
        """The host waits for a stream, for an event, or (neither is named) for the device."""
        recorded = self._events.get(event) if event is not None else None
        free = (stream is not None and stream not in self._captured) or (
            event is not None and (recorded is None or not recorded.captured)
        )
        if not free:
            self.refuse("synchronise", what, source)

    def unsafe(self, rule: str, what: str, source: str | None) -> None:
        """A call that the mode decides about: in `relaxed` every thread may, in `thread_local` other threads may."""
        if self.mode == "relaxed":
            self.refuse(
                rule, f"{what}: relaxed mode lets it through, and it is done once, at capture", source, sure=False
            )
        elif self.own_thread:
            self.refuse(rule, what, source)
        elif self.mode == "global":
            self.refuse("other_thread", f"{what} in another thread", source)

    @property
    def own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def collective(self, what: str, stream: int, source: str | None) -> int:
        """A collective begins after `stream` on a stream of the communicator's own, whose number it gives."""
        own = self.new_stream()
        self._fork(own, stream, source)
        if self.capturing and own in self._captured:
            self._collectives[own] = what
            self.launch(own, what, source)
        return own

    def _fork(self, side: int, stream: int, source: str | None) -> None:
        marker = -side
        self.record(marker, stream, source)
        self.wait(marker, side, source)

    def group_begin(self, stream: int, source: str | None) -> None:
        if stream not in self._captured:
            self.refuse("not_capturing", f"graph_task_group_begin on stream {stream}", source)
        elif stream in self._groups:
            self.refuse("task_group", "a second task group is opened on one stream", source)
        else:
            self._groups[stream] = source

    def group_end(self, stream: int, source: str | None) -> None:
        if self._groups.pop(stream, self) is self:
            self.refuse("task_group", "graph_task_group_end without a begin on this stream", source)

    def update(self, stream: int, source: str | None) -> None:
        if stream in self._captured:
            self.refuse("task_group", "graph_task_update_begin on a stream that captures", source)

    def end(self, stream: int = CAPTURING) -> None:
        """The capture ends: every stream of it must be known to be done where it began."""
        if stream != CAPTURING:
            self.refuse("unmatched_end", f"the capture ends on stream {stream}", None)
        if not self.own_thread and self.mode != "relaxed":
            self.refuse("wrong_thread", "the capture ends in another thread", None)
        known = self._clock(CAPTURING)
        for other in sorted(self._captured - {CAPTURING}):
            if known.get(other, 0) < self.tasks[other]:
                what, source = self._last[other]
                rule = "unjoined_collective" if other in self._collectives else "unjoined_stream"
                self.refuse(rule, f"{what} is the last of its stream, and nothing waits for it", source)
        for source in self._groups.values():
            self.refuse("task_group", "the task group is still open when the capture ends", source)
        self.capturing = False

    def _clock(self, stream: int) -> Clock:
        return self._clocks.setdefault(stream, {})
