"""Runs a plan: what the ledger has is not run again, every end goes into it at once, no way to be killed loses one."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from attrs import evolve, frozen

from airflow_free.experiment import ENTRY, LOG, Begun
from airflow_free.outcome import Outcome
from airflow_free.pool import Order, Pool
from airflow_free.stage import Event
from airflow_free.store import Store
from airflow_free.sweep.folder import PointFolder
from airflow_free.sweep.ledger import Entry, Ledger
from airflow_free.sweep.plan import Plan, Point
from airflow_free.sweep.schedule import Seat, seat_for, seats
from npucompose.errors import ConfigError
from npucompose.report.files import write_atomically
from npucompose.schema.figures import Figures
from npucompose.schema.record import EXIT_STATUS

SERVER_LOG = "forkserver.log"
POINTS = "points.json"
LOADED = (
    "airflow_free.experiment", "airflow_free.stages", "npucompose.compose.session", "npucompose.measure.environment",
    "npucompose.measure.numerics", "npucompose.measure.timing",
)  # fmt: skip
"""What every job needs beside what its target does."""
RUN_AGAIN = ("failed", "crashed", "timeout")
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


def run_sweep(
    plan: Plan, folder: Path, names: Sequence[str], *, store: Store, ledger: Ledger, listen: Listen
) -> dict[str, Entry]:
    """{key: end} of every point of the plan; points that are the same point run once.

    `names` are the folders of the points below `folder`. What is in the ledger with a report that is still there is
    kept, unless the plan asks for failed ones again; illegal points go into the ledger first.
    """
    write_atomically(folder / POINTS, _membership(plan))
    ledger.write(_illegal(point) for point in plan.illegal)
    ends = _kept(plan, ledger)
    for point in plan.points:
        if point.key in ends:
            listen(News(kind="kept", point=point, entry=ends[point.key]))
    left = {point.key: point for point in plan.points if point.key not in ends}
    folders = {point.key: PointFolder.of(folder, names[point.number], point) for point in left.values()}
    with Pool(folder / SERVER_LOG) as pool:
        ends.update(_Sweep(plan, pool, store, ledger, folders, listen).run(list(left.values())))
    return ends


def _membership(plan: Plan) -> str:
    """Which points belong to this sweep; what became of them is in the ledger."""
    points = [{"number": p.number, "key": p.key, "overrides": p.overrides} for p in plan.points]
    return json.dumps({"schema": 1, "points": points}, indent=1) + "\n"


def _illegal(point: Point) -> Entry:
    return Entry(key=point.key, status="illegal", overrides=point.overrides, error="; ".join(point.problems))


def _kept(plan: Plan, ledger: Ledger) -> dict[str, Entry]:
    """Illegal is not kept where only a worker could see it: what it saw, a missing package say, may have changed."""
    found = ledger.of(list(dict.fromkeys(point.key for point in plan.points)))
    again = RUN_AGAIN if plan.retry_failed else ()
    refused = {point.key for point in plan.illegal}
    return {
        key: entry
        for key, entry in found.items()
        if entry.status not in again and (entry.status != "illegal" or key in refused) and _is_there(entry, ledger)
    }


def _is_there(entry: Entry, ledger: Ledger) -> bool:
    """Its report was not thrown away; without one a point counts as not run (what the store has makes that quick)."""
    return entry.run_dir is None or (ledger.path.parent / entry.run_dir / "report.json").is_file()


class _Sweep:
    """The loop: give seats to the next points, wait for news, write ends down."""

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        store: Store,
        ledger: Ledger,
        folders: Mapping[str, PointFolder],
        listen: Listen,
    ) -> None:
        self.plan, self.pool, self.store, self.ledger = plan, pool, store, ledger
        self.folders, self.listen = folders, listen
        self.running: dict[int, tuple[Point, Begun, Seat]] = {}
        self.ends: dict[str, Entry] = {}

    def run(self, points: Sequence[Point]) -> dict[str, Entry]:
        waiting = deque(points)
        while waiting or self.running:
            while waiting and self._begin(waiting[0]):
                waiting.popleft()
            if self.running:
                for number, news in self.pool.news():
                    point, begun, _ = self.running[number]
                    if isinstance(news, Event):
                        self.listen(News(kind="stage", point=point, event=news))
                    else:
                        del self.running[number]
                        self._end(point, begun, news)
        return self.ends

    def _begin(self, point: Point) -> bool:
        """Start it, or finish it where the store has everything; False when it has to wait for a seat."""
        assert point.job is not None
        taken = [seat for _, _, seat in self.running.values()]
        seat = seat_for(seats(point.job, self.plan.executor), taken, self.plan.executor)
        if seat is None:
            return False
        run_dir = self.folders[point.key].make(point.job)
        begun = Begun.of(point.job, run_dir, self.store)
        self.listen(News(kind="started", point=point))
        if not begun.needs_worker:
            self._end(point, begun, None)
            return True
        target = point.job.checked.target
        self.running[point.number] = (point, begun, seat)
        self.pool.start(
            Order(
                number=point.number,
                entry=ENTRY,
                payload=begun.payload,
                time_limit_s=point.job.checked.experiment.pipeline.time_limit_s,
                log_path=run_dir / LOG,
                env=target.environment(),
                loaded=(*target.loaded, *LOADED),
                late_env=dict(seat.env),
            )
        )
        return True

    def _end(self, point: Point, begun: Begun, outcome: Outcome | None) -> None:
        """First the report, whole, then the ledger: killed in between, the point is run again from the store."""
        began = time.monotonic()
        try:
            report = begun.finish(outcome)
        except ConfigError as error:
            self.folders[point.key].take_back()
            entry = evolve(_illegal(point), error="; ".join(error.problems))
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
        self.ledger.write([entry])
        self.ends[point.key] = entry
        self.listen(News(kind="ended", point=point, entry=entry))
