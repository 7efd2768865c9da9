"""Which call happens before which: vector clocks over streams and events, and what is read without order.

On a device two streams run at the same time unless an event orders them; the stand-in runs everything in one row, so a
missing event would never show in the values. The clocks show it.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, frozen

Clock = dict[int, int]
"""{stream: how many of its calls are known to be done}."""


@frozen(kw_only=True)
class Access:
    """One call's touch of a piece of memory."""

    stream: int
    time: int
    call: str


@define(kw_only=True, eq=False)
class Order:
    """The calls of one capture.

    `call(1, "mm", reads={7}, writes={8}); call(2, "relu", reads={8}, writes={9})` puts one sentence into `unordered`;
    with `record(e, 1); wait(e, 2)` in between it puts none.

    Between `begin` and `end`, which name the stream that captures, `outside` is filled: a call on a stream that no
    event of the capture has reached is not captured, and a capture cannot end before a stream that it holds does.
    """

    clocks: dict[int, Clock] = field(factory=dict)
    events: dict[int, Clock] = field(factory=dict)
    written: dict[int, Access] = field(factory=dict)
    read: dict[int, list[Access]] = field(factory=dict)
    unordered: list[str] = field(factory=list)
    outside: list[str] = field(factory=list)
    """What the capture does not hold, though it was called between its begin and its end."""
    history: list[tuple[Access, Clock]] = field(factory=list)
    """Each call, and what its stream knew when it began."""
    _reached: set[int] = field(factory=set)
    _carrying: set[int] = field(factory=set)
    """Events that a captured stream recorded: who waits for one is captured too."""
    _last: dict[int, Access] = field(factory=dict)

    def begin(self, stream: int) -> None:
        self._reached = {stream}

    def end(self, stream: int) -> None:
        clock = self._clock(stream)
        for other, last in self._last.items():
            if other != stream and clock.get(other, 0) < last.time:
                self.outside.append(
                    f"{last.call} on stream {other} is the last of its stream, and stream {stream}, which captures, "
                    "waits for no event after it: the capture ends before it."
                )
        self._reached.clear()

    def record(self, event: int, stream: int) -> None:
        self.events[event] = dict(self._clock(stream))
        if stream in self._reached:
            self._carrying.add(event)

    def wait(self, event: int, stream: int) -> None:
        """What the event knew, the stream knows now; an event that nobody recorded in this capture orders nothing."""
        clock = self._clock(stream)
        if event in self._carrying and self._reached:
            self._reached.add(stream)
        for other, time in self.events.get(event, {}).items():
            clock[other] = max(clock.get(other, 0), time)

    def call(self, stream: int, name: str, reads: Iterable[int], writes: Iterable[int]) -> None:
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        mine = self._last[stream] = Access(stream=stream, time=clock[stream], call=name)
        if self._reached and stream not in self._reached:
            self._reached.add(stream)  # told once
            self.outside.append(
                f"{name} is called on stream {stream}, which waits for no event of the capture: it is not captured."
            )
        self.history.append((mine, dict(clock)))
        reads, writes = set(reads), set(writes)
        for memory in reads | writes:
            self._check(mine, self.written.get(memory), clock, "wrote")
        for memory in writes:
            for reader in self.read.pop(memory, []):
                self._check(mine, reader, clock, "reads")
            self.written[memory] = mine
        for memory in reads - writes:
            self.read.setdefault(memory, []).append(mine)

    def happens_before(self) -> set[tuple[str, str]]:
        """(earlier, later) of the calls that are ordered however long each of them takes."""
        return {
            (first.call, then.call)
            for then, clock in self.history
            for first, _ in self.history
            if first is not then and clock.get(first.stream, 0) >= first.time
        }

    def _check(self, mine: Access, earlier: Access | None, clock: Clock, did: str) -> None:
        if earlier is not None and earlier.stream != mine.stream and clock.get(earlier.stream, 0) < earlier.time:
            self.unordered.append(
                f"{mine.call} on stream {mine.stream} reads or writes what {earlier.call} on stream {earlier.stream} "
                f"{did}, and no event orders them."
            )

    def _clock(self, stream: int) -> Clock:
        return self.clocks.setdefault(stream, {})
