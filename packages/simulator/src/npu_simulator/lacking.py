"""What a model or TorchAir can reach of torch_npu and the simulator has not: one list, and the sentence a user gets.

A name of torch_npu._C without a dot is one that the wheel's Python asks the compiled module for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from npucompose.errors import CompileError

TENSORS = "tensors of this process lie on the CPU and have its types"

LACKING: Mapping[str, tuple[str, ...]] = {
    "there is no device memory to count, share, move or set aside": (
        "_MemPool", "_add_cached_tensor", "_free_And_Remove_DeleterFn", "_has_Standard_Deleter",
        "_npu_NPUAllocator", "_npu_NPUAllocator_AllocatorState", "_npu_beginAllocateCurrentThreadToPool",
        "_npu_changeCurrentAllocator", "_npu_checkPoolLiveAllocations", "_npu_customAllocator",
        "_npu_emptyVirtAddrCache",
        "_npu_endAllocateToPool", "_npu_getAllocator", "_npu_getAllocatorBackend", "_npu_getDeviceMemories",
        "_npu_getMemoryFraction", "_npu_hostMemoryStats", "_npu_lock_mutex", "_npu_memoryStats",
        "_npu_npuCachingAllocator_raw_alloc", "_npu_npuCachingAllocator_raw_delete",
        "_npu_npuCachingAllocator_set_allocator_settings", "_npu_record_memory_history", "_npu_releasePool",
        "_npu_resetAccumulatedHostMemoryStats", "_npu_resetAccumulatedMemoryStats", "_npu_resetPeakHostMemoryStats",
        "_npu_resetPeakMemoryStats", "_npu_saveDevMemUsageInfo", "_npu_setMemoryFraction", "_npu_unlock_mutex",
        "_remove_cached_tensor", "_set_cached_tensors_enabled", "_set_storage_access_error_msg",
        "_set_storage_data_ptr_access_error_msg", "_tensors_data_ptrs_at_indices_equal",
        'torch.compile(backend="npugraphs")',
    ),
    "there is no device that could fail, be watched, stopped or tested": (
        "_activate_npu_trace", "_check_npu_data_ptr", "_get_npu_data_unsafe_flag", "_mark_all_npu_data_ptr_unsafe",
        "_npu_check_uce_in_memory", "_npu_getDeviceUtilizationRate", "_npu_get_uce_addr", "_npu_restart_device",
        "_npu_set_op_timeout_ms", "_npu_stopDevice", "_npu_stress_detect", "_recovery_all_npu_stream",
        "_set_npu_data_unsafe_flag", "_update_npu_data_ptr",
    ),
    "there is no device whose time could be read": (
        "_npu_sleep", "torch.npu.Event.elapsed_time", "torch.npu.Event.recorded_time",
    ),
    "there is no CANN that would take it": (
        "_mstx", "_npu_finalizeDump", "_npu_initDump", "_npu_setDump", "_profiler",
        "torch_npu._C._cd.cast_from_fp8", "torch_npu._C._cd.cast_to_fp8", "torch_npu._C._cd.cast_to_fp8_noalloc",
        "torch_npu._C._npurt.npuHostRegister", "torch_npu._C._npurt.npuHostUnregister",
        "torch.npu.NPUGraph.begin_capture_to_if_node",
        "torch.npu.NPUGraph.end_capture_to_conditional_node",
    ),
    "there is no second process with a device to share it with": (
        "_distributed_c10d", "_npu_canDeviceAccessPeer", "_npu_ipc_collect", "torch.npu.Event.from_ipc_handle",
        "torch.npu.Event.ipc_handle", "torch_npu.distributed",
    ),
    TENSORS: (
        "torch.npu.BFloat16Tensor", "torch.npu.BoolTensor", "torch.npu.ByteTensor", "torch.npu.CharTensor",
        "torch.npu.DoubleTensor", "torch.npu.FloatTensor", "torch.npu.HalfTensor", "torch.npu.IntTensor",
        "torch.npu.LongTensor", "torch.npu.ShortTensor",
    ),
    "kernels are neither built nor chosen without CANN": (
        "ShapePolicy", "ShapeType", "_NPUShapeHandling", "_aclnn_reselect_static_kernel",
        "_aclnn_reselect_static_kernel_with_path", "_npu_clear_fft_plan_cache", "_npu_get_fft_plan_cache_max_size",
        "_npu_get_fft_plan_cache_size", "_npu_set_fft_plan_cache_max_size",
    ),
}  # fmt: skip
CLASSES = frozenset({"_MemPool", "_NPUShapeHandling", "_npu_NPUAllocator"})
"""Of these the wheel makes subclasses when it is imported: what is refused is an object of them."""
EARLIER = {"_MemPoolContext": "_MemPool"}
"""{what only the Python of wheels before 2.13 asks for: the class it went with}."""
SUBMODULES = frozenset({"_distributed_c10d", "_mstx", "_profiler"})
"""Modules inside torch_npu._C: absent, so that asking for one is refused."""


def refused(name: str) -> Any:
    """A function that says so when it is called; for a class that says so when an object is made."""

    def call(*_: Any, **__: Any) -> Any:
        refuse(name)

    if name not in CLASSES | EARLIER.keys() and not name.endswith("Tensor"):
        return call
    home, _, last = name.rpartition(".")
    return type(last, (), {"__init__": call, "__module__": home or "torch_npu._C"})


def reason(name: str) -> str | None:
    listed = EARLIER.get(name, name)
    return next((why for why, names in LACKING.items() if listed in names), None)


def sentence(name: str) -> str:
    """What a user reads who reaches `name`."""
    full = name if "." in name else f"torch_npu._C.{name}"
    return f"target=npu_offline has no {full}: {reason(name)}. It is there on an NPU (target=npu)."


def refuse(name: str) -> NoReturn:
    raise CompileError(sentence(name))
