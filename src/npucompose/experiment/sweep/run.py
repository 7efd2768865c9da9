"""Runs a plan: what the ledger has is not run again, every end goes into it at once, no way to be killed loses one."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from attrs import evolve, frozen

from airflow_free.outcome import Outcome
from airflow_free.stage import Event
from airflow_free.store import Store
from airflow_free.words import paragraph
from npucompose.experiment.run import Begun
from npucompose.experiment.sweep.crew import Crew, crew_of
from npucompose.experiment.sweep.folder import PointFolder
from npucompose.experiment.sweep.ledger import Entry, Ledger
from npucompose.experiment.sweep.plan import Plan, Point
from npucompose.report.files import write_atomically
from npucompose.schema.figures import Figures
from npucompose.schema.record import EXIT_STATUS
from npucompose.visible import visible

POINTS = "points.json"
RUN_AGAIN = ("failed", "crashed", "timeout", "memory_limit")
"""What retry=failed repeats."""

NewsKind = Literal["started", "stage", "ended", "kept"]


@frozen(kw_only=True)
class News:
    """Something that happened to a point; `entry` is its end, for `ended` and `kept` (it had ended before)."""

    kind: NewsKind
    point: Point
    event: Event | None = None
    entry: Entry | None = None


Listen = Callable[[News], None]


def exit_status(entries: Sequence[Entry]) -> int:
    """3 if any failed, crashed or timed out, else 1 for a gate that did not hold, else 2 if any was illegal."""
    found = {EXIT_STATUS[entry.status] for entry in entries}
    return next((status for status in (3, 1, 2) if status in found), 0)


Name = Callable[[Point], str]
"""What the folder of a point is called, below that of the sweep."""


class Source(ABC):
    """Where the points of a loop come from: a plan, or a search that learns from their ends."""

    @abstractmethod
    def ask(self) -> Point | None:
        """The next point to run, a legal one; None when there is none before another has ended, or at all."""

    def tell(self, point: Point, entry: Entry) -> None:
        """A point that was asked for has ended."""


def run_sweep(
    plan: Plan, folder: Path, name: Name, *, store: Store, ledger: Ledger, listen: Listen
) -> dict[str, Entry]:
    """{key: end} of every point of the plan; points that are the same point run once.

    What is in the ledger with a report that is still there is kept, unless the plan asks for failed ones again; illegal
    points go into the ledger first.
    """
    write_atomically(folder / POINTS, membership(plan.points))
    ledger.write(illegal(point) for point in plan.illegal)
    ends = kept(plan.points, ledger, retry_failed=plan.retry_failed)
    once = {point.key: point for point in reversed(plan.points)}
    for key, entry in ends.items():
        listen(News(kind="kept", point=once[key], entry=entry))
    left = {point.key: point for point in plan.points if point.key not in ends}
    folders = {point.key: PointFolder.of(folder, name(point), point) for point in left.values()}
    with crew_of(plan.executor, folder) as crew:
        loop = Loop(crew, store, ledger, lambda point: folders[point.key], listen)
        ends.update(loop.run(_Queue(left.values())))
    return ends


class _Queue(Source):
    def __init__(self, points: Iterable[Point]) -> None:
        self.points = iter(points)

    def ask(self) -> Point | None:
        return next(self.points, None)


def membership(points: Sequence[Point]) -> str:
    """Which points belong to this sweep; what became of them is in the ledger."""
    found = [{"number": p.number, "key": p.key, "overrides": p.overrides} for p in points]
    return json.dumps({"schema": 1, "points": found}, indent=1) + "\n"


def illegal(point: Point) -> Entry:
    return Entry(key=point.key, status="illegal", overrides=point.overrides, error="; ".join(point.problems))


def kept(points: Sequence[Point], ledger: Ledger, *, retry_failed: bool) -> dict[str, Entry]:
    """{key: end} of those that are not run again.

    Illegal is not kept where only a worker could see it: what it saw, a missing package say, may have changed.
    """
    found = ledger.of(list(dict.fromkeys(point.key for point in points)))
    again = RUN_AGAIN if retry_failed else ()
    refused = {point.key for point in points if point.job is None}
    return {
        key: entry
        for key, entry in found.items()
        if entry.status not in again and (entry.status != "illegal" or key in refused) and _is_there(entry, ledger)
    }


def _is_there(entry: Entry, ledger: Ledger) -> bool:
    """Its report was not thrown away; without one a point counts as not run (what the store has makes that quick)."""
    return entry.run_dir is None or (ledger.path.parent / entry.run_dir / "report.json").is_file()


class Loop:
    """Start points where the crew has room, wait for news, write ends down."""

    def __init__(
        self, crew: Crew, store: Store, ledger: Ledger, folder_of: Callable[[Point], PointFolder], listen: Listen
    ) -> None:
        self.crew, self.store, self.ledger = crew, store, ledger
        self.folder_of, self.listen = folder_of, listen
        self.running: dict[int, tuple[Point, Begun, PointFolder]] = {}
        self.ends: dict[str, Entry] = {}

    def run(self, source: Source) -> dict[str, Entry]:
        point = source.ask()
        while point is not None or self.running:
            while point is not None and self._begin(point, source):
                point = source.ask()
            if self.running:
                self._hear(source)
                point = point or source.ask()
        return self.ends

    def _begin(self, point: Point, source: Source) -> bool:
        """Start it, or finish it where the store has everything; False when it has to wait for room."""
        assert point.job is not None
        if not self.crew.has_room(point.job):
            return False
        folder = self.folder_of(point)
        self.listen(News(kind="started", point=point))
        try:
            begun = Begun.of(point.job, folder.make(point.job), self.store)
        except OSError as error:
            source.tell(point, self._ended(point, _broken(point, f"its folder cannot be made: {error}.")))
            return True
        if begun.needs_worker:
            self.running[point.number] = (point, begun, folder)
            self.crew.start(point.number, begun)
        else:
            source.tell(point, self._end(point, begun, folder, None))
        return True

    def _hear(self, source: Source) -> None:
        for number, news in self.crew.news():
            point, begun, folder = self.running[number]
            if isinstance(news, Event):
                self.listen(News(kind="stage", point=point, event=news))
            else:
                del self.running[number]
                source.tell(point, self._end(point, begun, folder, news))

    def _end(self, point: Point, begun: Begun, folder: PointFolder, outcome: Outcome | None) -> Entry:
        """First the report, whole, then the ledger: killed in between, the point is run again from the store."""
        began = time.monotonic()
        try:
            folder.keep(begun.job)
            report = begun.finish(outcome)
        except Exception as error:  # noqa: BLE001  whatever a job left behind, it is the end of one point only
            if outcome is not None and outcome.status == "config_error":
                folder.take_back()
                entry = evolve(illegal(point), error="; ".join(outcome.problems or (outcome.error or "",)))
            else:
                entry = _broken(point, f"what it left cannot be made a report: {paragraph(error)}")
        else:
            entry = Entry(
                key=point.key,
                status=report.status,
                overrides=point.overrides,
                error=report.error,
                exit_signal=outcome.exit_signal if outcome is not None else None,
                run_dir=os.path.relpath(begun.run_dir, self.ledger.path.parent),
                seconds=outcome.seconds if outcome is not None else time.monotonic() - began,
                figures=Figures.of(report),
            )
        return self._ended(point, entry)

    def _ended(self, point: Point, entry: Entry) -> Entry:
        self.ledger.write([entry])
        self.ends[point.key] = entry
        self.listen(News(kind="ended", point=point, entry=entry))
        return entry


def _broken(point: Point, words: str) -> Entry:
    return Entry(key=point.key, status="crashed", overrides=point.overrides, error=visible(words))
