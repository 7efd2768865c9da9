"""Run in a process of its own: scripts of users in max-autotune. `python ge_scripts.py WHICH FOLDER` prints facts."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["NPUCOMPOSE_SIMULATED_NPU"] = "1"
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from torch import nn

from npu_simulator import ge_session, install
from npucompose.targets.npu_offline import wheel

DEVICE = install(wheel.locate())
ge_session.place_ge_graphs()

import torchair  # noqa: E402  # pyright: ignore[reportMissingImports]


class TwoSteps(nn.Module):
    """Two methods, each cached by itself; TorchAir gives both graphs the same name in a process that only loads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("bias", torch.ones(4))

    def prefill(self, x: torch.Tensor) -> Any:
        return self.linear(x).relu() + x.shape[0]

    def decode(self, x: torch.Tensor) -> Any:
        return self.linear(x).sigmoid() * self.bias


def cache(folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, equal = TwoSteps(), []
    calls = [
        torchair.inference.cache_compile(
            method, config=torchair.CompilerConfig(), dynamic=dynamic, cache_dir=str(folder)
        )
        for method, dynamic in ((model.prefill, True), (model.decode, False))
    ]
    with torch.no_grad():
        for call, method, rows in (
            (calls[0], model.prefill, 3),
            (calls[1], model.decode, 3),
            (calls[0], model.prefill, 5),
        ):
            x = torch.randn(rows, 4)
            equal.append(torch.equal(call(x), method(x)))
    saved = sorted(folder.rglob("compiled_module"))
    compiled = sum(
        "torch_compile" in str(type(call._compiled_model)) or hasattr(call._compiled_model, "compiled_func")
        for call in calls
    )
    return {"equal": equal, "compiled": compiled, "texts": [file.read_bytes().hex() for file in saved]}


def cache_of_a_device(folder: Path) -> dict[str, Any]:
    for file in folder.rglob("*.fx"):
        file.unlink()
    try:
        cache(folder)
    except Exception as error:  # noqa: BLE001
        return {"answer": str(error)}
    return {"answer": "nothing"}


class Streams(nn.Module):
    def forward(self, in1: torch.Tensor, in2: torch.Tensor, in3: torch.Tensor, in4: torch.Tensor) -> Any:
        add_result = torch.add(in1, in2)
        with torchair.scope.npu_stream_switch("1"):
            torchair.scope.npu_wait_tensor(in4, add_result)
            mm_result = torch.mm(in3, in4)
        mm1 = torch.mm(in3, in4)
        with torchair.scope.npu_stream_switch("2"):
            torchair.scope.npu_wait_tensor(in4, mm_result)
            add2 = torch.add(in3, in4)
            waited = torchair.scope.npu_wait_tensor(in2, mm_result) * 2
        return add_result, mm_result, mm1, add2, waited


def multi_stream(folder: Path) -> dict[str, Any]:
    from npucompose.npu.torchair import facts

    facts.watch_ge()
    backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
    a, b, c, d = (torch.randn(8, 8) for _ in range(4))
    results = torch.compile(Streams(), backend=backend, dynamic=False, fullgraph=True)(a, b, c, d)
    streams = {label for graph in map(facts.graph_facts, facts.LOADED) for label in graph.streams.values()}
    equal = [torch.equal(x, y) for x, y in zip(results, (a + b, c @ d, c @ d, c + d, b * 2), strict=True)]
    return {"equal": equal, "streams": sorted(streams)}


def export(folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torchair.dynamo_export(torch.randn(2, 4), model=nn.Linear(4, 4), export_path=str(folder), export_name="net")
    said = [str(one.message) for one in caught if str(one.message).startswith("simulator")]
    return {"warnings": said, "files": [file.name for file in folder.iterdir()]}


def by_name(folder: Path) -> dict[str, Any]:
    """{backend: what was counted, or the error}"""
    found: dict[str, Any] = {}
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    for backend in ("npu", "npugraph_ex", "npugraphs"):
        torch._dynamo.reset()
        before = DEVICE.ledger.counts.copy()
        try:
            with torch.no_grad():
                equal = torch.equal(torch.compile(model, backend=backend)(x), model(x))
        except Exception as error:  # noqa: BLE001
            found[backend] = str(error)
        else:
            found[backend] = [equal, *sorted((DEVICE.ledger.counts - before).keys() & {"ge_run", "capture", "replay"})]
    return found


if __name__ == "__main__":
    which = {one.__name__: one for one in (by_name, cache, cache_of_a_device, multi_stream, export)}
    print(json.dumps(which[sys.argv[1]](Path(sys.argv[2]))))
