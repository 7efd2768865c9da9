"""Finished runs reported to a tracker, from a process of its own: a tracker that hangs or dies loses no run.

The run directory is complete before any tracker hears of it; what goes wrong afterwards is a warning and no other
status.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from attrs import frozen

from airflow_free.fresh_python import FIRST, SAFE_PATH
from npucompose.errors import ConfigError
from npucompose.registry import Registry
from npucompose.report import json as report_json
from npucompose.report.json import Tracked
from npucompose.results.effective import COMMAND_LINE, DEFAULT, origin
from npucompose.schema.sweep import Tracker
from npucompose.table.options import LONGEST, is_name

TIME_LIMIT_S = 60.0
"""For the first run; each further one may take EACH_S more."""
EACH_S = 10.0
BOOT = (
    FIRST
    + "import json; sys.path[:] = json.loads(sys.argv[1]); from npucompose.experiment.tracking import main; main()"
)


def check(tracker: Tracker, provenance: dict[str, str]) -> None:
    """ConfigError where the tracker's package is missing, or where a file says to whom the run is to be told."""
    if tracker.place is not None and origin(provenance, "tracker.place") != COMMAND_LINE:
        raise ConfigError(
            f"tracker.place={tracker.place} comes from {origin(provenance, 'tracker.place')}; only the command line "
            "itself can say where runs are told: add tracker.place=… there."
        )
    said_by = origin(provenance, "tracker.experiment")
    if said_by not in (COMMAND_LINE, DEFAULT) and not is_name(tracker.experiment):
        raise ConfigError(
            f"tracker.experiment must be a plain name, of which folders are made, and comes from {said_by}: "
            f"{tracker.experiment[:LONGEST]!r}."
        )
    package = None if tracker.name == "none" else TRACKERS.get(tracker.name, "tracker").package
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"tracker={tracker.name} needs the package {package}: pip install 'npucompose[{tracker.name}]'."
        )


def report_runs(tracker: Tracker, folders: Sequence[Path], store: Path) -> tuple[str, ...]:
    """Report finished runs to the tracker; what went wrong, a sentence each, and nothing raised."""
    if tracker.name == "none" or not folders:
        return ()
    order = {
        "name": tracker.name,
        "place": tracker.place,
        "experiment": tracker.experiment,
        "store": str(store.resolve()),
        "folders": [str(folder.resolve()) for folder in folders],
    }
    limit = TIME_LIMIT_S + EACH_S * len(folders)
    try:
        done = subprocess.run(
            [sys.executable, "-c", BOOT, json.dumps(sys.path)],
            input=json.dumps(order), capture_output=True, text=True, timeout=limit, check=False,
            env={**SAFE_PATH, **os.environ},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return (f"tracker={tracker.name} did not end within {limit:.0f} s; the runs are kept, it may lack some.",)
    return tuple(f"tracker={tracker.name}: {problem}" for problem in _problems(done))


def _problems(done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    """The last line is the account; without one the process died."""
    lines = done.stdout.strip().splitlines()
    try:
        yield from json.loads(lines[-1])["problems"]
    except (IndexError, ValueError, KeyError, TypeError):
        told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        yield f"its process ended with exit status {done.returncode} ({told}); the runs are kept."


@frozen(kw_only=True)
class TrackerOrder:
    """What the tracker's own process is given."""

    name: str
    place: str | None
    experiment: str
    store: str
    folders: tuple[str, ...]


class RunTracker(ABC):
    """Where finished runs are filed, as `tracker=NAME` asks; it lives in a process of its own."""

    name: ClassVar[str]
    package: ClassVar[str | None] = None
    """What has to be importable, and the extra of npucompose that brings it."""

    @classmethod
    @abstractmethod
    def reporter(cls, order: TrackerOrder) -> Callable[[Tracked, bool], None]:
        """A function that reports one run, or leaves it out where a run that ran nothing (True) is filed already."""


TRACKERS: Registry[type[RunTracker]] = Registry(kind="tracker", base=RunTracker, group="npucompose.trackers")


def main() -> None:
    """Called by BOOT: the order on stdin, the account as the last line of stdout."""
    order = TrackerOrder(**json.load(sys.stdin))
    with os.fdopen(os.dup(1), "w") as account:
        os.dup2(2, 1)  # trackers print; only the account goes to the parent
        problems = handle(order, reporter_of(order))
        account.write(json.dumps({"problems": problems}) + "\n")


def handle(order: TrackerOrder, reporter: Callable[[Tracked, bool], None]) -> list[str]:
    """Report each run; a run that cannot be reported does not keep the others from it."""
    problems: list[str] = []
    for folder in map(Path, order.folders):
        try:
            report = report_json.load(folder)
            reporter(Tracked.from_report(report, folder), report.reused)
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is accounted for and loses nothing
            problems.append(f"{folder.name} was not told: {type(error).__name__}: {error}")
    return problems


def reporter_of(order: TrackerOrder) -> Callable[[Tracked, bool], None]:
    """A function that reports one run, or leaves it out where a run that ran nothing is known there."""
    return TRACKERS.get(order.name).reporter(order)
