"""`npucompose run -m search=optuna`: the task that Hydra's sweeper is given, and what a person sees of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from npucompose.compose.tree import Composer
from npucompose.console import console
from npucompose.experiment.orchestrator import default_store
from npucompose.experiment.sweep.command import SearchTask, SweepView, TrackerQueue
from npucompose.experiment.sweep.run import Name, PointLedger, exit_status
from npucompose.schema.sweep import Optuna
from npucompose_extensions.search.run import Question, run_search
from npucompose_extensions.search.study import Study

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
            with SweepView(terminal, total, self.question.varying) as view:
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
    """The best trial, or those of the front."""
    found = list(study.best())
    if not found:
        yield "no trial has all objectives."
        return
    objectives = study.options.objectives
    yield ("best:" if len(objectives) == 1 else f"{len(found)} trials that no other one beats in all objectives:")
    for params, values in found[:MOST_SHOWN]:
        reached = ", ".join(f"{name} {value:g}" for name, value in zip(objectives, values, strict=True))
        yield f"  {reached}  {' '.join(f'{key}={value}' for key, value in params.items())}"
