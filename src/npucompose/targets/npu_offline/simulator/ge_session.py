"""torchair.core._torchair without libge: keeps what would have been handed over, and runs the FX graph instead.

The values of a max-autotune run are therefore those of the FX graph that TorchAir optimised, not of the GE graph: they
prove that the graph which was *converted* is right, and nothing about GE.

Operators that TorchAir has for GE's graph alone get values here (`GraphOnly`).
torchair.ops.npu_fused_infer_attention_score takes lengths as tensors and raises when it is called: on a device only GE
computes it. Its values are those of the operator of torch_npu with the same numbers.

# Note [Placement]
Graphs are converted as for tensors on an NPU, though the tensors lie on the CPU. TorchAir writes each input's device
into the GE graph, and options follow from it: a parameter on the CPU is not a frozen input, for example. So while a
graph is converted its inputs are fake tensors on `npu:0`, and so are the devices that its operators name. The graph
that is *run* stays on the CPU.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.ops import attention, npu
from npucompose.targets.npu_offline.simulator.device import SimulatedDevice

LENGTHS = ("actual_seq_lengths", "actual_seq_lengths_kv")
SAME = {"air::npu_fused_infer_attention_score": attention.FIA}
"""{TorchAir's operator: torch_npu's}."""


class GraphOnly(TorchDispatchMode):
    """While a graph runs in GE's place its operators have values."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = SAME.get(func._schema.name) if isinstance(func, torch._ops.OpOverload) else None
        if name is None:
            return func(*args, **(kwargs or {}))
        given = kwargs or {}
        numbers = {slot: given[slot].tolist() for slot in LENGTHS if isinstance(given.get(slot), torch.Tensor)}
        return npu.value(name)(*args, **{**given, **numbers})


DTYPES = (
    "BOOL", "UINT8", "INT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BF16", "FLOAT16", "FLOAT32",
    "FLOAT64", "COMPLEX32", "COMPLEX64", "COMPLEX128",
)  # fmt: skip
"""Members of TorchDataType; their numbers only have to differ."""

TorchDataType = enum.IntEnum("TorchDataType", {name: number for number, name in enumerate(DTYPES)})


class TorchNpuGraphBase:
    """A GE session's graph. `loaded` is the serialised ModelDef and the options exactly as libge would get them."""

    device: ClassVar[SimulatedDevice]
    programs: ClassVar[dict[str, Any]] = {}
    """{graph name: the genuine GeConcreteGraph}, so that `run` can find the FX graph."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.loaded: tuple[bytes, dict[str, str]] | None = None
        self.runs = 0
        self.device.ge_sessions.append(self)

    def load(
        self,
        serialized: bytes,
        options: Mapping[str, str],
        input_placements: Sequence[int],
        output_dtypes: Sequence[int],
        executor_type: int,
    ) -> None:
        self.loaded = (bytes(serialized), dict(options))
        self.device.ledger.note("ge_load", self._name)

    def set_hint_shape(self, inputs_shape: Any, outputs_shape: Any) -> None:
        """Hints for the memory plan; there is none here."""

    def compile(self) -> None:
        """TorchAir asks before every run; libge does it once."""

    def summary(self) -> str:
        return "simulator: no GE"

    def auto_tune(self, packed: Any) -> None:
        raise RuntimeError(f"simulator: tuning {self._name} needs CANN's AOE.")

    def run(self, packed: tuple[Sequence[Any], Sequence[Any] | None, Any]) -> list[Any]:
        inputs, assigned, _ = packed
        self.runs += 1
        self.device.ledger.note("ge_run", self._name)
        concrete = self.programs[self._name]
        with torch.no_grad(), GraphOnly():
            results = concrete._fx_graph(*_fx_arguments(concrete, inputs))
        outputs = list(assigned) if assigned else [None] * len(concrete.graph.attr["_output_dtypes"].list.i)
        for fx_index, ge_index in concrete._fx_outputs_mapping.items():
            outputs[ge_index] = results[fx_index]
        return outputs


def _fx_arguments(concrete: Any, inputs: Sequence[Any]) -> list[Any]:
    """The FX graph's arguments from GE's inputs: lengths may come packed in one tensor, symbols may be left out."""
    arguments: list[Any] = [None] * len(concrete._fx_input_names)
    symbols = set(concrete._all_sym_input_idx.values())
    for given, info in zip(inputs, concrete._input_info_list, strict=True):
        for position, index in enumerate(getattr(info.func, "fx_input_idx_list", ())):
            arguments[index] = int(given[position])
        index = getattr(info.func, "fx_input_idx", None)
        if index is not None:
            arguments[index] = int(given) if index in symbols else given
    for expression, index in concrete._all_sym_input_idx.items():
        if arguments[index] is None:
            arguments[index] = _symbol(expression, concrete._all_meta_tensor_input, arguments)
    return arguments


def _symbol(expression: Any, metas: Mapping[int, Any], arguments: Sequence[Any]) -> int | None:
    """A symbol that GE's graph does not take, read off a dimension of an input."""
    for index, meta in metas.items():
        for dimension, size in enumerate(meta.shape):
            if not isinstance(size, int) and size.node.expr == expression and arguments[index] is not None:
                return arguments[index].shape[dimension]
    return None


def attributes(device: SimulatedDevice) -> dict[str, Any]:
    """What `torchair.core._torchair` holds."""

    def noted(what: str, answer: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            device.ledger.note(what)
            return answer

        return call

    return {
        "TorchNpuGraphBase": type("TorchNpuGraphBase", (TorchNpuGraphBase,), {"device": device}),
        "TorchDataType": TorchDataType,
        "InitializeGraphEngine": noted("ge_initialize"),
        "FinalizeGraphEngine": noted("ge_finalize"),
        "InitDeviceStdoutChannel": noted("stdout_channel"),
        "StupidRepeat": lambda word, times: word * times,
        "export": noted("ge_export"),
        "GetSocName": lambda: device.soc.name,
        "AclopStartDumpArgs": noted("dump_args_start"),
        "AclopStopDumpArgs": noted("dump_args_stop"),
        "AclmdlSetDump": noted("set_dump"),
        "SetDebugLogPath": noted("debug_log_path"),
        "as_torch_tensors": noted("as_torch_tensors", (1, [])),
        "check_cann_compat": lambda *_: "",
        "get_registered_ir_def": lambda name: ("None", [], [], []),
    }


DEVICE = "npu:0"


@cache
def place_ge_graphs() -> None:
    """Wrap TorchAir's converter, once in a process. See Note [Placement]."""
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph  # pyright: ignore[reportMissingImports]
    from torchair.npu_fx_compiler import _NpuGraphConverter  # pyright: ignore[reportMissingImports]

    save, run = GeConcreteGraph.save_fx_graph, _NpuGraphConverter.run

    def save_fx_graph(self: Any, graph_module: Any) -> Any:
        TorchNpuGraphBase.programs[self.graph.name] = self
        return save(self, graph_module)

    def run_converter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._graph, GeConcreteGraph):
            return run(self, *args, **kwargs)
        with _devices_named(self.module.graph):
            return run(self, *(on_npu(arg) for arg in args), **kwargs)

    GeConcreteGraph.save_fx_graph = save_fx_graph
    _NpuGraphConverter.run = run_converter


def on_npu(value: Any) -> Any:
    """A fake CPU tensor as a fake NPU tensor of the same sizes, with the marks that TorchAir and Dynamo put on it."""
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    with value.fake_mode:
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        if value.storage_offset():
            made = made.as_strided(value.size(), value.stride(), value.storage_offset())
    for name, mark in vars(value).items():
        if name not in vars(made):
            setattr(made, name, mark)
    return made


@contextmanager
def _devices_named(graph: Any) -> Iterator[None]:
    """`torch.ones(2, device="cpu")` in the graph is made on the NPU meanwhile."""
    before = [(node, node.args, node.kwargs) for node in graph.nodes]
    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = _renamed(node.args), _renamed(node.kwargs)
    try:
        yield
    finally:
        for node, args, kwargs in before:
            node.args, node.kwargs = args, kwargs


def _renamed(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device(DEVICE)
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _renamed(item) for key, item in value.items()}
    return value
