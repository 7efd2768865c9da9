"""Which scenario an experiment can have: what its model, its mode and its other requests leave of it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from npucompose.compose.legality_case import STRICT, LegalityCase, Objection, idle
from npucompose.models.base import Model
from npucompose.schema.experiment import Experiment
from npucompose.schema.scenario import FORWARD, Scenario


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
