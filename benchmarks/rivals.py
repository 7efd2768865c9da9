"""Other engines of the benchmark table, each optional: how a model becomes a call of it, and why not where not."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from subject import Ready, Subject, Unavailable
from torch.utils.flop_counter import FlopCounterMode

MOST_UNTUNED_GFLOP = 0.1
"""Of a call that TVM is timed with."""


def native_runtime(subject: Subject) -> Ready:
    """torch's own C++ interpreter of exported programs (nativert), as its build has it for Python."""
    runner = getattr(getattr(torch._C, "_nativert", None), "PyModelRunner", None)
    if runner is None:
        raise Unavailable("this build of torch has no torch._C._nativert")
    from torch.export.pt2_archive._package import package_pt2

    _refuse_state(subject, "nativert's copy of the weights")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.pt2")
        package_pt2(file, exported_programs={"model": torch.export.export(subject.own(), subject.inputs)})
        try:
            return Ready(call=runner(file, "model").run)
        except TypeError as error:
            raise Unavailable(f"this build of torch cannot make one from Python: {error}") from error


def onnx_runtime(subject: Subject) -> Ready:
    """Arrays over torch's memory in, arrays out; threads that do not spin, because others are timed beside them."""
    _needs("onnxruntime", "onnxscript", "onnx")
    onnxruntime = _module("onnxruntime")
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
    openvino = _module("openvino")
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


def executorch(subject: Subject) -> Ready:
    """What XNNPACK takes is XNNPACK's, the rest ExecuTorch's portable kernels."""
    _needs("executorch", "torchao", extra="rivals")
    exir, runtime = _module("executorch.exir"), _module("executorch.runtime")
    portable_lib = _module("executorch.extension.pybindings.portable_lib")
    xnnpack = _module("executorch.backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner()
    _refuse_state(subject, "a lowered ExecuTorch program")
    portable_lib._unsafe_reset_threadpool(subject.threads)
    exported = torch.export.export(subject.own(), subject.inputs)
    lowered = exir.to_edge_transform_and_lower(exported, partitioner=[xnnpack]).to_executorch()
    buffer = lowered.buffer
    program = runtime.Runtime.get().load_program(buffer)
    method = program.load_method("forward")

    def call(*inputs: torch.Tensor, _alive: Any = (buffer, program)) -> Any:
        """The method reads both where they lie."""
        return _one(method.execute(inputs))

    return Ready(call=call)


def iree(subject: Subject) -> Ready:
    """Code for this processor; one thread runs it inline, several share IREE's own task system."""
    _needs("iree.compiler", "iree.runtime", "iree.turbine", extra="rivals")
    aot, runtime = _module("iree.turbine.aot"), _module("iree.runtime")
    _refuse_state(subject, "an exported IREE module")
    exported = aot.export(subject.own(), args=subject.inputs)
    exported.session.set_flags("--iree-llvmcpu-target-cpu=host")
    binary = exported.compile(save_to=None, target_backends="llvm-cpu")
    if subject.threads > 1:
        runtime.flags.parse_flags(f"--task_topology_max_group_count={subject.threads}")
    config = runtime.Config("local-sync" if subject.threads == 1 else "local-task")
    module = runtime.VmModule.copy_buffer(config.vm_instance, binary.map_memory())
    loaded = runtime.load_vm_module(module, config)

    def call(*inputs: torch.Tensor) -> Any:
        found = loaded.main(*(value.numpy() for value in inputs))
        return _torch([numpy.asarray(one.to_host()) for one in (found if isinstance(found, tuple) else (found,))])

    return Ready(call=call)


def tvm(subject: Subject) -> Ready:
    """As TVM compiles a model for this processor without hours of tuning; its threads follow OMP_NUM_THREADS.

    Untuned, products are plain loops: four calls of gpt_prefill had not ended after five minutes.
    """
    _needs("tvm", extra="rivals")
    if (gflop := _gflop(subject)) > MOST_UNTUNED_GFLOP:
        raise Unavailable(
            f"untuned, TVM's products are plain loops: left out above {MOST_UNTUNED_GFLOP:g} GFLOP a call, "
            f"and this has {gflop:.1f}"
        )
    tvm, relax = _module("tvm"), _module("tvm.relax")
    from_exported_program = _module("tvm.relax.frontend.torch").from_exported_program
    _refuse_state(subject, "an imported TVM module")
    module = from_exported_program(torch.export.export(subject.own(), subject.inputs))
    processor = tvm.target.codegen.llvm_get_system_cpu()
    built = tvm.compile(
        relax.get_pipeline("zero")(module), target=tvm.target.Target({"kind": "llvm", "mcpu": processor})
    )
    machine = relax.VirtualMachine(built, tvm.cpu())

    def call(*inputs: torch.Tensor) -> Any:
        return _one([torch.from_dlpack(one) for one in machine["main"](*map(tvm.runtime.from_dlpack, inputs))])

    return Ready(call=call)


def _module(name: str) -> Any:
    """Of a package that may be missing, so that nobody checks types by it."""
    return importlib.import_module(name)


def _gflop(subject: Subject) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        subject.own()(*subject.inputs)
    return counted.get_total_flops() / 1e9


def _torch(arrays: Sequence[numpy.ndarray[Any, Any]]) -> Any:
    return _one(list(map(torch.from_numpy, arrays)))


def _one(tensors: Sequence[torch.Tensor]) -> Any:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _needs(*packages: str, extra: str = "bench") -> None:
    missing = [name for name in packages if not _is_there(name)]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (extra: {extra})")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False


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
    "ExecuTorch": executorch,
    "IREE": iree,
    "TVM": tvm,
}
"""In the order of the table."""
