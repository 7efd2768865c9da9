"""What the rules of legality are asked about, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import attrs
from attrs import frozen

from npucompose.errors import listed, raise_for
from npucompose.models.base import Model
from npucompose.passes.base import Pass
from npucompose.results.effective import Effective
from npucompose.schema.experiment import FORWARD, Experiment, Scenario
from npucompose.table.modes import ModeSpec, modes_that
from npucompose.table.options import Acts
from npucompose.targets.base import Target

NEVER, STRICTEST, STRICT, ALWAYS = (), ("all",), ("mode", "all"), ("off", "mode", "all")
"""Which `strict` refuses a request."""


@frozen(kw_only=True, eq=False)
class LegalityCase:
    """An experiment with the objects that its choices name."""

    experiment: Experiment
    target: Target
    passes: Sequence[tuple[str, Pass]] = ()

    @property
    def mode(self) -> ModeSpec:
        return self.experiment.mode.spec

    def can(self, ability: str) -> bool:
        """Whether the target has it in this mode: of what it supports, or of its capabilities."""
        support = self.target.support(self.mode.name)
        told = support if hasattr(support, ability) else self.target.capabilities(self.mode.name)
        return bool(getattr(told, ability))


class Objection(NamedTuple):
    """What some values of `strict` refuse, with this sentence; `idle` is listed where it is not refused."""

    refused_by: Sequence[str]
    sentence: str
    idle: Effective | None = None


def idle(
    option: str, requested: Any, why: str, refused_by: Sequence[str], *, effective: Any = None, sentence: str = ""
) -> Objection:
    """A request that takes no effect."""
    listed_as = Effective(option=option, requested=requested, effective=effective, why=why)
    return Objection(refused_by, sentence or f"{option}: {why}.", listed_as)


Rule = Callable[[LegalityCase], Iterable[Objection]]


def judged(rules: Sequence[Rule], asked: LegalityCase) -> tuple[Effective, ...]:
    """What these rules find; ConfigError with everything that is refused."""
    found = [one for rule in rules for one in rule(asked)]
    problems = [one.sentence for one in found if asked.experiment.strict in one.refused_by]
    raise_for(problems)
    return tuple(one.idle for one in found if one.idle)


def why_idle(acts: Acts, option: str, asked: LegalityCase) -> tuple[str, tuple[str, ...]]:
    """(why an option does nothing here, which `strict` refuses it); an empty text where it acts."""
    mode, target = asked.mode, asked.target.name
    if asked.can(acts.can) or (acts.without_compiling and not mode.compiles):
        return "", NEVER
    words, has, they = (acts.words, "have", "they take") if acts.words else (option, "has", "it takes")
    if acts.mode == "compiles":
        if not mode.compiles:
            return f"mode={mode.name} compiles nothing", NEVER
        own = asked.target.why_idle(option, mode.name)
        return own or f"{words} {has} no meaning on target={target} in mode={mode.name}", STRICTEST
    if not getattr(mode, acts.mode):
        where = f"{they} effect in: {listed(modes_that(acts.mode))}"
        why = f"{words} {has} no effect in mode={mode.name}{acts.aside}; {where}"
        return why, STRICT if mode.compiles else STRICTEST
    return f"{words} {has} no meaning on target={target}", STRICTEST


# Which scenario an experiment can have: what its model, its mode and its other requests leave of it.


def scenario_problems(experiment: Experiment, model: Model | None) -> list[str]:
    """A sentence for everything that does not go together; `model` is None where it could not be made."""
    scenario = experiment.scenario.name
    if scenario == FORWARD:
        return []
    problems: list[str] = []
    if model is not None and scenario not in model.scenarios:
        problems.append(
            f"scenario={scenario}: model={model.title} has no prompt to go on from. A class of Hugging Face that "
            "generates has: model=transformers model.architecture=Qwen2ForCausalLM."
        )
    if model is not None and model.sequence:
        problems.append(f"model.sequence declares calls of scenario=forward; scenario={scenario} makes its own.")
    if experiment.compile.training:
        problems.append(f"scenario={scenario} is inference: remove compile.training=true.")
    return problems


def unread_sizes(asked: LegalityCase) -> Iterator[Objection]:
    """Sizes of prompts where there is no prompt."""
    default, given = Scenario(), asked.experiment.scenario
    for field in attrs.fields(Scenario) if given.name == FORWARD else ():
        value = getattr(given, field.name)
        if value != getattr(default, field.name):
            why = "it takes effect with scenario=prefill, decode or generate only"
            yield idle(f"scenario.{field.name}", value, why, STRICT)
