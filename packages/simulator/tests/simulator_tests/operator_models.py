"""Run in a process of its own: a model of one operator, for each that is named: what TorchAir makes of it, and what is
derived of it; as JSON, `{operator: {verdict, operator, what, operators, capture, dispatched} or {error}}`.

`python operator_models.py WAY CALLS OUT [WITHOUT…]`: WAY is `genuine` (the wheel's own converter, npu_offline) or
`derived`; CALLS is what `python operator_models.py calls CALLS` makes of the names on its input; the operators WITHOUT
are left out of the tables first.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from npucompose.compose.check import check
from npucompose.compose.session import Session
from npucompose.compose.tree import compose
from npucompose.errors import CompileError
from npucompose.experiment.explain import explained
from npucompose.models.base import Built
from npucompose.npu.capture.simulated.devices import simulated
from npucompose.npu.capture.simulated.machine import SimulatedMachine
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from npucompose.npu.capture.simulated.watch import called
from npucompose.vendor import wheel_operators
from npucompose.vendor.versions import REFERENCE
from npucompose.vendor.wheel_operators import WheelLists
from tools.operator_calls import OperatorCall, isolated, overload, safe

TARGETS = {"genuine": "npu_offline", "derived": "cpu"}
WITHOUT = sys.argv[4:]


class OneOperator(torch.nn.Module):
    """The operator on the tensors of a call, whose other arguments are constants."""

    def __init__(self, name: str, call: OperatorCall) -> None:
        super().__init__()
        self.operator = overload(name)
        self.leaves, self.tree = tree_flatten((call.args, dict(call.keywords)))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, given: list[torch.Tensor]) -> Any:
        left = iter([one + 0 if one.dtype.is_floating_point else one.clone() for one in given])
        args, keywords = tree_unflatten(
            [next(left) if isinstance(x, torch.Tensor) else x for x in self.leaves], self.tree
        )
        return self.operator(*args, **keywords)


def explained_alone(way: str, name: str, call: OperatorCall) -> dict[str, Any]:
    """The verdicts on the model of one operator."""
    torch._dynamo.reset()
    session = Session(
        check(
            compose(
                ["model=add", f"target={TARGETS[way]}", "mode=max-autotune", "shapes=static", "target.soc=Ascend910B1"]
            )
        )
    )
    _leave_out(WITHOUT)
    module = OneOperator(name, call).eval()
    tensors = [one.detach().clone() for one in module.tensors]
    session.built = Built(module=module, inputs=lambda step: {"given": [one.clone() for one in tensors]})
    found = explained(session).sinking
    failure = found.failure
    backend = session.materialised.backend
    ops = [op.overload for one in backend.compilations for op in (*one.facts.ops, *one.facts.without_tensors)]
    refused = failure if found.ge_graph == "failed" else None
    return {
        "verdict": found.ge_graph,
        "operator": refused.operator if refused is not None else None,
        "what": failure.what if failure is not None else "",
        "graphs": len(backend.compilations),
        "operators": list(dict.fromkeys(ops)),
    }


def _leave_out(names: list[str]) -> None:
    """Make the tables lack the operators' rows."""
    if not names:
        return
    full = wheel_operators.operators(REFERENCE).lists
    kept = {
        part: {name: value for name, value in getattr(full, part).items() if name not in names}
        for part in ("converters", "kernels")
    }
    lacking: WheelLists = evolve(full, **kept)
    wheel_operators.learn(REFERENCE, lambda: lacking)


class _Dispatched(TorchDispatchMode):
    """Notes the operators that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def captured_alone(name: str, call: OperatorCall) -> dict[str, list[str]]:
    """The rules that one call of the operator breaks in a capture, and the operators that it comes down to there."""
    machine = SimulatedMachine(CaptureRuntime(torch_npu=REFERENCE))
    seen = _Dispatched()
    module = OneOperator(name, call)
    tensors = [one.detach().clone() for one in module.tensors]
    with simulated(machine):
        machine.places.moved(module)
        stopped = called(machine, lambda: _noted(seen, lambda: module(tensors)))
    if stopped is not None:
        raise RuntimeError(f"the call stopped in the capture: {stopped}")
    return {
        "capture": [f"{one.rule}: {one.what}" for one in machine.runtime.refusals],
        "dispatched": list(dict.fromkeys(seen.names)),
    }


def _noted(mode: TorchDispatchMode, act: Callable[[], Any]) -> Any:
    with mode:
        return act()


def told_of(way: str, name: str, call: OperatorCall) -> dict[str, Any]:
    try:
        told = explained_alone(way, name, call)
        if way == "derived":
            told |= captured_alone(name, call)
    except CompileError as error:
        text = str(error)[:200]
        told = {"error": text} if way == "derived" else {"verdict": "failed", "operator": None, "what": text}
    except Exception as error:  # noqa: BLE001  an operator may refuse in any way
        text = str(error).strip().splitlines()
        told = {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:200]}
    return told


def main(way: str, calls: str, out: str) -> None:
    """Go on where an earlier process ended: what it was at is in `out` already."""
    warnings.simplefilter("ignore")
    file = Path(out)
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name, call in torch.load(calls, weights_only=False).items():
        if name not in told:
            file.write_text(json.dumps({**told, name: {"error": "it ended the process"}}), encoding="utf-8")
            told[name] = told_of(way, name, call)
            file.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "calls":
        torch.save(isolated(list(safe(json.loads(sys.stdin.read())))), sys.argv[2])
    else:
        main(*sys.argv[1:4])
