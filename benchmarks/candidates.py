"""Every way to run a model that the table of docs/performance.md compares: how each is made, ready to be called.

A candidate is a function of a Subject that returns something to call with the model's inputs. What it cannot do it
says with `Unavailable`, in words for a cell of the table; whatever else a library raises is told in its first line.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from attrs import frozen
from floor import Floor

import npucompose
from npucompose.replay.captured_graph import CapturedGraph
from npucompose.replay.executor.native import Native

Call = Callable[..., Any]


class Unavailable(Exception):
    """Why there is no such candidate for this model on this machine."""


@frozen(kw_only=True, eq=False)
class Subject:
    """A model with its example inputs, and how many threads everybody gets."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    threads: int

    def own(self) -> torch.nn.Module:
        """The module over the same parameters with buffers of its own, so that states do not mix."""
        return copy.deepcopy(self.module, memo={id(p): p for p in self.module.parameters()})


@frozen(kw_only=True, eq=False)
class Ready:
    """Something to call, with what is known beside its time."""

    call: Call
    module: torch.nn.Module | None = None
    """Whose buffers the call updates; None where a library keeps a copy of its own."""
    pool_bytes: int | None = None
    floor: Callable[[], float] | None = None
    """Measures the raw kernel floor once, in µs."""


def eager(subject: Subject) -> Ready:
    module = subject.own()
    return Ready(call=module, module=module)


def by_torch(subject: Subject, backend: str = "inductor", **options: Any) -> Ready:
    module = subject.own()
    compiled = torch.compile(module, fullgraph=True, dynamic=False, backend=backend, options=options or None)
    return Ready(call=compiled, module=module)


def ours(subject: Subject, *overrides: str) -> Ready:
    """Through torch.compile, with everything that keeps a call safe."""
    module = subject.own()
    return Ready(call=npucompose.compile(module, *overrides), module=module)


def detached(subject: Subject, *overrides: str) -> Ready:
    """The recording itself, behind its own front."""
    module = subject.own()
    handle = npucompose.compile(module, *overrides).detach(*subject.inputs)
    captured = handle.captured
    assert isinstance(captured, CapturedGraph)
    floor = None
    if isinstance(captured.executor, Native):
        floor = Floor(captured, handle.inputs_of(*subject.inputs)).microseconds
    return Ready(call=handle, module=module, pool_bytes=captured.facts()["pool_bytes"], floor=floor)


def aot_inductor(subject: Subject) -> Ready:
    module = subject.own()
    with tempfile.TemporaryDirectory() as folder:
        exported = torch.export.export(module, subject.inputs)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "model.pt2"))
        return Ready(call=torch._inductor.aoti_load_package(package))


def onnx_runtime(subject: Subject) -> Ready:
    """Arrays over torch's memory in, arrays out; threads that do not spin, because others are timed beside them."""
    _needs("onnxruntime", "onnxscript", "onnx")
    import onnxruntime  # pyright: ignore[reportMissingImports]  an extra

    _refuse_state(subject, "a converted ONNX graph")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = subject.threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(subject.own(), subject.inputs, file, dynamo=True, optimize=True, verbose=False)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]

    def call(*inputs: torch.Tensor) -> Any:
        found = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
        return _torch(found)

    return Ready(call=call)


def open_vino(subject: Subject) -> Ready:
    _needs("openvino")
    import openvino  # pyright: ignore[reportMissingImports]  an extra

    _refuse_state(subject, "a converted OpenVINO graph")
    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": subject.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    model = openvino.convert_model(torch.export.export(subject.own(), subject.inputs))
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def call(*inputs: torch.Tensor) -> Any:
        found = request.infer([value.numpy() for value in inputs], share_inputs=True, share_outputs=True)
        return _torch(list(found.values()))

    return Ready(call=call)


def _torch(arrays: Sequence[numpy.ndarray[Any, Any]]) -> Any:
    tensors = tuple(map(torch.from_numpy, arrays))
    return tensors[0] if len(tensors) == 1 else tensors


def _needs(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (extra: bench)")


def _refuse_state(subject: Subject, who: str) -> None:
    """A converted graph computes with the buffers as they were; a step that updates its cache is another program."""
    module = subject.own()
    before = [buffer.clone() for buffer in module.buffers()]
    module(*subject.inputs)
    if not all(torch.equal(a, b) for a, b in zip(before, module.buffers(), strict=True)):
        raise Unavailable(f"{who} does not keep the cache that this model updates in place")


def _detached(*overrides: str) -> Callable[[Subject], Ready]:
    return lambda subject: detached(subject, *overrides)


def _ours(*overrides: str) -> Callable[[Subject], Ready]:
    return lambda subject: ours(subject, *overrides)


DETACHED = "npucompose, detached"
MAX_AUTOTUNE = "npucompose max-autotune"
EAGER, AOT_INDUCTOR, ONNX_RUNTIME = "eager", "AOTInductor", "ONNX Runtime"
INDUCTOR, CPP_WRAPPER = "Inductor", "Inductor cpp_wrapper"
CANDIDATES: Mapping[str, Callable[[Subject], Ready]] = {
    EAGER: eager,
    "aot_eager": partial(by_torch, backend="aot_eager"),
    "npucompose, portable": _detached("mode=reduce-overhead", "target.executor=portable"),
    "npucompose, torch.compile": _ours("mode=reduce-overhead", "target.executor=native"),
    DETACHED: _detached("mode=reduce-overhead", "target.executor=native"),
    INDUCTOR: by_torch,
    CPP_WRAPPER: partial(by_torch, cpp_wrapper=True),
    MAX_AUTOTUNE: _ours("mode=max-autotune", "inductor.replay=wrapper"),
    f"{MAX_AUTOTUNE}, cpp_wrapper": _ours("mode=max-autotune", "inductor.cpp_wrapper=true"),
    f"{MAX_AUTOTUNE}, detached": _detached("mode=max-autotune"),
    AOT_INDUCTOR: aot_inductor,
    ONNX_RUNTIME: onnx_runtime,
    "OpenVINO": open_vino,
}
"""In the order of the table; npucompose is native where nothing else is said."""
