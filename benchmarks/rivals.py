"""Other engines of the benchmark table, each optional: how a model becomes a call of it, and why not where not."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from subject import Ready, Subject, Unavailable


def native_runtime(subject: Subject) -> Ready:
    """torch's own C++ interpreter of exported programs, as its build has it for Python."""
    runner = getattr(getattr(torch._C, "_nativert", None), "PyModelRunner", None)
    if runner is None:
        raise Unavailable("this build of torch has no torch._C._nativert")
    from torch.export.pt2_archive._package import package_pt2

    _refuse_state(subject, "nativert's copy of the weights")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.pt2")
        package_pt2(file, exported_programs={"model": torch.export.export(subject.own(), subject.inputs)})
        return Ready(call=runner(file, "model").run)


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


ONNX_RUNTIME = "ONNX Runtime"
RIVALS: Mapping[str, Callable[[Subject], Ready]] = {
    "nativert": native_runtime,
    ONNX_RUNTIME: onnx_runtime,
    "OpenVINO": open_vino,
}
"""In the order of the table."""
