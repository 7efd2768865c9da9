"""Races: two tasks of different streams that touch the same bytes, one of them writing, and that nothing orders.

Order comes of streams and events alone, however long each task takes: a clock for each stream says how far it knows
every other one to be done (`learn`, `knows`; a planned graph's `Timing` keeps such clocks too). Knows no tensor and no
graph: memory is a key, and the bytes of it that a task touches are a `Span`. Imports no torch.

# Note [Each race once]
Behind a race the later task counts as having waited, as it will once that is mended: one missing wait is found once,
and not again by all that comes behind it.

# Note [Memory that is used again]
The allocator of a capture gives memory of a dead value to the next one of its stream, whatever other streams still do
with it. `Touch.over` names the dead: what they were touched by counts as touching the new value.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, TypeVar

from attrs import define, evolve, field, frozen

S = TypeVar("S", bound=Hashable)
RaceKind = Literal["read", "overwrite", "write", "reuse"]
"""What the later task does: it reads what the earlier one writes, writes what that one reads or writes, or begins a
value in memory that the earlier one still uses."""
MOST_WORK: Any = 100_000
"""Steps of numpy's search for a byte that two spans share; beyond it is not known."""
_ADDRESS = 1 << 32


def learn(clock: MutableMapping[S, int], other: Mapping[S, int]) -> None:
    """What the other clock knows, this one knows from now on."""
    for stream, time in other.items():
        clock[stream] = max(clock.get(stream, -1), time)


def knows(clock: Mapping[S, int], stream: S, time: int) -> bool:
    """Whether the stream is known to be done with its task of that time."""
    return clock.get(stream, -1) >= time


@frozen(kw_only=True)
class Span:
    """The bytes of a tensor in its memory: `Span(begin=8, shape=(2, 3), steps=(32, 8), item=4)`, steps in bytes."""

    begin: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    item: int

    @classmethod
    def from_items(cls, offset: int, shape: Sequence[int], strides: Sequence[int], item: int) -> Span:
        """Of a strided tensor, whose offset and strides count items of so many bytes."""
        return cls(begin=offset * item, shape=tuple(shape), steps=tuple(step * item for step in strides), item=item)

    @property
    def end(self) -> int:
        """The first byte behind it."""
        reach = sum((count - 1) * step for count, step in zip(self.shape, self.steps, strict=True))
        return self.begin + reach + self.item

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy, which looks at addresses and reads nothing."""
        return {
            "version": 3, "data": (_ADDRESS + self.begin, True), "typestr": f"|V{self.item}", "shape": self.shape,
            "strides": self.steps,
        }  # fmt: skip

    def meets(self, other: Span) -> bool | None:
        """Whether they share a byte; None where that is not found out in reasonable time."""
        if self.begin >= other.end or other.begin >= self.end:
            return False
        import numpy as np  # here: what imports this module mostly asks for no bytes

        try:
            return np.shares_memory(np.asarray(self), np.asarray(other), max_work=MOST_WORK)
        except np.exceptions.TooHardError:
            return None


@frozen(kw_only=True)
class Touch:
    """What a task does to memory: `Touch(memory=7, writes=True)` writes all of it."""

    memory: Hashable
    span: Span | None = None
    """None: all of its bytes."""
    reads: bool = False
    writes: bool = False
    certain: bool = True
    """False: the data decide which of the bytes are touched."""
    value: str = "value"
    """How the memory is named: `float32[4, 4]`."""
    over: tuple[Hashable, ...] = ()
    """Memory of dead values that it lies in; see Note [Memory that is used again]."""

    def meets(self, other: Touch) -> bool | None:
        """Whether both touch one byte of the same memory."""
        if self.span is None or other.span is None or self.span == other.span:
            return True
        return self.span.meets(other.span)

    def covers(self, other: Touch) -> bool:
        """Whoever races with `other` races with this, and it touches no less."""
        as_sure = self.certain or not other.certain
        return as_sure and (self.span is None or self.span == other.span) and (self.writes or not other.writes)


@frozen(kw_only=True, eq=False)
class RacingTask:
    """A task of a stream, and what its stream knew to be done when it began."""

    stream: int
    time: int
    what: str
    source: str | None
    clock: Mapping[int, int]


@frozen(kw_only=True, eq=False)
class _Access:
    task: RacingTask
    touch: Touch
    dead: bool = False
    """It touched a value that lay there before."""


@frozen(kw_only=True, eq=False)
class Race:
    """Two tasks that nothing orders, the later one in the program's order second."""

    first: RacingTask
    then: RacingTask
    kind: RaceKind
    value: str
    sure: bool
    """Whether they certainly touch the same byte."""
    writes_first: bool
    """Whether the earlier one writes."""


@define(kw_only=True, eq=False)
class RaceFinder:
    """The tasks of one capture in the program's order.

    `call(1, "mm", [Touch(memory=8, writes=True)]); call(2, "relu", [Touch(memory=8, reads=True)])` gives a race;
    with `record(e, 1); wait(e, 2)` in between there is none.
    """

    races: list[Race] = field(factory=list[Race])
    clocks: dict[int, dict[int, int]] = field(factory=dict[int, "dict[int, int]"])
    tasks: list[RacingTask] = field(factory=list[RacingTask])
    _events: dict[int, Mapping[int, int]] = field(factory=dict[int, "Mapping[int, int]"])
    _touched: dict[Hashable, list[_Access]] = field(factory=dict[Hashable, "list[_Access]"])

    def record(self, event: int, stream: int) -> None:
        """The event stands for what the stream knows now, its own tasks among it."""
        self._events[event] = dict(self._clock(stream))

    def wait(self, event: int, stream: int) -> None:
        """What the event stands for, the stream knows now; nothing where it was not recorded here."""
        learn(self._clock(stream), self._events.get(event, {}))

    def call(self, stream: int, what: str, touches: Iterable[Touch] = (), source: str | None = None) -> RacingTask:
        """The stream's next task; what it races with stands in `races`."""
        clock = self._clock(stream)
        clock[stream] = clock.get(stream, 0) + 1
        mine = RacingTask(stream=stream, time=clock[stream], what=what, source=source, clock=dict(clock))
        self.tasks.append(mine)
        accesses = [_Access(task=mine, touch=touch) for touch in touches]
        found = [race for access in accesses for race in self._against(access)]
        for race in sorted(found, key=lambda race: (not race.sure, -race.first.time)):
            if not knows(clock, race.first.stream, race.first.time):
                self.races.append(race)
                learn(clock, race.first.clock)  # Note [Each race once]
        mine = evolve(mine, clock=dict(clock))
        for access in accesses:
            self._keep(evolve(access, task=mine))
        return mine

    def count(self, stream: int) -> int:
        """Tasks of the stream so far."""
        return self._clock(stream).get(stream, 0)

    def _against(self, mine: _Access) -> Iterator[Race]:
        for earlier in self._of(mine.touch):
            known = knows(mine.task.clock, earlier.task.stream, earlier.task.time)
            kind = None if known else _kind(earlier, mine)
            met = mine.touch.meets(earlier.touch) if kind is not None else False
            if kind is not None and met is not False:
                yield Race(
                    first=earlier.task,
                    then=mine.task,
                    kind=kind,
                    value=(earlier if earlier.dead else mine).touch.value,
                    sure=met is True and mine.touch.certain and earlier.touch.certain,
                    writes_first=earlier.touch.writes,
                )

    def _of(self, touch: Touch) -> list[_Access]:
        """What its memory was touched by, in the lives of the dead too."""
        if touch.memory not in self._touched:
            dead = [one for memory in touch.over for one in self._touched.get(memory, ())]
            self._touched[touch.memory] = [evolve(one, dead=True, touch=evolve(one.touch, span=None)) for one in dead]
        return self._touched[touch.memory]

    def _keep(self, mine: _Access) -> None:
        """What it covers and is ordered before it is forgotten: a race with that is one with this."""
        kept = self._of(mine.touch)
        kept[:] = [
            one
            for one in kept
            if not (mine.touch.covers(one.touch) and knows(mine.task.clock, one.task.stream, one.task.time))
        ]
        kept.append(mine)

    def _clock(self, stream: int) -> dict[int, int]:
        return self.clocks.setdefault(stream, {})


def _kind(earlier: _Access, mine: _Access) -> RaceKind | None:
    """None where both only read what lives."""
    if earlier.dead:
        return "reuse" if mine.touch.writes or earlier.touch.writes else None
    if earlier.touch.writes:
        return "read" if mine.touch.reads else "write"
    return "overwrite" if mine.touch.writes else None
