"""Runs the points of a sweep: every end goes into the ledger at once, and no way to be killed loses one.

    loop = Loop(executor, ledger, begin, listen)
    ends = loop.run(Source(points))        # {key: Entry}

Where points come from, and what a run of one leaves behind, a project says in a `Source` and a `PointRun`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from attrs import frozen

from airflow_free.errors import paragraph
from airflow_free.executors import ActiveRun, Executor
from airflow_free.ledger import Entry, Ledger
from airflow_free.outcome import Outcome
from airflow_free.stage import Event

J = TypeVar("J")
E = TypeVar("E", bound=Entry)
E_co = TypeVar("E_co", bound=Entry, covariant=True)
SweepEventKind = Literal["started", "stage", "ended", "kept"]


@frozen(kw_only=True)
class Point(Generic[J]):
    """One combination. A legal one has a job; an illegal one has `problems`, a sentence each, and never runs."""

    number: int
    overrides: tuple[str, ...]
    """What tells it from the others."""
    job: J | None
    problems: tuple[str, ...] = ()
    key: str


@frozen(kw_only=True)
class SweepEvent:
    """Something that happened to a point; `entry` is its end, for `ended` and `kept` (it had ended before)."""

    kind: SweepEventKind
    point: Point[Any]
    event: Event | None = None
    entry: Any = None


Listen = Callable[[SweepEvent], None]


class PointRun(Protocol[E_co]):
    """A point that was begun."""

    @property
    def run(self) -> ActiveRun: ...

    @property
    def needs_worker(self) -> bool:
        """Whether the store lacks anything of it."""
        ...

    def finish(self, outcome: Outcome | None) -> E_co:
        """Leave everything behind that it should, and say how it ended; `outcome` is None where no worker was needed.
        Whatever it raises is the end of this point only."""
        ...

    def broken(self, problem: str) -> E_co:
        """Its end where `finish` raised."""
        ...


class Source:
    """Where the points of a loop come from: a plan, in its order; or, in a class below this one, a search that learns
    from their ends.
    """

    def __init__(self, points: Iterable[Point[Any]] = ()) -> None:
        self._left = iter(points)

    def ask(self) -> Point[Any] | None:
        """The next point to run, a legal one; None when there is none before another has ended, or at all."""
        return next(self._left, None)

    def ended(self, point: Point[Any], entry: Any) -> None:
        """A point that was asked for has ended."""


def membership(points: Sequence[Point[Any]]) -> str:
    """Which points belong to a sweep, as a file; what became of them is in the ledger."""
    found = [{"number": p.number, "key": p.key, "overrides": p.overrides} for p in points]
    return json.dumps({"schema": 1, "points": found}, indent=1) + "\n"


class Loop(Generic[E]):
    """Start points where the executor has room, wait for events, write ends down."""

    def __init__(
        self, executor: Executor, ledger: Ledger[E], begin: Callable[[Point[Any]], PointRun[E] | E], listen: Listen
    ) -> None:
        """`begin` makes what a point needs to run; an entry instead says that it has ended already."""
        self.executor, self.ledger, self.begin, self.listen = executor, ledger, begin, listen
        self.running: dict[int, tuple[Point[Any], PointRun[E]]] = {}
        self.ends: dict[str, E] = {}

    def run(self, source: Source) -> dict[str, E]:
        point = source.ask()
        while point is not None or self.running:
            while point is not None and self._begin(point, source):
                point = source.ask()
            if self.running:
                self._wait(source)
                point = point or source.ask()
        return self.ends

    def _begin(self, point: Point[Any], source: Source) -> bool:
        """Start it, or finish it where the store has everything; False when it has to wait for room."""
        assert point.job is not None
        if not self.executor.has_room(point.job):
            return False
        self.listen(SweepEvent(kind="started", point=point))
        begun = self.begin(point)
        if isinstance(begun, Entry):
            source.ended(point, self._ended(point, begun))
        elif begun.needs_worker:
            self.running[point.number] = (point, begun)
            self.executor.start(point.number, begun.run)
        else:
            source.ended(point, self._finished(point, begun, None))
        return True

    def _wait(self, source: Source) -> None:
        for number, event in self.executor.events():
            point, begun = self.running[number]
            if isinstance(event, Event):
                self.listen(SweepEvent(kind="stage", point=point, event=event))
            else:
                del self.running[number]
                source.ended(point, self._finished(point, begun, event))

    def _finished(self, point: Point[Any], begun: PointRun[E], outcome: Outcome | None) -> E:
        """First what it leaves behind, whole, then the ledger: killed in between, it is run again from the store."""
        try:
            entry = begun.finish(outcome)
        except Exception as error:  # noqa: BLE001  whatever a job left behind, it is the end of one point only
            entry = begun.broken(paragraph(error))
        return self._ended(point, entry)

    def _ended(self, point: Point[Any], entry: E) -> E:
        self.ledger.write([entry])
        self.ends[point.key] = entry
        self.listen(SweepEvent(kind="ended", point=point, entry=entry))
        return entry
