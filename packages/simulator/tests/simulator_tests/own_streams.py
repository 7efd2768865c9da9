"""Run in a process of its own: a model with two streams, three events and record_stream in its own forward.

Prints what a compiled capture holds, and what a capture of the code itself holds, which is what it has to be.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "0"

import torch

import npucompose
from npu_simulator import install
from npu_simulator.graph import SimulatedGraph
from npucompose.errors import CompileError
from npucompose.targets.npu_offline import wheel
from simulator_tests.asked import happens_before


class Fork(torch.nn.Module):
    """mm on the caller's stream, relu and abs on streams of the model's own, and their sum after both."""

    def __init__(self, waits: bool) -> None:
        super().__init__()
        npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
        self.waits = waits
        self.left, self.right = npu.Stream(), npu.Stream()
        self.ready, self.left_done, self.right_done = npu.Event(), npu.Event(), npu.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
        y = torch.mm(x, x)
        self.ready.record()
        with npu.stream(self.left):
            self.ready.wait()
            p = torch.relu(y)
            self.left_done.record()
        with npu.stream(self.right):
            self.right.wait_event(self.ready)
            q = torch.abs(y)
            self.right_done.record()
        npu.current_stream().wait_event(self.left_done)
        if self.waits:
            self.right_done.wait()
        p.record_stream(npu.current_stream())
        return p + q


def seen(recording: SimulatedGraph) -> dict[str, Any]:
    kinds = [line.split()[0] for line in recording.notes]
    return {
        "before": sorted(f"{a} < {b}" for a, b in happens_before(recording.order)),
        "streams": len({task.stream for task in recording.order.tasks}),
        "uses": kinds.count("record_stream"),
        "outside": recording.outside,
    }


def of_the_code(model: Fork, x: torch.Tensor) -> dict[str, Any]:
    npu: Any = torch.npu  # pyright: ignore[reportAttributeAccessIssue]
    graph = npu.NPUGraph()
    try:
        with torch.no_grad(), npu.graph(graph):
            model(x)
    except RuntimeError as error:
        return {"refused": str(error)}
    return seen(graph._recording)


def main(mode: str) -> None:
    made = npucompose.materialize("target=npu_offline", f"mode={mode}")
    device, x, found = install(wheel.locate()), torch.randn(4, 4), dict[str, Any]()
    for waits in (True, False):
        torch._dynamo.reset()
        model = Fork(waits)
        mine: dict[str, Any] = {"code": of_the_code(model, x)}
        try:
            compiled = torch.compile(model, backend=made.backend, **made.compile_keywords)
            with torch.no_grad():
                compiled(torch.zeros(4, 4))
                mine["equal"] = torch.equal(compiled(x), torch.relu(x @ x) + torch.abs(x @ x))
            mine["compiled"] = seen(device.graphs[-1])
            compilation = made.backend.compilations[-1]
            mine["plan"] = sorted(f"{event.recorder} < {event.waiter}" for event in compilation.plan.events)
            mine["streams"] = len(set(compilation.plan.nodes.values()))
            mine["validated"], mine["why"] = compilation.judged.validated, compilation.judged.why
        except (CompileError, torch._dynamo.exc.BackendCompilerFailed) as error:
            mine["refused"] = str(error)
        found["waits" if waits else "lacks a wait"] = mine
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
