"""One call under the simulated capture, as `explain --capture` makes it, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from npucompose.npu.capture.legality import CaptureQuestion, Seen, judge
from npucompose.npu.capture.reading import read, recorded_breaks
from npucompose.npu.capture.records import CaptureLegality
from npucompose.npu.capture.rules import CaptureMode
from npucompose.npu.capture.simulated.devices import simulated
from npucompose.npu.capture.simulated.machine import SimulatedMachine
from npucompose.npu.capture.simulated.runtime import CaptureRuntime
from npucompose.npu.capture.simulated.watch import called, watching


def captured(model: Callable[[], Any], *, traced: bool = False, torch_npu: str | None = None,
             capture_mode: CaptureMode = "global", **options: Any) -> CaptureLegality:  # fmt: skip
    """The verdict on one call, with a 4 x 4 tensor `x` of the device, of what `model` makes before the capture."""
    question = CaptureQuestion(mode="reduce-overhead", target="cpu", capture_mode=capture_mode, **options)
    machine = SimulatedMachine(CaptureRuntime(mode=capture_mode, torch_npu=torch_npu))
    x = torch.arange(16, dtype=torch.float32).view(4, 4) - 5
    with simulated(machine):
        with watching(machine):
            made = model()
        machine.places.moved(made if isinstance(made, nn.Module) else nn.Module())
        ran = called(machine, lambda: made(x))
    breaks, graphs = _traced(made, x) if traced else ([], [])
    seen = Seen(
        runtime=machine.runtime, ran=ran, graphs=tuple(graphs), breaks=tuple(breaks), draws=tuple(machine.draws)
    )
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
