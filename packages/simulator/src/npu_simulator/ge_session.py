"""torchair.core._torchair without libge: keeps what would have been handed over, and runs the FX graph instead.

The values of a max-autotune run are therefore those of the FX graph that TorchAir optimised, not of the GE graph: they
prove that the graph which was *converted* is right, and nothing about GE. What is run is a `GeProgram`.

# Note [Placement]
Graphs are converted as for tensors on an NPU, though the tensors lie on the CPU. TorchAir writes each input's device
into the GE graph, and options follow from it: a parameter on the CPU is not a frozen input, for example. So while a
graph is converted its inputs are fake tensors on `npu:0`, and so are the devices that its operators name. The graph
that is *run* stays on the CPU.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from npu_simulator.device import SimulatedDevice
from npu_simulator.ge_program import SUFFIX, GeProgram

DTYPES = (
    "BOOL", "UINT8", "INT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BF16", "FLOAT16", "FLOAT32",
    "FLOAT64", "COMPLEX32", "COMPLEX64", "COMPLEX128",
)  # fmt: skip
"""Members of TorchDataType; their numbers only have to differ."""

TorchDataType = enum.IntEnum("TorchDataType", {name: number for number, name in enumerate(DTYPES)})


PROGRAMS: dict[str, GeProgram] = {}
"""{text that TorchAir wrote for a GE graph: what runs in the graph's place}."""
_RUNNING: list[str] = []
"""Texts that TorchAir runs now: they make the sessions of their graphs."""


class TorchNpuGraphBase:
    """A GE session's graph. `loaded` is the serialised ModelDef and the options exactly as libge would get them."""

    device: ClassVar[SimulatedDevice]

    def __init__(self, name: str) -> None:
        self._name = name
        self.loaded: tuple[bytes, dict[str, str]] | None = None
        self.runs = 0
        self.program = PROGRAMS.get(_RUNNING[-1]) if _RUNNING else None
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

    def auto_tune(self, packed: tuple[Sequence[Any], Any]) -> None:
        _tensors_alone(packed[0])
        raise RuntimeError(f"simulator: tuning {self._name} needs CANN's AOE.")

    def run(self, packed: tuple[Sequence[Any], Sequence[Any] | None, Any]) -> list[Any]:
        inputs, assigned, _ = packed
        _tensors_alone(inputs)
        _tensors_alone(assigned or (), or_none=True)
        if self.program is None:
            raise RuntimeError(
                f"simulator: GE graph {self._name!r} has no FX graph to run in GE's place: it comes out of a cache "
                "that a device wrote, or was made by hand, or calls submodules. Remove the cache, or turn it off."
            )
        self.runs += 1
        self.device.ledger.note("ge_run", self._name)
        return self.program.run(inputs, assigned)


def _tensors_alone(values: object, *, or_none: bool = False) -> None:
    """What TorchAir's library refuses before GE is asked (Ascend/torchair fced8842, core/torchair.cpp:26, 37, 67)."""
    if not isinstance(values, list | tuple):
        raise RuntimeError("not a list or tuple")
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor) and not (or_none and value is None):
            raise RuntimeError(f"element {number} is {'None' if value is None else 'not a Tensor'}")


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
        "export": export(device),
        "GetSocName": lambda: device.soc.name,
        "AclopStartDumpArgs": noted("dump_args_start"),
        "AclopStopDumpArgs": noted("dump_args_stop"),
        "AclmdlSetDump": noted("set_dump"),
        "SetDebugLogPath": noted("debug_log_path"),
        "as_torch_tensors": noted("as_torch_tensors", (1, [])),
        "check_cann_compat": lambda *_: "",
        "CheckAclnnAvaliable": lambda name: False,
        "get_registered_ir_def": lambda name: ("None", [], [], []),
    }


def export(device: SimulatedDevice) -> Callable[[bytes, Mapping[str, str]], None]:
    """dynamo_export's last step, which CANN does: it serialises the graph to a file."""

    def lacking(serialized: bytes, options: Mapping[str, str]) -> None:
        folder, name = options["export_path_dir"], options["export_name"]
        device.ledger.note("ge_export", name)
        device.not_written.append(name)
        warnings.warn(
            f"simulator: {name} is not written, because CANN's GE makes it; {folder} has what TorchAir itself writes.",
            stacklevel=2,
        )

    return lacking


DEVICE = "npu:0"


@cache
def place_ge_graphs() -> None:
    """Wrap TorchAir's converter and its cache, once in a process. See Note [Placement], Note [Cached GE graphs]."""
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph  # pyright: ignore[reportMissingImports]
    from torchair.inference import _cache_compiler as caching  # pyright: ignore[reportMissingImports]
    from torchair.npu_fx_compiler import _NpuGraphConverter  # pyright: ignore[reportMissingImports]

    run = _NpuGraphConverter.run

    def run_converter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._graph, GeConcreteGraph):
            return run(self, *args, **kwargs)
        with _devices_named(self.module.graph):
            return run(self, *(on_npu(arg) for arg in args), **kwargs)

    _NpuGraphConverter.run = run_converter
    _keep_programs(GeConcreteGraph)
    _keep_cached_programs(caching)
    _ask_the_device_for_randomness()


def _ask_the_device_for_randomness() -> None:
    """A GE graph has the seed and the offset of the device's generator; `torch.npu.default_generators` has the CPU's,
    since torch's operators take no other."""
    from torchair.ge import _ge_graph  # pyright: ignore[reportMissingImports]

    begin = _ge_graph._GraphRngState.__init__

    def begun(self: Any, gen: Any = None) -> None:
        begin(self, torch.npu.random.get_default_generator(0) if gen is None else gen)  # pyright: ignore

    _ge_graph._GraphRngState.__init__ = begun


def _keep_programs(concrete: type[Any]) -> None:
    """A session knows its program: from TorchAir's graph itself, or from the text that TorchAir wrote for it."""
    from torchair import npu_fx_compiler as compiler  # pyright: ignore[reportMissingImports]

    call, write, run = concrete.__call__, concrete.codegen, compiler._compile_py_code

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.graph._executor.program is None:
            self.graph._executor.program = GeProgram.from_concrete(self)
        return call(self, *args, **kwargs)

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        code = write(self, *args, **kwargs)
        if code is not None:
            PROGRAMS[code] = GeProgram.from_concrete(self)
        return code

    def run_code(code: str) -> Any:
        _RUNNING.append(code)
        try:
            return run(code)
        finally:
            _RUNNING.pop()

    concrete.__call__, concrete.codegen, compiler._compile_py_code = called, written, run_code


def _keep_cached_programs(caching: Any) -> None:
    model = caching.CompiledModel
    save, load = model.save, model.load.__func__

    def saved(self: Any, cache_bin: str) -> None:
        save(self, cache_bin)
        code = self.compiled_fx.py_code if self.compiled_fx else None
        if code in PROGRAMS and Path(cache_bin).is_file():
            try:
                PROGRAMS[code].save(Path(cache_bin + SUFFIX), code)
            except TypeError as error:
                caching.logger.warning(f"simulator: the cache is for a device only: {error}")

    def loaded(cls: Any, cache_bin: str) -> Any:
        found = load(cls, cache_bin)
        beside = Path(cache_bin + SUFFIX)
        if beside.is_file() and (program := GeProgram.load(beside, found.compiled_fx.py_code)):
            PROGRAMS[found.compiled_fx.py_code] = program
        return found

    model.save, model.load = saved, classmethod(loaded)


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
