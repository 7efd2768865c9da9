"""Puts the wheel's own Python where a host with an NPU has it, on a simulator for torch_npu's compiled modules."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from copy import deepcopy
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from npu_simulator import compiled, ge_session, host, lacking
from npu_simulator.device import SimulatedDevice
from npu_simulator.generators import generator_class
from npu_simulator.randomness import DeviceGenerator
from npu_simulator.streams import DEVICE_TYPE
from npucompose.ops.catalogue import dtype_numbers

NPUGRAPHS = 'torch.compile(backend="npugraphs")'
ND = 2
"""ACL_FORMAT_ND: the only layout that a CPU tensor has."""


def module(name: str, made: ModuleType | None = None, **attributes: Any) -> ModuleType:
    """A new module in sys.modules, and in its parent."""
    made = ModuleType(name) if made is None else made
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package="__path__" in attributes)
    made.__dict__.update(attributes)
    sys.modules[name] = made
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, made)
    return made


def install(device: SimulatedDevice, root: Path) -> None:
    """`root` is the wheel's torch_npu folder, whose `dynamo` holds the packages torchair and npugraph_ex."""
    if "torch_npu" in sys.modules:
        raise RuntimeError("simulator: torch_npu is imported in this process already.")
    sys.path.insert(0, str(root / "dynamo"))
    module("torchair.core._torchair", **ge_session.attributes(device))
    module("torchair.core._npu_graph_executor", GetNpuStorageSizes=lambda tensor: list(tensor.shape))
    module("torchair.core._npu_utils", NpuFormatCastViaCpu=lambda tensor, *_: tensor)
    package = _torch_npu(device, root)
    npu = importlib.import_module("torch_npu.npu")
    # One device, whatever driver this host may have: torch_npu would count them with the driver's library.
    npu.__dict__.update(default_generators=(torch.default_generator,), _cached_device_count=1)
    # A device of the name `npu` for fake tensors: graphs are converted as for it (Note [Placement]). Real tensors stay
    # on the CPU, and must say that they are the device's, or TorchAir leaves out what it does for device tensors.
    _setup_privateuseone_for_python_backend("npu", backend_module=npu)
    torch.Tensor.is_npu = property(lambda tensor: True)  # pyright: ignore[reportAttributeAccessIssue]
    _accelerator(device)
    host.install(device)
    for full in lacking.LACKING[lacking.TENSORS]:
        setattr(npu, full.rpartition(".")[2], lacking.refused(full))  # types that torch_npu's C++ puts there
    _name_saved_tensors(importlib.import_module("torch_npu.npu.graphs"))
    _refer_to_tensors()
    npu.init()
    _generator(device, npu)
    for name in ("torch_npu.npu.amp", "torch_npu.npu.aclnn"):
        importlib.import_module(name)  # as torch_npu does before anybody asks: Dynamo's rules name torch.npu.amp
    importlib.import_module("torch_npu.npu._format")._apply_npu_format_patch()
    package.__dict__["__version__"] = importlib.import_module("torch_npu.version").__version__
    device.runtime.torch_npu = package.__dict__["__version__"]
    _dynamo()


def _torch_npu(device: SimulatedDevice, root: Path) -> ModuleType:
    """The package itself, whose `__init__` would load CANN. Every module below it is the wheel's, but for two."""
    package = module(
        "torch_npu",
        __path__=[str(root)],
        __file__=str(root / "__init__.py"),
        __getattr__=_exported,
        get_npu_format=lambda self: ND,
        get_storage_size=lambda self: self.numel(),
    )
    numbers = dtype_numbers(root)
    package.__dict__.update(numbers)
    module("torch_npu._C", compiled.make(device), __path__=[])
    module("torch_npu._C._cd", DType=type("DType", (), dict(numbers)), __getattr__=_no_casts)
    module("torch_npu.distributed", _is_support_hccl_comm_name=lambda: True, __getattr__=_no_distributed)
    sys.meta_path.insert(0, Absent())
    return package


def _exported(name: str) -> Any:
    """torch_npu.npu_xxx is torch.ops.npu.npu_xxx, and a few names are functions of modules (_init/core/_exports.py)."""
    full = f"torch_npu.{name}"
    if lacking.reason(full):
        raise AttributeError(lacking.sentence(full))
    if not name.startswith("__"):
        if hasattr(torch.ops.npu, name):
            return getattr(torch.ops.npu, name)
        if importlib.util.find_spec("torch_npu._init.core._exports"):
            exports: Any = importlib.import_module("torch_npu._init.core._exports")
            if name in exports._LAZY_PYTHON_SYMBOLS:
                home, inner = exports._LAZY_PYTHON_SYMBOLS[name]
                return getattr(importlib.import_module(home), inner)
    raise AttributeError(f"target=npu_offline: torch_npu has no {name!r}.")


def _no_distributed(name: str) -> Any:
    raise AttributeError(lacking.sentence("torch_npu.distributed"))


def _no_casts(name: str) -> Any:
    full = f"torch_npu._C._cd.{name}"
    if lacking.reason(full):
        return lacking.refused(full)
    raise AttributeError(f"target=npu_offline: torch_npu._C._cd has no {name!r}.")


class Absent(MetaPathFinder):
    """Importing a module of torch_npu._C that is not here says why, instead of that there is none of the name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        parent, _, name = fullname.rpartition(".")
        if parent == "torch_npu._C" and lacking.reason(name):
            raise ModuleNotFoundError(lacking.sentence(name), name=fullname)


def _name_saved_tensors(graphs: ModuleType) -> None:
    """save_npugraph_tensor names a file by its tensor's device: `mm_device_0_0.pt`, and a CPU's tensor without one."""
    build: Any = graphs.__dict__["_build_save_npugraph_tensor_path"]

    def built(save_path: str | None = None, device_index: int | None = None, overwrite: bool = False) -> str:
        return build(save_path, 0, overwrite)

    graphs.__dict__["_build_save_npugraph_tensor_path"] = built


def _refer_to_tensors() -> None:
    """NPUGraph.update calls an operator with the tensors of its capture: of a CPU's tensors torch_npu keeps copies."""

    def kept(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) else deepcopy(value)

    for name in ("graphs", "_npugraph_handlers.npugraph_handler"):  # the second since 2.13
        holder = sys.modules.get(f"torch_npu.npu.{name}")
        if holder is not None and "deepcopy" in vars(holder):
            vars(holder)["deepcopy"] = kept


def _generator(device: SimulatedDevice, npu: ModuleType) -> None:
    """torch.npu.manual_seed, set_rng_state and their like ask the device's rules first."""
    generator = DeviceGenerator(device)
    torch.Generator = generator_class(device)  # pyright: ignore[reportAttributeAccessIssue]
    random = importlib.import_module("torch_npu.npu.random")
    sys.modules["torch.npu.random"] = random  # or an import by that name makes a second module, which asks no rule
    for home in (npu, random):
        if "get_default_generator" in home.__dict__:
            home.__dict__["get_default_generator"] = lambda device_index: generator


def _accelerator(device: SimulatedDevice) -> None:
    """torch.accelerator asks torch's C++ for the device's stream and generator, where a backend in Python cannot
    answer."""

    def current(index: int) -> torch.Stream:
        return torch.Stream(stream_id=device.current, device_index=0, device_type=DEVICE_TYPE)  # pyright: ignore

    accelerator: Any = torch._C
    accelerator._accelerator_getStream = current
    accelerator._accelerator_setStream = lambda stream: device.set_stream(stream.stream_id)
    accelerator._accelerator_synchronizeDevice = lambda index: device.synchronize()
    if hasattr(accelerator, "_accelerator_getDefaultGenerator"):  # since torch 2.14
        accelerator._accelerator_getDefaultGenerator = lambda index: torch.default_generator


def _nothing() -> None:
    """What a wheel has not yet."""


def _dynamo() -> None:
    """What torch_npu does to Dynamo when it is first used."""
    from torch._dynamo import trace_rules

    trace_rules.add(__name__.rpartition(".")[0])  # on a device this is C++, into which Dynamo does not look
    utils = importlib.import_module("torch_npu.utils._dynamo")
    utils.add_dynamo_methods_init()
    importlib.import_module("torch_npu.dynamo.trace_rule")._patch_npu_trace_rules()
    getattr(utils, "register_npu_graphsafe_rng", _nothing)()  # since torch_npu 2.13
    _backends(importlib.import_module("torch_npu.dynamo"))


def _backends(dynamo: ModuleType) -> None:
    """torch.compile(backend="npu" | "npugraph_ex"); npugraphs is known and refused, for it would only fall back."""
    from torch._dynamo import register_backend

    dynamo._register_backends()
    register_backend(lacking.refused(NPUGRAPHS), name="npugraphs")
