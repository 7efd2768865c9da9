"""A declared space, and a study of Optuna over it: asked for trials, told their ends, and told again from the ledger by
the next process. Loads no Optuna before a study is made.

Optuna's own storage is not used. The ledger holds ends only, so that a search that is killed leaves no trial half done,
and a trial's end and its point's are in one file.
"""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from airflow_free.ledger import Trial
from npucompose.compose.tree import Composed, Composer
from npucompose.errors import ConfigError, listed
from npucompose.experiment.sweep.run import PointLedger
from npucompose.schema.sweep import Dimension, Optuna

KEY = re.compile(r"\+{0,2}[A-Za-z_][\w@/.-]*", re.ASCII)
PERSONS_OWN = ("trust", "debug", "executor", "retry", "search", "tracker")
"""Fields of the experiment that no point of a space may change: who may run code, where and when, who is told."""
WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
READ_AS_ANOTHER = frozenset({"null", "true", "false", "yes", "no", "on", "off", "nan", "inf"})


@frozen(kw_only=True)
class Space:
    """`Space(dimensions={"mode": Dimension(one_of=("eager", "reduce-overhead"))}, base=("model=add",))`."""

    dimensions: Mapping[str, Dimension]
    base: tuple[str, ...]
    """Overrides of the command line, before those of the space."""

    def suggested(self, trial: Any) -> tuple[str, ...]:
        """Ask the trial for every dimension that applies; the whole point as overrides."""
        values: dict[str, str] = {}
        for key, dimension in self.dimensions.items():
            if _applies(dimension, values):
                values[key] = written(_suggest(trial, key, dimension))
        return (*self.base, *(f"{key}={value}" for key, value in values.items()))

    def check(self, composer: Composer) -> Composed:
        """The base, composed; ConfigError when the space itself is wrong, whatever its values are combined with."""
        base = composer.compose(self.base)
        problems = [*base.problems, *self._problems()]
        if not problems:
            problems += self._refused(composer, base)
        if problems:
            raise ConfigError(*dict.fromkeys(problems))
        return base

    def _problems(self) -> Iterator[str]:
        if not self.dimensions:
            yield "the space is empty: search.space says what may vary, {mode: {one_of: [eager, reduce-overhead]}}."
        known: dict[str, Dimension] = {}
        for key, dimension in self.dimensions.items():
            if not KEY.fullmatch(key) or re.match(r"\+*hydra\b", key):
                yield f"'{key}' is no key of the experiment @ search.space: a group or a dotted key."
            for other, values in dimension.when.items():
                if other not in known:
                    yield f"'when' names '{other}', which does not come before it @ search.space.{key}."
                elif not {written(value) for value in values} <= set(_ways(known[other])):
                    named = listed(map(written, values))
                    yield f"'when' names values that '{other}' never has ({named}) @ search.space.{key}."
            known[key] = dimension

    def _refused(self, composer: Composer, base: Composed) -> Iterator[str]:
        """Each value on its own, beside the values that it depends on: a misspelt one is told before anything runs."""
        for key, dimension in self.dimensions.items():
            needed = [f"{other}={written(values[0])}" for other, values in dimension.when.items()]
            for value in _ways(dimension):
                composed = composer.compose([*self.base, *needed, f"{key}={value}"])
                yield from (f"{problem.rstrip('.')} @ search.space." for problem in composed.problems)
                yield from changed_by_nobody_else(base, composed, key)


def changed_by_nobody_else(base: Composed, composed: Composed, where: str) -> Iterator[str]:
    """A sentence for each field that is the person's own to set and that a point has changed."""
    for name in PERSONS_OWN:
        if composed.tree.get(name) != base.tree.get(name):
            yield f"'{name}' cannot be searched over @ search.space.{where}: only the command line says it."


def written(value: Any) -> str:
    """A value as Hydra's override grammar reads it: `[cse, 'a b']`; text is quoted where it could be read otherwise."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{written(item)}" for name, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(written, value)) + "]"
    text = str(value)
    if WORD.fullmatch(text) and text.lower() not in READ_AS_ANOTHER:
        return text
    return "'" + re.sub(r"(?<!\\)(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _applies(dimension: Dimension, values: Mapping[str, str]) -> bool:
    """Only where what it depends on was set, to one of the values named."""
    return all(values.get(key) in [written(value) for value in wanted] for key, wanted in dimension.when.items())


def _suggest(trial: Any, key: str, dimension: Dimension) -> Any:
    if dimension.one_of is not None:
        return json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in dimension.one_of]))
    step = {} if dimension.step is None else {"step": dimension.step}
    ask = trial.suggest_int if dimension.whole else trial.suggest_float
    return ask(key, dimension.low, dimension.high, log=dimension.log, **step)


def _ways(dimension: Dimension) -> list[str]:
    """All values, or the two ends."""
    return [written(value) for value in dimension.one_of or (dimension.low, dimension.high)]


@frozen(kw_only=True)
class ProposedTrial:
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
        self.lacking: Counter[str] = Counter()
        """{objective: trials of this process that ended well without it}."""
        known = {trial.number for trial in self.told}
        self.left = iter([number for number in range(options.trials) if number not in known])
        for trial in self.told:
            try:
                self.study.add_trial(self._again(trial))
            except (ValueError, KeyError, TypeError) as error:
                raise ledger.refused_trial(trial, error) from error

    def ask(self) -> ProposedTrial | None:
        """The next trial; None when all were asked for."""
        number = next(self.left, None)
        if number is None:
            return None
        trial = self.study.ask()
        return ProposedTrial(number=number, overrides=self.space.suggested(trial), trial=trial)

    def tell(self, asked: ProposedTrial, key: str, values: tuple[float, ...] | None, *, illegal: bool = False) -> None:
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
        """(parameters, values) of the best trial, or of every trial of the Pareto front."""
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
