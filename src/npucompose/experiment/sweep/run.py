"""Runs a plan: what the ledger has is not run again; the executor that the plan names runs the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from airflow_free.executors import Executor
from airflow_free.executors.local import LocalExecutor
from airflow_free.store import Store, write_atomically
from airflow_free.sweep import Listen, Loop, Queue, SweepEvent, membership
from npucompose.experiment.orchestrator import translate_errors
from npucompose.experiment.sweep.ledger import Entry, Ledger
from npucompose.experiment.sweep.plan import Plan, Point
from npucompose.experiment.sweep.point_run import PointFolder, PointRun
from npucompose.results.record import EXIT_STATUS
from npucompose.schema import sweep as choices

POINTS = "points.json"
RUN_AGAIN = ("failed", "crashed", "timeout", "memory_limit")
"""What retry=failed repeats."""
Options = TypeVar("Options")
Name = Callable[[Point], str]
"""What the folder of a point is called, below that of the sweep."""


def exit_status(entries: Sequence[Entry]) -> int:
    """3 if any failed, crashed or timed out, else 1 for a gate that did not hold, else 2 if any was illegal."""
    found = {EXIT_STATUS[entry.status] for entry in entries}
    return next((status for status in (3, 1, 2) if status in found), 0)


def run_sweep(
    plan: Plan, folder: Path, name: Name, *, store: Store, ledger: Ledger, listen: Listen
) -> dict[str, Entry]:
    """{key: end} of every point of the plan; points that are the same point run once.

    What is in the ledger with a report that is still there is kept, unless the plan asks for failed ones again; illegal
    points go into the ledger first.
    """
    write_atomically(folder / POINTS, membership(plan.points))
    ledger.write(Entry.illegal(point) for point in plan.illegal)
    ends = kept(plan.points, ledger, retry_failed=plan.retry_failed)
    once = {point.key: point for point in reversed(plan.points)}
    for key, entry in ends.items():
        listen(SweepEvent(kind="kept", point=once[key], entry=entry))
    left = {point.key: point for point in plan.points if point.key not in ends}
    folders = {point.key: PointFolder.of(folder, name(point), point) for point in left.values()}
    with executor_of(plan.executor, folder) as executor:
        begin = beginner(store, ledger, lambda point: folders[point.key])
        ends.update(Loop(executor, ledger, begin, listen).run(Queue(left.values())))
    return ends


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


def beginner(
    store: Store, ledger: Ledger, folder_of: Callable[[Point], PointFolder]
) -> Callable[[Point], PointRun | Entry]:
    """What begins a point of a loop."""
    return lambda point: PointRun.begin(point, folder_of(point), store, ledger.path.parent)


def executor_of(options: choices.Executor, folder: Path) -> Executor:
    """What runs the points of a sweep whose folder is `folder`."""
    if isinstance(options, choices.Local):
        return LocalExecutor(folder, jobs=options.jobs, devices=options.devices)
    with translate_errors():
        if isinstance(options, choices.Ray):
            from airflow_free.executors.ray import RayExecutor, RayOptions

            return RayExecutor(_as(RayOptions, options))
        from airflow_free.executors.slurm import SlurmExecutor, SlurmOptions

        return SlurmExecutor(_as(SlurmOptions, options), folder)


def _as(kind: type[Options], options: Any) -> Options:
    """Our options as those of the orchestrator, which have the same names."""
    return kind(**{f.name: getattr(options, f.name) for f in attrs.fields(kind)})  # pyright: ignore[reportArgumentType]
