"""One study of Optuna: asked for trials, told their ends, and told again from the ledger by the next process.

Optuna's own storage is not used. The ledger holds ends only, so that a search that is killed leaves no trial half done,
and a trial's end and its point's are in one file.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from airflow_free.ledger import Trial
from npucompose.experiment.sweep.run import PointLedger
from npucompose.schema.sweep import Optuna
from npucompose_extensions.search.space import Space


@frozen(kw_only=True)
class Asked:
    """A trial that was asked for: its number in the whole search, and the overrides of its point."""

    number: int
    overrides: tuple[str, ...]
    trial: Any
    """Optuna's."""


class Study:
    """`name` is the content of the question: the same command line, the same study."""

    def __init__(
        self, name: str, options: Optuna, space: Space, ledger: PointLedger, *, forget: Iterable[str] = ()
    ) -> None:
        self.name, self.options, self.space, self.ledger = name, options, space, ledger
        self.optuna = importlib.import_module("optuna")
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.told = [trial for trial in ledger.trials(name) if trial.state not in forget]
        samplers = self.optuna.samplers
        seed = options.seed + len(self.told)  # the same numbers again would propose the same points again
        sampler = samplers.TPESampler(seed=seed) if options.sampler == "tpe" else samplers.RandomSampler(seed=seed)
        self.study = self.optuna.create_study(directions=list(options.objectives.values()), sampler=sampler)
        self.distributions: dict[str, Any] = {}
        known = {trial.number for trial in self.told}
        self.left = iter([number for number in range(options.trials) if number not in known])
        for trial in self.told:
            try:
                self.study.add_trial(self._again(trial))
            except (ValueError, KeyError, TypeError) as error:
                raise ledger.refused_trial(trial, error) from error

    def ask(self) -> Asked | None:
        """The next trial; None when all were asked for."""
        number = next(self.left, None)
        if number is None:
            return None
        trial = self.study.ask()
        return Asked(number=number, overrides=self.space.suggested(trial), trial=trial)

    def tell(self, asked: Asked, key: str, values: tuple[float, ...] | None, *, illegal: bool = False) -> None:
        """Illegal points are pruned, so that the sampler learns to stay away; those without values have failed."""
        states = self.optuna.trial.TrialState
        state = states.COMPLETE if values is not None else states.PRUNED if illegal else states.FAIL
        frozen_trial = self.study.tell(asked.trial, values, state=state)
        self.ledger.write_trial(
            Trial(
                study=self.name,
                number=asked.number,
                key=key,
                state="complete" if values is not None else "pruned" if illegal else "failed",
                params=frozen_trial.params,
                values=values,
            )
        )

    def best(self) -> Iterator[tuple[Mapping[str, Any], tuple[float, ...]]]:
        """(parameters, values) of the best trial, or of every trial that no other one beats in all objectives."""
        if not any(trial.state.name == "COMPLETE" for trial in self.study.trials):
            return
        found = [self.study.best_trial] if len(self.options.objectives) == 1 else self.study.best_trials
        for trial in found:
            yield trial.params, tuple(trial.values)

    def _again(self, trial: Trial) -> Any:
        """A trial of an earlier process. Its distributions are asked for anew: the study's name holds the space."""
        fixed = self.optuna.trial.FixedTrial(trial.params)
        self.space.suggested(fixed)
        state = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}[trial.state]
        return self.optuna.trial.create_trial(
            state=self.optuna.trial.TrialState[state],
            params=dict(trial.params),
            distributions=fixed.distributions,
            values=None if trial.values is None else list(trial.values),
        )
