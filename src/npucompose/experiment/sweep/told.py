"""The points of a sweep told to their trackers, in one go when the sweep is over: a tracker spoils no timing."""

from __future__ import annotations

import sys
from pathlib import Path

from npucompose.experiment import tracking
from npucompose.experiment.sweep.run import Listen, News
from npucompose.schema.tracker import Tracker


class Told:
    """`told = Told(view.listen); run_sweep(…, listen=told.listen); told.print_problems(root)`.

    Only points that ended now are told: what an earlier sweep ran, it told.
    """

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._run_dirs: dict[Tracker, list[str]] = {}

    def listen(self, news: News) -> None:
        self._listen(news)
        if news.kind == "ended" and news.point.job is not None and news.entry is not None and news.entry.run_dir:
            tracker = news.point.job.checked.experiment.tracker
            self._run_dirs.setdefault(tracker, []).append(news.entry.run_dir)

    def print_problems(self, root: Path) -> None:
        """Tell the trackers, and print what went wrong; `root` is the ledger's folder, where run_dirs begin."""
        for tracker, names in self._run_dirs.items():
            for problem in tracking.tell_of(tracker, [root / name for name in names], root):
                print(f"npucompose: {problem}", file=sys.stderr)
