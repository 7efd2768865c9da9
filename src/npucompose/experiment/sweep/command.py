"""`npucompose run -m`: a planned sweep, or a search, as the task function that Hydra's sweeper is given; and what a
person sees of it while it runs: a live table on a terminal, a line for each end elsewhere.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_free.sweep import Listen, SweepEvent
from npucompose.compose.overrides import translate_hydra_errors
from npucompose.compose.tree import Composer
from npucompose.console import console
from npucompose.errors import ConfigError
from npucompose.experiment import dry_run, tracking
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.sweep.plan import Point, SweepPlan, expanded
from npucompose.experiment.sweep.run import Name, PointEntry, PointLedger, exit_status, run_sweep
from npucompose.registry import Registry
from npucompose.report.words import STATUS_STYLES, STATUS_WORDS, as_count, as_time
from npucompose.results.record import Status
from npucompose.schema.sweep import NoSearch, Search, Tracker
from npucompose.table.structure import structure

KNOWN = "needs jobs that are known beforehand"


class Task(ABC):
    """Hydra makes the folder and names those of the points; `run` then does the work, under `act`."""

    act: Callable[[Callable[[], int]], Any] = staticmethod(lambda act: act())
    """What keeps an error from passing through Hydra, which would make a traceback of it."""

    quiet: bool = False
    """Whether only the summary is printed."""

    def __call__(self, config: Any) -> None:
        raise AssertionError("Hydra runs single jobs through this; a sweep goes through `run`")

    def illegal_lines(self) -> Iterator[str]:
        """What is told before anything starts."""
        yield from ()

    @abstractmethod
    def run_again(self) -> None:
        """`--force`: what was done before is not kept. ConfigError where that means nothing."""

    @abstractmethod
    def preview(self) -> Iterator[str]:
        """`--dry-run`: a line for each point. ConfigError where nobody knows them yet."""

    def run(self, folder: Path, name: Callable[[int, Sequence[str]], str]) -> None:
        """Called by the launcher, once; `name` says what the folder of a point (number, overrides) is called."""

        def named(point: Point) -> str:
            with translate_hydra_errors():
                return name(point.number, point.overrides)

        self.act(lambda: self._run(folder, named))

    @abstractmethod
    def _run(self, folder: Path, name: Name) -> int:
        """The exit status."""

    def view(self, total: int, name: Callable[[Point], str]) -> SweepView:
        """What a person sees while it runs."""
        return SweepView(console(quiet=self.quiet), total, name)


class SearchTask(Task):
    """Points that are asked for one after another, each told what became of those before."""

    def run_again(self) -> None:
        raise ConfigError(f"--force {KNOWN}, and a search goes on from its trials: search.seed=… begins another.")

    def preview(self) -> Iterator[str]:
        raise ConfigError(f"--dry-run {KNOWN}, and a search asks for each of them when others have ended.")

    @classmethod
    @abstractmethod
    def from_overrides(cls, options: Any, overrides: Sequence[str], composer: Composer) -> SearchTask:
        """What a command line with `search=…` asks for, checked before anything is made."""


SEARCHES: Registry[type[SearchTask]] = Registry(kind="search", base=SearchTask, group="npucompose.searches")


class Sweep(Task):
    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan

    def run_again(self) -> None:
        self.plan = evolve(self.plan, again="all")

    def preview(self) -> Iterator[str]:
        yield from dry_run.of_a_sweep(self.plan, default_store())

    def illegal_lines(self) -> Iterator[str]:
        """Every illegal point."""
        illegal = self.plan.illegal
        if illegal:
            yield f"{len(illegal)} of {as_count(len(self.plan.points), 'job')} illegal and not run:"
        for point in illegal:
            for problem in point.problems:
                yield f"  {self.plan.name(point)}: {problem}"

    def _run(self, folder: Path, name: Name) -> int:
        terminal = console()
        store = default_store()
        for warning in dict.fromkeys(w for point in self.plan.points if point.job for w in point.job.warnings):
            console(stderr=True, quiet=self.quiet).print(
                f"npucompose: {warning}", style="yellow", highlight=False, soft_wrap=True
            )
        total = len({point.key for point in self.plan.points})
        with PointLedger.open(store.root) as ledger, self.view(total, self.plan.name) as view:
            trackers = TrackerQueue(view.listen)
            ends = run_sweep(self.plan, folder, name, store=store, ledger=ledger, listen=trackers.listen)
        terminal.print(f"{view.summary()}\n  {folder}", soft_wrap=True, highlight=False)
        trackers.send(store.root)
        return exit_status(list(ends.values()))


def planned(overrides: Sequence[str], composer: Composer) -> Task:
    """What the command line asks for, checked as far as it can be before anything runs."""
    points = expanded(overrides, composer)
    if len(points) == 1:
        tree = composer.compose(points[0]).tree
        search: Search = structure(Search, tree.get("search", {}), "search")  # pyright: ignore[reportArgumentType]
        if not isinstance(search, NoSearch):
            return SEARCHES.get(search.name).from_overrides(search, points[0], composer)
    return Sweep(SweepPlan.from_overrides(overrides, composer))


class TrackerQueue:
    """The points of a sweep, for their trackers, in one go when the sweep is over: a tracker spoils no timing.

        queue = TrackerQueue(view.listen); run_sweep(…, listen=queue.listen); queue.send(root)

    Only points that ended now are reported: what an earlier sweep ran, it reported.
    """

    def __init__(self, listen: Listen) -> None:
        self._listen = listen
        self._run_dirs: dict[Tracker, list[str]] = {}

    def listen(self, event: SweepEvent) -> None:
        self._listen(event)
        if event.kind == "ended" and event.point.job is not None and event.entry is not None and event.entry.run_dir:
            tracker = event.point.job.checked.experiment.tracker
            self._run_dirs.setdefault(tracker, []).append(event.entry.run_dir)

    def send(self, root: Path) -> None:
        """Report to the trackers, and print what went wrong; `root` is the ledger's folder, where run_dirs begin."""
        for tracker, names in self._run_dirs.items():
            for problem in tracking.report_runs(tracker, [root / name for name in names], root):
                print(f"npucompose: {problem}", file=sys.stderr)


LAST_SHOWN = 8
REFRESH_S = 0.25
"""Between two drawings: the measured process shares the cores."""


class SweepView:
    """`with SweepView(console, 60, plan.name) as view: run_sweep(…, listen=view.listen)`; equal points count once.

    In a log a sweep reads

    12/60  ok  model=add mode=eager seed=3 · p50 12.3 µs
    13/60  crashed  model=add mode=eager seed=4 · the worker died of SIGKILL and sent no result.
    """

    def __init__(self, console: Console, total: int, name: Callable[[Point], str]) -> None:
        self.console, self.total, self.name = console, total, name
        self.counts: Counter[Status] = Counter()
        self.kept = 0
        self.stages: dict[str, tuple[Point, str]] = {}
        self.last: list[tuple[Point, PointEntry]] = []
        self.drawn = 0.0
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> SweepView:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def listen(self, event: SweepEvent) -> None:
        key = event.point.key
        match event.kind:
            case "started":
                self.stages[key] = (event.point, "starts")
            case "stage":
                if event.event is not None and event.event.stage:
                    self.stages[key] = (event.point, event.event.stage)
            case "ended" | "kept":
                self._ended(event)
        self._show()

    def _ended(self, event: SweepEvent) -> None:
        assert event.entry is not None
        self.stages.pop(event.point.key, None)
        self.counts[event.entry.status] += 1
        self.kept += event.kind == "kept" and event.point.job is not None
        self.last = [*self.last, (event.point, event.entry)][-LAST_SHOWN:]
        if self.live is None and event.kind == "ended":
            done = f"{sum(self.counts.values())}/{self.total}  "
            self.console.print(Text(done) + self._line(event.point, event.entry), soft_wrap=True)

    def _line(self, point: Point, entry: PointEntry) -> Text:
        text = Text(f"{STATUS_WORDS[entry.status]}  ", style=STATUS_STYLES.get(entry.status, "bold red"))
        text.append(self.name(point), style="default")
        if entry.figures.p50_us is not None:
            text.append(f" · p50 {as_time(entry.figures.p50_us)}", style="default")
        if entry.error:
            text.append(f" · {entry.error}", style="default")
        return text

    def _show(self) -> None:
        now = time.monotonic()
        if self.live is None or now - self.drawn < REFRESH_S:
            return
        self.drawn = now
        table = Table.grid(padding=(0, 2, 0, 0))
        for point, entry in self.last:
            table.add_row(self._line(point, entry))
        for point, stage in self.stages.values():
            table.add_row(Text(f"{stage} … {self.name(point)}", style="cyan"))
        self.live.update(Group(table, Text(self.summary())), refresh=True)

    def summary(self) -> str:
        """`60 points: 52 ok, 3 illegal configuration, 2 crashed · 12 were done before`."""
        parts = ", ".join(f"{number} {STATUS_WORDS[status]}" for status, number in self.counts.most_common())
        left = self.total - sum(self.counts.values())
        words = f"{as_count(self.total, 'job')}: {parts or 'none done'}"
        words += f", {left} left" if left else ""
        return words + (f" · {self.kept} were done before" if self.kept else "")
