"""What the tracker's own process does: read each run directory, report it, account for what could not be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from npucompose.experiment.tracking.base import TRACKERS, Order
from npucompose.report import json as report_json
from npucompose.report.json import Tracked


def main() -> None:
    """Called by BOOT: the order on stdin, the account as the last line of stdout."""
    order = Order(**json.load(sys.stdin))
    with os.fdopen(os.dup(1), "w") as account:
        os.dup2(2, 1)  # trackers print; only the account goes to the parent
        problems = handle(order, reporter_of(order))
        account.write(json.dumps({"problems": problems}) + "\n")


def handle(order: Order, reporter: Callable[[Tracked, bool], None]) -> list[str]:
    """Report each run; a run that cannot be reported does not keep the others from it."""
    problems: list[str] = []
    for folder in map(Path, order.folders):
        try:
            report = report_json.load(folder)
            reporter(Tracked.of(report, folder), report.reused)
        except Exception as error:  # noqa: BLE001  whatever a tracker raises is accounted for and loses nothing
            problems.append(f"{folder.name} was not told: {type(error).__name__}: {error}")
    return problems


def reporter_of(order: Order) -> Callable[[Tracked, bool], None]:
    """A function that reports one run, or leaves it out where a run that ran nothing is known there."""
    return TRACKERS.get(order.name).reporter(order)
