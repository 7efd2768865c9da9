"""A plan of two streams in mode=npugraph_ex, its events written with each of the two packages' operators."""

from __future__ import annotations

import json
from typing import Any

import torch
from attrs import evolve

import npucompose
from npu_simulator import install
from npucompose.targets.npu_offline import NpuOfflineTarget, wheel


def forward(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x) + (torch.abs(x) - x)


def unordered(namespace: str) -> list[str]:
    """What a capture finds when record and wait are `namespace`'s."""
    torch._dynamo.reset()
    genuine: Any = NpuOfflineTarget.capabilities
    NpuOfflineTarget.capabilities = lambda self, mode: evolve(genuine(self, mode), event_namespace=namespace)
    try:
        made = npucompose.materialize(
            "target=npu_offline", "mode=npugraph_ex", "passes=stream_plan", "streams=mm_abs_sub"
        )
    finally:
        NpuOfflineTarget.capabilities = genuine
    with torch.no_grad():
        torch.compile(forward, backend=made.backend, **made.compile_keywords)(torch.ones(4, 4))
    return install(wheel.locate()).graphs[-1].outside


if __name__ == "__main__":
    print(json.dumps({namespace: unordered(namespace) for namespace in ("air", "npugraph_ex")}))
