"""A tracker: a line for each run in a text file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from npucompose.experiment.tracking import RunTracker, TrackerOrder
from npucompose.report.json import Tracked


class Logbook(RunTracker):
    """Writes `logbook.txt` in the folder `tracker.place`, or in the store."""

    name: ClassVar[str] = "logbook"

    @classmethod
    def reporter(cls, order: TrackerOrder) -> Callable[[Tracked, bool], None]:
        book = Path(order.place or order.store) / "logbook.txt"

        def report(run: Tracked, reused: bool) -> None:
            with book.open("a", encoding="utf-8") as lines:
                lines.write(f"{run.name}{' (stored)' if reused else ''}\n")

        return report
