"""`npucompose run -m`: a planned sweep as the task function that Hydra's sweeper is given (hydra_plugins)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from airflow_free.store import Store
from airflow_free.sweep.ledger import Ledger
from airflow_free.sweep.plan import Plan
from airflow_free.sweep.run import exit_status, run_sweep
from airflow_free.sweep.told import told
from airflow_free.sweep.view import SweepView
from npucompose.compose.overrides import in_our_words
from npucompose.compose.tree import Composer


class Sweep:
    """Hydra makes the folder and names those of the points; `run` then runs the plan, under `act`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.act: Callable[[Callable[[], int]], Any] = lambda act: act()
        """What keeps an error from passing through Hydra, which would make a traceback of it."""

    @staticmethod
    def planned(overrides: Sequence[str], composer: Composer) -> Sweep:
        return Sweep(Plan.of(overrides, composer))

    def __call__(self, config: Any) -> None:
        raise AssertionError("Hydra runs single jobs through this; a sweep goes through `run`")

    def illegal_lines(self) -> Iterator[str]:
        """Every illegal point, told before anything starts."""
        illegal = self.plan.illegal
        if illegal:
            yield f"{len(illegal)} of {len(self.plan.points)} points are illegal and not run:"
        for point in illegal:
            for problem in point.problems:
                yield f"  {self.plan.name(point)}: {problem}"

    def run(self, folder: Path, names: Callable[[], Sequence[str]]) -> None:
        """Called by the launcher, once; `names` says what the points' folders below `folder` are called."""
        self.act(lambda: self._run(folder, names))

    def _run(self, folder: Path, names: Callable[[], Sequence[str]]) -> int:
        with in_our_words():
            folders = names()
        console = Console()
        store = Store.default()
        for warning in dict.fromkeys(w for point in self.plan.points if point.job for w in point.job.warnings):
            Console(stderr=True).print(f"npucompose: {warning}", style="yellow", highlight=False, soft_wrap=True)
        with Ledger.open(store.root) as ledger, SweepView(console, self.plan) as view:
            ends = run_sweep(self.plan, folder, folders, store=store, ledger=ledger, listen=view.listen)
        console.print(f"{view.summary()}\n  {folder}", soft_wrap=True, highlight=False)
        for problem in told(self.plan.points, ends, ledger.path.parent):
            Console(stderr=True).print(f"npucompose: {problem}", highlight=False, soft_wrap=True)
        return exit_status(list(ends.values()))
