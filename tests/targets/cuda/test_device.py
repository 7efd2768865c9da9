"""On a GPU (`make test-cuda`): bits, streams, mutation; the times go into benchmarks/results with the environment."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

import npucompose

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def microseconds(call: Any, calls: int = 200) -> float:
    """Median by CUDA events."""
    times: list[float] = []
    for _ in range(calls):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return median(times)


@pytest.mark.parametrize("passes", ["[]", "stream_plan"])
def test_a_cuda_graph_gives_eagers_bits_and_its_times_are_kept(passes: str) -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = (torch.mm(x, w) + torch.abs(x)).relu() * 0.05
        return x

    made = npucompose.materialize("target=cuda", "mode=reduce-overhead", f"passes={passes}", "streams.min_gain=0")
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    ours = torch.compile(model, backend=made.backend, **made.compile_keywords)
    theirs = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            y = torch.randn(64, 64, device="cuda")
            assert torch.equal(ours(y, w), model(y, w))
            theirs(y, w)
        calls = {"eager": model, "npucompose": ours, "torch reduce-overhead": theirs}
        times = {name: microseconds(lambda call=call: call(x, w)) for name, call in calls.items()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name().replace(" ", "-")
    (RESULTS / f"cuda-{name}-{'plain' if passes == '[]' else passes}.json").write_text(
        json.dumps({"p50_us": times, "torch": torch.__version__, "device": name, "cuda": torch.version.cuda}, indent=1)
    )
