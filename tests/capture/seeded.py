"""Models with one mistake, or with what only looks like one: a class each, registered by what a capture says of it.

The guilty line of a fault bears the comment `# here`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch import nn

from npucompose.capture import CaptureQuestion, CaptureRuntime, Seen, judge
from npucompose.capture.breaks import recorded_breaks
from npucompose.capture.devices import simulated
from npucompose.capture.reading import read
from npucompose.capture.machine import SimulatedMachine
from npucompose.capture.watch import called, watching
from npucompose.results.capture import CaptureLegality


@frozen(kw_only=True)
class Fault:
    """A model that no capture holds."""

    model: type[nn.Module]
    rule: str
    code: int | None
    fix: str
    """Words of the fix."""
    cites: str
    """The public thread or document."""
    options: Mapping[str, Any] = field(factory=dict)
    traced: bool = False
    """torch.compile is asked too: only it sees the mistake."""


@frozen(kw_only=True)
class Legal:
    """A model that a capture holds, though it looks like one of the faults."""

    model: type[nn.Module]
    unlike: str
    """The rule that it looks like breaking."""
    options: Mapping[str, Any] = field(factory=dict)
    traced: bool = False


FAULTS: list[Fault] = []
NEAR_MISSES: list[Legal] = []
Model = type[nn.Module]


def fault(
    rule: str, code: int | None, fix: str, cites: str, *, traced: bool = False, **options: Any
) -> Callable[[Model], Model]:
    def register(model: Model) -> Model:
        FAULTS.append(Fault(model=model, rule=rule, code=code, fix=fix, cites=cites, traced=traced, options=options))
        return model

    return register


def legal(unlike: str, *, traced: bool = False, **options: Any) -> Callable[[Model], Model]:
    def register(model: Model) -> Model:
        NEAR_MISSES.append(Legal(model=model, unlike=unlike, traced=traced, options=options))
        return model

    return register


def captured(model: Callable[[], nn.Module], *, traced: bool = False, **options: Any) -> CaptureLegality:
    """The verdict on one call with a 4 x 4 tensor `x` of the device."""
    question = CaptureQuestion(**{"mode": "reduce-overhead", "target": "cpu", **options})
    machine = SimulatedMachine(CaptureRuntime(mode=question.capture_mode))
    x = torch.arange(16, dtype=torch.float32).view(4, 4) - 5
    with simulated(machine):
        with watching(machine):
            module = model().eval()
        machine.places.moved(module)
        ran = called(machine, lambda: module(x))
    breaks, graphs = _traced(module, x) if traced else ([], [])
    seen = Seen(runtime=machine.runtime, ran=ran, graphs=tuple(graphs), breaks=tuple(breaks))
    return judge(question, seen)


def _traced(module: nn.Module, x: torch.Tensor) -> tuple[list[Any], list[Any]]:
    from torch._dynamo.backends.common import aot_autograd

    found: list[Any] = []

    def reading(graph_module: Any, inputs: Any) -> Any:
        found.extend(read(graph_module.graph, "graph_0"))
        return graph_module.forward

    torch._dynamo.reset()
    compiled = torch.compile(module, backend=aot_autograd(fw_compiler=reading))
    with recorded_breaks() as breaks, torch.no_grad():
        compiled(x)
    torch._dynamo.reset()
    return breaks, found
