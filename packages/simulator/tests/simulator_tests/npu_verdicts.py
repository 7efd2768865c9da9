"""Run in a process of its own: what `explain` says of a model of one operator, for each that is named, as JSON.

`python npu_verdicts.py TARGET [-npu::NAME] [NAME …]`; without names every operator of the list that npucompose brings.
The conditions of the converter of `-npu::NAME` are forgotten first.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "0"

import torch
from attrs import evolve

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.experiment.explain import explained
from npucompose.models.base import Built
from npucompose.ops import npu
from npucompose.ops.catalogue import shipped
from npucompose.vendor import wheel_operators
from npucompose.vendor.versions import REFERENCE
from simulator_tests import npu_calls


class OneOperator(torch.nn.Module):
    """The operator, and a sum before it that makes a graph of its own where the operator breaks one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = npu.overload(name)

    def forward(self, given: dict[str, Any], x: torch.Tensor) -> Any:
        y = x + 1
        made = self.operator(**given)
        return y, made


def explained_alone(target: str, name: str) -> dict[str, Any]:
    """The verdicts on a model of the operator, and what they rest on."""
    session = Session(check(compose(["model=add", f"target={target}", "mode=max-autotune"])))
    session.materialised  # noqa: B018  which defines the operators
    try:
        given = npu_calls.call(name)
    except StopIteration:
        given = next(npu_calls.tried(name))
    module = OneOperator(name).eval()
    session.built = Built(module=module, inputs=lambda step: {"given": dict(given), "x": torch.ones(2)})
    try:
        found = explained(session).sinking
    except Exception as error:  # noqa: BLE001  the test says that there is none
        return {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    blame = found.blame[0] if found.blame else None
    return {
        "verdicts": [found.fx_graph, found.ge_graph, found.ge_build],
        "certainty": list(found.certainty.values()),
        "blame": None if blame is None else [blame.operator, blame.source, blame.reason.partition("\n")[0]],
    }


def forget(operator: str) -> None:
    tables = wheel_operators.operators(REFERENCE)
    refuses = {name: said for name, said in tables.lists.refuses.items() if name != operator}
    wheel_operators.learn(REFERENCE, lambda: evolve(tables.lists, refuses=refuses))
    wheel_operators.learn = lambda version, reader: None  # a wheel that lies here would be read anew


def main(target: str, *words: str) -> None:
    for word in words:
        if word.startswith("-"):
            forget(word[1:])
    names = [word for word in words if not word.startswith("-")]
    print(json.dumps({name: explained_alone(target, name) for name in names or tuple(shipped().schemas)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
