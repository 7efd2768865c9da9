"""A declared space: what Optuna is asked for, and the overrides that its answer stands for. Loads no Optuna."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from npucompose.compose.tree import Composed, Composer
from npucompose.errors import ConfigError, listed
from npucompose.schema.sweep import Dimension

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
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


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
