"""`npucompose run -m search=optuna`: the task that Hydra's sweeper is given. Points, folders, executor and ledger are
those of a sweep; only who says what comes next is another.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve, frozen

from airflow_free.keys import digest
from airflow_free.ledger import TrialState
from airflow_free.store import Store, write_atomically
from airflow_free.sweep import Listen, Loop, Source, SweepEvent, membership
from npucompose.compose.tree import COMMAND_LINE, Composed, Composer
from npucompose.compose.untrusted_config import address_problems
from npucompose.console import console
from npucompose.errors import ConfigError, MissingExtra, unknown
from npucompose.experiment.job import NOT_IN_A_KEY, PlanContext
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.sweep.command import SearchTask, TrackerQueue
from npucompose.experiment.sweep.plan import Point, check_installed, point_of
from npucompose.experiment.sweep.run import (
    POINTS,
    Name,
    PointEntry,
    PointLedger,
    PointRun,
    executor_of,
    exit_status,
    folder_of,
    kept,
)
from npucompose.report.words import as_count
from npucompose.results.effective import origin
from npucompose.results.record import MEASURED, figure_stage
from npucompose.schema.sweep import Executor, Optuna
from npucompose.table.structure import structure
from npucompose_extras.search.study import ProposedTrial, Space, Study, changed_by_nobody_else


@frozen(kw_only=True)
class Question:
    """What a command line with search=optuna asks for, checked before anything is made."""

    options: Optuna
    space: Space
    base: Composed
    composer: Composer
    executor: Executor
    retry_failed: bool

    @staticmethod
    def from_overrides(options: Optuna, overrides: Sequence[str], composer: Composer) -> Question:
        if importlib.util.find_spec("optuna") is None:
            raise MissingExtra("search=optuna", "optuna", "optuna")
        for figure in options.objectives:
            if figure not in MEASURED:
                raise ConfigError(unknown("figure", figure, MEASURED, "search.objectives"))
        if not options.objectives:
            raise ConfigError("search.objectives is empty: it says what is wanted, {p50_us: minimize}.")
        space = Space(dimensions=options.space, base=tuple(overrides))
        base = space.check(composer)
        executor: Executor = structure(Executor, base.tree["executor"], "executor")  # pyright: ignore[reportArgumentType]
        trusted = bool(base.tree["trust"]) and origin(base.provenance, "trust") == COMMAND_LINE
        problems = address_problems(executor, lambda key: origin(base.provenance, key), trust=trusted)
        if told := list(problems):
            raise ConfigError(*told)
        check_installed(executor)
        return Question(
            options=options, space=space, base=base, composer=composer, executor=executor,
            retry_failed=base.tree["retry"] == "failed",
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The study's: everything but how long it goes on and where."""
        tree = {name: value for name, value in self.base.tree.items() if name not in NOT_IN_A_KEY}
        asked = attrs.asdict(evolve(self.options, trials=1))
        return digest([tree, asked])

    @property
    def forget(self) -> tuple[TrialState, ...]:
        """Trials of an earlier process with such an end are asked for again."""
        return ("failed",) if self.retry_failed else ()

    def varying(self, point: Point) -> str:
        """What tells a point from the others."""
        return " ".join(text for text in point.overrides if text not in self.space.base) or f"trial {point.number}"


def run_search(
    question: Question, folder: Path, name: Name, *, store: Store, ledger: PointLedger, listen: Listen
) -> tuple[dict[str, PointEntry], Study]:
    """{key: end} of every trial's point, and the study; trials of an earlier process with the same question count."""
    study = Study(question.name, question.options, question.space, ledger, forget=question.forget)
    trials = _Trials(question, study, ledger, listen, folder)
    ends = ledger.ends([trial.key for trial in study.told])
    with executor_of(question.executor, folder) as executor:
        begin = partial(
            PointRun.begin,
            path_of=lambda point: folder_of(folder, name(point), point),
            store=store,
            ledger=ledger,
        )
        Loop(executor, ledger, begin, listen).run(trials)
    return {**ends, **trials.ends}, study


class _Trials(Source):
    """Asks the study; what is illegal or has ended before is reported at once and never reaches the executor."""

    def __init__(self, question: Question, study: Study, ledger: PointLedger, listen: Listen, folder: Path) -> None:
        self.question, self.study, self.ledger = question, study, ledger
        self.listen, self.folder = listen, folder
        self.context = PlanContext()
        self.running: dict[str, list[ProposedTrial]] = {}
        self.points: list[Point] = []
        self.ends: dict[str, PointEntry] = {}

    def ask(self) -> Point | None:
        while (asked := self.study.ask()) is not None:
            point = self._point(asked)
            self.points.append(point)
            write_atomically(self.folder / POINTS, membership(self.points))
            if point.job is None:
                self.ledger.write([PointEntry.illegal(point)])
                self._ended("ended", [asked], point, PointEntry.illegal(point))
            elif point.key in self.running:
                self.running[point.key].append(asked)
            elif (entry := self._before(point)) is not None:
                self._ended("kept", [asked], point, entry)
            else:
                self.running[point.key] = [asked]
                return point
        return None

    def ended(self, point: Point, entry: PointEntry) -> None:
        self._tell(self.running.pop(point.key), entry)

    def _before(self, point: Point) -> PointEntry | None:
        """How the point ended, in this search or an earlier sweep; one that failed in this search is not run again."""
        ended = self.ends.get(point.key)
        return ended or kept([point], self.ledger, retry_failed=self.question.retry_failed).get(point.key)

    def _ended(self, kind: Any, asked: list[ProposedTrial], point: Point, entry: PointEntry) -> None:
        self.listen(SweepEvent(kind=kind, point=point, entry=entry))
        self._tell(asked, entry)

    def _tell(self, asked: list[ProposedTrial], entry: PointEntry) -> None:
        self.ends[entry.key] = entry
        for trial in asked:
            self.study.tell(trial, entry.key, self._values(entry), illegal=entry.status == "illegal")
            if entry.status == "ok":
                objectives = self.question.options.objectives
                self.study.lacking.update(name for name in objectives if getattr(entry.figures, name) is None)

    def _values(self, entry: PointEntry) -> tuple[float, ...] | None:
        """The objectives, of a point that held; None where it failed, was wrong or missed an expectation."""
        if entry.status != "ok":
            return None
        found = [getattr(entry.figures, name) for name in self.question.options.objectives]
        return None if None in found else tuple(map(float, found))

    def _point(self, asked: ProposedTrial) -> Point:
        space = self.question.options.space
        point = point_of(asked.number, asked.overrides, self.question.composer, self.context, proposed=space)
        if point.job is None:
            return point
        problems = [
            *changed_by_nobody_else(self.question.base, point.job.composed, ""),
            *self._unmeasured([stage.name for stage in point.job.order]),
        ]
        return evolve(point, job=None, problems=tuple(problems)) if problems else point

    def _unmeasured(self, stages: Sequence[str]) -> list[str]:
        wanted = {figure: figure_stage(figure) for figure in self.question.options.objectives}
        return [
            f"search.objectives.{figure} comes from the stage {stage}, and pipeline.stages has none."
            for figure, stage in wanted.items()
            if stage not in stages
        ]


MOST_SHOWN = 10


class OptunaTask(SearchTask):
    def __init__(self, question: Question) -> None:
        self.question = question

    @classmethod
    def from_overrides(cls, options: Optuna, overrides: Sequence[str], composer: Composer) -> OptunaTask:
        return cls(Question.from_overrides(options, overrides, composer))

    def _run(self, folder: Path, name: Name) -> int:
        terminal = console()
        store = default_store()
        with PointLedger.open(store.root) as ledger:
            told = sum(trial.state not in self.question.forget for trial in ledger.trials(self.question.name))
            total = max(0, self.question.options.trials - told)
            with self.view(total, self.question.varying) as view:
                trackers = TrackerQueue(view.listen)
                ends, study = run_search(
                    self.question, folder, name, store=store, ledger=ledger, listen=trackers.listen
                )
        terminal.print(f"{view.summary()}\n  {folder}", soft_wrap=True, highlight=False)
        for line in best_lines(study):
            terminal.print(line, soft_wrap=True, highlight=False)
        trackers.send(store.root)
        # A point that is illegal was pruned, as asked; only where nothing else was found is that an answer.
        ran = [entry for entry in ends.values() if entry.status != "illegal"]
        return exit_status(ran or list(ends.values()))


def best_lines(study: Study) -> Iterator[str]:
    """The best trial, or those of the front; then why trials that ran are not among those that compete."""
    yield from _best(study)
    for name, count in study.lacking.items():
        yield f"{as_count(count, 'trial')} ran and cannot compete: without {name}, an objective of the search."


def _best(study: Study) -> Iterator[str]:
    found = list(study.best())
    if not found:
        yield "no trial has all objectives."
        return
    objectives = study.options.objectives
    yield ("best:" if len(objectives) == 1 else f"Pareto front, {as_count(len(found), 'trial')}:")
    for params, values in found[:MOST_SHOWN]:
        reached = ", ".join(f"{name} {value:g}" for name, value in zip(objectives, values, strict=True))
        yield f"  {reached}  {' '.join(f'{key}={value}' for key, value in params.items())}"
