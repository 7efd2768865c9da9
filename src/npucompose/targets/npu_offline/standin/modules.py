"""Puts the stand-in where TorchAir looks for torch_npu's compiled modules."""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from npucompose.targets.npu_offline.standin import ge_session, graphs, streams

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.standin.device import Device

ND = 2
"""ACL_FORMAT_ND: the only layout that a CPU tensor has."""
CANN = "9.0.0"
"""The CANN version that the stand-in says it is: the one that torch_npu 2.13.0 was released for."""


def module(name: str, **attributes: Any) -> ModuleType:
    """A new module in sys.modules, and in its parent."""
    made = ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(attributes)
    sys.modules[name] = made
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, made)
    return made


def install(device: Device, root: Path) -> None:
    """`root` is the wheel's torch_npu folder, whose `dynamo` holds the packages torchair and npugraph_ex."""
    if "torch_npu" in sys.modules:
        raise RuntimeError("stand-in: torch_npu is imported in this process already.")
    sys.path.insert(0, str(root / "dynamo"))
    graphs.NPUGraph.device = graphs.graph.device = device
    module("torchair.core._torchair", **ge_session.attributes(device))
    module("torchair.core._npu_graph_executor", GetNpuStorageSizes=lambda tensor: list(tensor.shape))
    module("torchair.core._npu_utils", NpuFormatCastViaCpu=lambda tensor, *_: tensor)
    _torch_npu(root)
    npu = _npu(device)
    _small_modules(device)
    # A device of the name `npu` for fake tensors: graphs are converted as for it (placement.py). Real tensors stay on
    # the CPU, and must say that they are the device's, or TorchAir leaves out what it does for device tensors.
    _setup_privateuseone_for_python_backend("npu", backend_module=npu)
    torch.npu = sys.modules["torch.npu"] = npu  # pyright: ignore[reportAttributeAccessIssue]
    torch.Tensor.is_npu = property(lambda tensor: True)  # pyright: ignore[reportAttributeAccessIssue]


def _torch_npu(root: Path) -> None:
    def operator(name: str) -> Any:
        """torch_npu.npu_xxx is torch.ops.npu.npu_xxx."""
        if name.startswith("npu_") and hasattr(torch.ops.npu, name):
            return getattr(torch.ops.npu, name)
        raise AttributeError(f"stand-in: torch_npu has no {name!r}")

    module(
        "torch_npu",
        __path__=[],
        __file__=str(root / "__init__.py"),
        __getattr__=operator,
        get_npu_format=lambda tensor: ND,
        get_storage_size=lambda tensor: tensor.numel(),
    )
    module(
        "torch_npu._C",
        _npu_getCheckpointState=lambda device, pool: (device, pool),
        _npu_setCheckpointPoolState=_nothing,
        _construct_storage_from_data_pointer=_storage_at,
        _construct_NPU_Tensor_From_Storage_And_Metadata=_tensor_over,
        _aclop_start_dump=_nothing,
        _aclop_stop_dump=_nothing,
    )


def _npu(device: Device) -> ModuleType:
    """torch_npu.npu, which is torch.npu as well."""
    npu = module(
        "torch_npu.npu",
        __path__=[],
        NPUGraph=graphs.NPUGraph,
        graph=graphs.graph,
        graph_pool_handle=device.new_pool,
        graph_task_group_begin=graphs.task_group_begin,
        graph_task_group_end=graphs.task_group_end,
        graph_task_update_begin=graphs.task_update_begin,
        graph_task_update_end=graphs.task_update_end,
        Stream=streams.Stream,
        Event=streams.Event,
        ExternalEvent=streams.ExternalEvent,
        stream=device.stream,
        set_stream=device.set_stream,
        default_stream=lambda index=None: device.default_stream,
        synchronize=lambda index=None: device.synchronize(),
        fake_record_stream=_nothing,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda index=0: device.soc.name,
        get_device_properties=lambda device_name=None: _properties(device),
        get_device_limit=lambda index=0: device.cores,
        manual_seed=_nothing,
        manual_seed_all=_nothing,
        default_generators=[torch.default_generator],
        empty_cache=_nothing,
        memory_snapshot=list,
        matmul=SimpleNamespace(allow_hf32=False),
        conv=SimpleNamespace(allow_hf32=True),
        _get_deterministic_level=lambda: 0,
        set_deterministic_level=_nothing,
    )
    # TorchAir's code generator knows these three by "<module>_<name>" and by "function <name>": part of the contract.
    named: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("torch_npu.npu.utils", "current_stream", lambda index=None: device.current_stream()),
        ("torch_npu.npu.npu_config", "get_stream_limit", _stream_limit),
        ("torch_npu.npu.npu_config", "set_stream_limit", _set_stream_limit(device)),
    )
    for home, name, function in named:
        function.__module__, function.__name__, function.__qualname__ = home, name, name
        setattr(npu, name, function)
    return npu


def _small_modules(device: Device) -> None:
    npu = sys.modules["torch_npu.npu"]
    module(
        "torch_npu.npu.utils",
        _is_gte_cann_version=_cann_is_at_least,
        get_cann_version=lambda module="CANN": CANN,
        current_stream=npu.current_stream,
    )
    limits = {name: getattr(npu, name) for name in ("get_stream_limit", "set_stream_limit")}
    module("torch_npu.npu.npu_config", **limits)
    module("torch_npu.npu.streams", Stream=streams.Stream, Event=streams.Event, ExternalStream=streams.Stream)
    module("torch_npu.npu._backends", get_soc_version=lambda: device.soc.number)
    module("torch_npu.distributed", _is_support_hccl_comm_name=lambda: True)


def _nothing(*_: Any, **__: Any) -> None:
    """Memory pools, dumps and seeds of a device that has none."""


def _properties(device: Device) -> SimpleNamespace:
    """By the names of torch_npu's own object; memory is 0 where no document tells."""
    soc = device.soc
    return SimpleNamespace(name=soc.name, total_memory=soc.memory or 0, L2_cache_size=soc.l2, **device.cores)


def _stream_limit(stream: streams.Stream) -> dict[str, int]:
    return dict(stream.limit)


def _set_stream_limit(device: Device) -> Callable[..., None]:
    def set_limit(stream: Any, cube: int, vector: int) -> None:
        if isinstance(stream, streams.Stream):
            device.limit(stream, cube, vector)

    return set_limit


def _cann_is_at_least(version: str, module: str = "CANN") -> bool:
    """`_cann_is_at_least("8.2.RC1")`: the first two numbers count."""

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:2])

    return numbers(CANN) >= numbers(version)


def _storage_at(address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
    """The memory of a recording by its address; other memory (an input's) is only borrowed, as torch_npu does."""
    with _disable_current_modes():
        owned = graphs.owner_of(address)
        if owned is not None:
            return owned
        if nbytes == 0:
            return torch.UntypedStorage(0)
        borrowed = (ctypes.c_char * nbytes).from_address(address)
        return torch.frombuffer(borrowed, dtype=torch.uint8).untyped_storage()


def _tensor_over(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    with _disable_current_modes():
        empty = torch.empty(0, dtype=metadata["dtype"])
        return empty.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
