"""The points of a sweep told to their trackers, in one go when the sweep is over: a tracker spoils no timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_free import tracking
from airflow_free.sweep.ledger import Entry
from airflow_free.sweep.plan import Point
from npucompose.schema.tracker import Tracker


def told(points: Sequence[Point], ends: Mapping[str, Entry], root: Path) -> tuple[str, ...]:
    """What went wrong in telling; `root` is the ledger's folder, which run directories are relative to."""
    folders: dict[Tracker, dict[Path, None]] = {}
    for point in points:
        entry = ends.get(point.key)
        if point.job is None or entry is None or entry.run_dir is None:
            continue
        folders.setdefault(point.job.checked.experiment.tracker, {})[root / entry.run_dir] = None
    return tuple(
        problem for tracker, some in folders.items() for problem in tracking.tell_of(tracker, list(some), root)
    )
