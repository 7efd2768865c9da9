"""One model, three lengths, once as it is and once with each part of the simulator broken. Prints what was noticed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import npucompose
from npu_simulator import install
from npu_simulator.graph import SimulatedGraph
from npu_simulator.recorder import MemoryBefore
from npu_simulator.tasks import Updater
from npucompose.targets.npu_offline import wheel

LENGTHS = ([11, 12], [13, 40], [14, 41])


class Decode(nn.Module):
    """An attention operator with lengths as numbers, and a counter that every call moves on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int]) -> Any:
        self.calls.add_(1)
        attended = torch.ops.npu.npu_fused_infer_attention_score(
            query, key, value, actual_seq_lengths_kv=lengths, num_heads=4, input_layout="BNSD", scale=0.25
        )
        return attended[0] * 2 + self.calls


def no_replay(graph: SimulatedGraph) -> None:
    graph.replays += 1


def no_undo(memory: MemoryBefore) -> None:
    pass


def ignored_update(updater: Updater, new: Any) -> None:
    updater.updated += 1


BROKEN: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "replay does nothing": (SimulatedGraph, "replay", no_replay),
    "capture is not undone": (MemoryBefore, "undo", no_undo),
    "task update is ignored": (Updater, "_update", ignored_update),
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    if name not in BROKEN:
        yield
        return
    owner, method, wrong = BROKEN[name]
    genuine = getattr(owner, method)
    setattr(owner, method, wrong)
    try:
        yield
    finally:
        setattr(owner, method, genuine)


def wrong_steps(mode: str, target: str = "npu_offline") -> list[str]:
    """Which of the three calls do not give eager's bits."""
    device = "npu:0" if target == "npu" else "cpu"
    torch._dynamo.reset()
    made = npucompose.materialize(f"target={target}", f"mode={mode}", "shapes=dynamic")
    model, reference = Decode().to(device), Decode().to(device)
    compiled = torch.compile(model, backend=made.backend, **made.compile_keywords)
    generator = torch.Generator().manual_seed(0)
    wrong = []
    for step, lengths in enumerate(LENGTHS):
        tensors = [torch.randn(2, 4, n, 16, generator=generator).to(device) for n in (1, 64, 64)]
        for tensor in tensors:
            torch._dynamo.mark_static(tensor)
        with torch.no_grad():
            got, wanted = compiled(*tensors, lengths), reference(*tensors, lengths)
        if not (torch.equal(got, wanted) and torch.equal(model.calls, reference.calls)):
            wrong.append(f"step {step}")
    return wrong


def main(mode: str) -> None:
    found: dict[str, Any] = {}
    for name in ("nothing is broken", *BROKEN):
        with broken(name):
            found[name] = wrong_steps(mode)
        if name == "nothing is broken":
            counts = install(wheel.locate()).ledger.counts
            found["counts"] = {what: counts[what] for what in ("capture", "replay", "task_update")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
