"""torch_npu._C without CANN: the functions that the wheel's Python calls, on the one device of this process.

Everything above it is the wheel's own: streams, events, graphs, their arguments and checks. Names and arguments are
those of the calls in the wheel's Python; what is asked for there and not here is in `lacking`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from attrs import frozen
from torch.utils._python_dispatch import _disable_current_modes

from npu_simulator import classes, lacking, tasks
from npu_simulator.device import CUBE, TASK_QUEUE, VECTOR, SimulatedDevice
from npu_simulator.graph import owner_of
from npu_simulator.refusals import library_error
from npu_simulator.streams import DEVICE_TYPE
from npucompose.vendor.versions import CANN, cann_is_at_least

KINDS = (CUBE, VECTOR)
"""What a limit counts, by the number that stands for it in a call."""


@frozen(kw_only=True)
class DeviceProperties:
    """torch_npu._C._NPUDeviceProperties, the part that a table can know."""

    name: str
    total_memory: int
    """0 where no document says."""
    L2_cache_size: int
    cube_core_num: int
    vector_core_num: int


def make(device: SimulatedDevice) -> ModuleType:
    """The module; asking it for what is `lacking` says so."""
    classes.attach(device)
    made = ModuleType("torch_npu._C")
    made.__dict__.update(functions(device))
    for names in lacking.LACKING.values():
        for name in names:
            if "." not in name and name not in lacking.SUBMODULES:
                setattr(made, name, lacking.refused(name))
    made.__dict__["_npurt"] = _runtime()
    made.__dict__["__getattr__"] = _absent
    return made


def functions(device: SimulatedDevice) -> dict[str, Any]:
    return {
        **_devices(device),
        **_streams(device),
        **_limits(device),
        **_graphs(device),
        **_options(device),
        **_memory(device),
    }


def _runtime() -> ModuleType:
    """torch_npu._C._npurt: streams as another library makes them; an address is one of this process's memory."""
    made = ModuleType("torch_npu._C._npurt")
    streams: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def create(pointer: int) -> int:
        memory = ctypes.create_string_buffer(8)
        streams[ctypes.addressof(memory)] = memory
        ctypes.c_void_p.from_address(pointer).value = ctypes.addressof(memory)
        return 0

    def destroy(address: int) -> int:
        del streams[address]
        return 0

    made.__dict__.update(npuStreamCreate=create, npuStreamDestroy=destroy)
    for name in ("npuHostRegister", "npuHostUnregister"):
        setattr(made, name, lacking.refused(f"torch_npu._C._npurt.{name}"))
    return made


def _absent(name: str) -> Any:
    if name in lacking.SUBMODULES:
        raise AttributeError(lacking.sentence(name))
    if name in lacking.EARLIER:
        return lacking.refused(name)
    raise AttributeError(f"target=npu_offline: torch_npu._C has no {name!r}.")


def _nothing(*_: Any, **__: Any) -> None:
    """Caches, checkpoints and dumps of a device that has none."""


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _devices(device: SimulatedDevice) -> dict[str, Any]:
    """There is one, it is there from the start, and it is number 0."""

    def set_device(index: int) -> None:
        if index:
            raise library_error("set_device" if index > 0 else "negative_device")

    soc = device.soc
    properties = DeviceProperties(
        name=soc.name, total_memory=soc.memory or 0, L2_cache_size=soc.l2, cube_core_num=soc.cube,
        vector_core_num=soc.vector,
    )  # fmt: skip
    return {
        "_NPUDeviceProperties": DeviceProperties,
        "_npu_init": _nothing,
        "_npu_setDevice": set_device,
        "_npu_set_run_yet_variable_to_false": _nothing,
        "_npu_getDevice": _answer(0),
        "_npu_getLocalDevice": _answer(0),
        "_npu_getDeviceWithoutSet": _answer(0),
        "_npu_maybeExchangeDevice": _answer(0),
        "_npu_getDeviceCount": _answer(1),
        "_npu_getDeviceName": _answer(soc.name),
        "_npu_getDeviceProperties": _answer(properties),
        "_npu_get_soc_version": _answer(soc.number),
        "_npu_is_bf16_supported": _answer(True),
        "_npu_is_support_inf_nan": _answer(True),
        "_get_cann_version": _answer(CANN),
        "_is_gte_cann_version": cann_is_at_least,
    }


def _streams(device: SimulatedDevice) -> dict[str, Any]:
    def of_the_device(index: int) -> None:
        if not -1 <= index <= 0:
            raise library_error("device_without_streams", index=index, count=1)

    def current(device_index: int = 0) -> tuple[int, int, int]:
        of_the_device(device_index)
        return (device.current, 0, DEVICE_TYPE)

    def default(device_index: int = 0) -> tuple[int, int, int]:
        of_the_device(device_index)
        return (0, 0, DEVICE_TYPE)

    def address(device_index: int = 0) -> int:
        of_the_device(device_index)
        return device.pools.address(device.current)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        device.pools.check(stream_id, device_index, device_type)
        device.set_stream(stream_id)

    def erase(tensor: torch.Tensor, stream_id: int, device_index: int, device_type: int) -> None:
        device.ledger.note("erase_stream", f"{list(tensor.shape)} of stream {stream_id}")

    return {
        "_NPUStreamBase": classes.StreamBase,
        "_NPUEventBase": classes.EventBase,
        "_npu_getCurrentStream": current,
        "_npu_getDefaultStream": default,
        "_npu_getCurrentRawStream": address,
        "_npu_getCurrentRawStreamNoWait": address,
        "_npu_setStream": set_stream,
        "_npu_synchronize": device.synchronize,
        "_npu_eraseStream": erase,
    }


def _limits(device: SimulatedDevice) -> dict[str, Any]:
    def set_limit(*, stream_id: int, device_index: int, device_type: int, type: int, value: int) -> None:
        device.limit(stream_id, KINDS[type], value)

    def get_limit(*, stream_id: int, device_index: int, device_type: int, type: int) -> int:
        return device.limits(stream_id)[KINDS[type]]

    def reset_limit(*, stream_id: int, device_index: int, device_type: int) -> None:
        device.reset_limit(stream_id)

    def set_device_limit(device_index: int, kind: int, value: int) -> None:
        device.cores[KINDS[kind]] = value

    return {
        "_npu_set_stream_res_limit": set_limit,
        "_npu_get_stream_res_limit": get_limit,
        "_npu_reset_stream_res_limit": reset_limit,
        "_npu_set_device_res_limit": set_device_limit,
        "_npu_get_device_res_limit": lambda device_index, kind: device.cores[KINDS[kind]],
    }


def _graphs(device: SimulatedDevice) -> dict[str, Any]:
    groups = tasks.TaskGroups(device)

    def scope(what: str) -> Callable[[str | None], None]:
        return lambda name: device.note_capture(f"super kernel scope {what} {name or ''}".rstrip())

    def host_call(stream: Any, function: Callable[[Any], Any], data: Any) -> None:
        device.call_host(stream.stream_id, function, data)

    def unsubscribe(stream: Any) -> None:
        device.synchronize("_unsubscribe_report", stream.stream_id)

    return {
        "_NPUGraph": classes.GraphBase,
        "_graph_pool_handle": device.new_pool,
        "_npu_isCurrentStreamCapturing": lambda: device.capturing is not None,
        "_launch_host_func": host_call,
        "_launch_host_func_pending": host_call,
        "_subscribe_report": lambda stream: device.ledger.note("subscribe_report", f"stream {stream.stream_id}"),
        "_unsubscribe_report": unsubscribe,
        "_graph_task_group_begin": groups.begin,
        "_graph_task_group_end": groups.end,
        "_graph_task_update_begin": groups.update_begin,
        "_graph_task_update_end": groups.update_end,
        "_NPUTaskGroupHandle": tasks.TaskGroup,
        "_npu_fused_infer_attention_score_out_graph": groups.update_attention,
        "_super_kernel_scope_begin": scope("begin"),
        "_super_kernel_scope_end": scope("end"),
        "_weak_ref_tensor": torch.Tensor.detach,
    }


def _options(device: SimulatedDevice) -> dict[str, Any]:
    def set_option(option: Mapping[str, str]) -> None:
        device.options.update(option)

    def get_option(name: str) -> bytes | None:
        return device.options[name].encode() if name in device.options else None

    def set_number(name: str) -> Callable[[int], None]:
        return lambda number: device.options.update({name: str(number)})

    def number(name: str, default: int) -> Callable[[], int]:
        return lambda: int(device.options.get(name, default))

    level, debug = "DETERMINISTIC_LEVEL", "SYNC_DEBUG_MODE"
    return {
        "_npu_setOption": set_option,
        "_npu_getOption": get_option,
        "_npu_is_jit_compile_false": lambda: device.options.get("jitCompile", "disable") == "disable",
        "_npu_set_deterministic_level": set_number(level),
        "_npu_get_deterministic_level": number(level, 0),
        "_npu_set_task_queue_enable": set_number(TASK_QUEUE),
        "_npu_get_task_queue_enable": lambda: device.task_queue,
        "_npu_set_sync_debug_mode": set_number(debug),
        "_npu_get_sync_debug_mode": number(debug, 0),
        "is_autocast_enabled": lambda: torch.is_autocast_enabled("npu"),
        "set_autocast_enabled": lambda enabled: torch.set_autocast_enabled("npu", enabled),
        "get_autocast_dtype": lambda: torch.get_autocast_dtype("npu"),
        "set_autocast_dtype": lambda dtype: torch.set_autocast_dtype("npu", dtype),
    }


def _memory(device: SimulatedDevice) -> dict[str, Any]:
    def storage_at(address: int, _: Any, nbytes: int) -> torch.UntypedStorage:
        """The memory of a recording by its address; other memory (an input's) is only borrowed, as torch_npu does."""
        with _disable_current_modes():
            owned = owner_of(device, address)
            if owned is not None:
                return owned
            if nbytes == 0:
                return torch.UntypedStorage(0)
            borrowed = (ctypes.c_char * nbytes).from_address(address)
            return torch.frombuffer(borrowed, dtype=torch.uint8).untyped_storage()

    return {
        "_npu_emptyCache": lambda: device.synchronize("empty_cache()", settles=False),
        "_npu_hostEmptyCache": _nothing,
        "_npu_isHistoryEnabled": _answer(False),
        "_npu_memorySnapshot": lambda pool=None: {"segments": []},
        "_npu_getCheckpointState": lambda device_index, pool: (device_index, pool),
        "_npu_setCheckpointPoolState": _nothing,
        "_construct_storage_from_data_pointer": storage_at,
        "_construct_NPU_Tensor_From_Storage_And_Metadata": tensor_over,
        "_aclop_start_dump": _nothing,
        "_aclop_stop_dump": _nothing,
    }


def tensor_over(metadata: Mapping[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    with _disable_current_modes():
        empty = torch.empty(0, dtype=metadata["dtype"])
        return empty.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])
