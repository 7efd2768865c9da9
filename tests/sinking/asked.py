"""An experiment's explanation in this process, on target=cpu: what it says is derived, and no worker is started."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.experiment.explain import explained
from npucompose.npu.static_graph.records import DiagnosisStep, SinkingFacts

ON_CPU = ("target=cpu", "target.soc=ascend910b", "mode=max-autotune")


def asked(*overrides: str, on: Sequence[str] = ON_CPU) -> SinkingFacts:
    """`asked("model=attention_decode", "shapes=dynamic").path` is 2."""
    session = Session(check(compose([*on, *overrides])))
    try:
        return explained(session).sinking
    finally:
        torch._dynamo.reset()


def step(facts: SinkingFacts, step_id: str) -> DiagnosisStep:
    return next(one for one in facts.steps if one.id == step_id)


def problems(facts: SinkingFacts) -> list[str]:
    return [one.id for one in facts.steps if one.status == "problem"]
