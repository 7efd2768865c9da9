"""Programs whose host reads a value, or waits, where a capture has nothing yet."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.capture.programs import fault, legal

READ = "TN aten/common/LocalScalarDenseNpu.cpp:26; vllm-project/vllm-ascend #16736: .item() under capture, 107027"
STREAM = "RT api/impl/api_error.cc:1446"
DEVICE = "RT core/src/context/context.cc:1232; TN core/npu/NPUStream.cpp:735"
EVENT = "RT api/impl/api_error.cc:1780"
ASKED = "RT api/impl/api_error.cc:1814; TN core/npu/NPUEvent.cpp:82"
SHAPE = "torch: sizes are numbers of the host"
Tensor = torch.Tensor


# The host reads a value.


@fault("host_read", 107027, READ)
def item(x: Tensor) -> Any:
    return x / x.max().item()  # here


@fault("host_read", 107027, READ)
def branch_on_a_sum(x: Tensor) -> Any:
    if x.sum() > 0:  # here
        return x + 1
    return x - 1


@fault("host_read", 107027, READ)
def slice_by_a_length(x: Tensor) -> Any:
    length = (x > 0).sum()
    return x.view(-1)[:length]  # here


@fault("host_read", 107027, READ)
def assert_on_data(x: Tensor) -> Any:
    assert torch.isfinite(x).all()  # here
    return x * 2


@fault("host_read", 107027, "OP ops/opapi/EqualKernelNpuOpApi.cpp:30")
def equal(x: Tensor) -> Any:
    return x if torch.equal(x, x + 1) else x * 2  # here


@fault("host_read", 107027, READ)
def allclose(x: Tensor) -> Any:
    return x if torch.allclose(x, x + 1) else x * 2  # here


@fault("host_read", 107027, "TN aten/common/TensorCompare.cpp:11")
def is_nonzero(x: Tensor) -> Any:
    return x + 1 if torch.is_nonzero(x.sum()) else x  # here


@fault("host_read", 107027, READ)
def formats_a_sum(x: Tensor) -> Any:
    y = x * 2
    _ = f"the sum is {y.sum()}"  # here
    return y


@fault("host_read", 107027, READ)
def counts_in_a_loop(x: Tensor) -> Any:
    for _ in range(int((x > 9).sum())):  # here
        x = x + 1
    return x


@fault("host_read", 107027, READ)
def allocates_by_a_maximum(x: Tensor) -> Any:
    return x.sum() + torch.zeros(int(x.max()), device=x.device)  # here


@fault("host_read", 107027, READ)
def a_root_of_the_host(x: Tensor) -> Any:
    return x / math.sqrt(x.abs().sum())  # here


@fault("host_read", 107027, READ)
def the_smaller_of_two_numbers(x: Tensor) -> Any:
    return x * min(x.max(), 3.0)  # here


@fault("host_read", 107027, READ)
def element_of_a_python_list(x: Tensor) -> Any:
    return x * [1.0, 2.0, 3.0, 4.0][x.argmax() % 4]  # here


@torch.library.custom_op("capture_programs::clipped", mutates_args=())
def _clipped(x: Tensor) -> Tensor:
    limit = float(x.max())  # here
    return x.clamp(max=limit)


@fault("host_read", 107027, READ)
def reads_in_a_custom_operator(x: Tensor) -> Any:
    return _clipped(x)


@fault("host_read", 107027, "torch_npu 2.13.0 npu/utils.py: npu_check_overflow reads the sum")
def checks_for_overflow(x: Tensor) -> Any:
    torch.npu.npu_check_overflow(x)  # here
    return x * 2


@legal("host_read", SHAPE)
def number_of_a_shape(x: Tensor) -> Any:
    return x * x.shape[0] if x.numel() > 4 else x


@legal("host_read", "torch: a tensor of the host is read there")
def item_of_a_host_tensor(x: Tensor) -> Any:
    return x * torch.arange(4).sum().item()


@legal("host_read", "RT dev_guide/04-01: a kernel is a task")
def where_of_three_arguments(x: Tensor) -> Any:
    return torch.where(x.sum() > 0, x + 1, x - 1)


@legal("host_read", SHAPE)
def assert_on_a_shape(x: Tensor) -> Any:
    assert x.shape[-1] == 4
    assert x.is_contiguous()
    return x * 2


@legal("host_read", SHAPE)
def formats_a_shape(x: Tensor) -> Any:
    _ = f"{tuple(x.shape)} {x.dtype} {x.device}"
    return x * 2


@legal("host_read", "RT dev_guide/04-01, limit 1: before the capture all is run at once",
       before=lambda: float(torch.rand(4).max().item()))  # fmt: skip
def read_before_the_capture(x: Tensor, scale: float) -> Any:
    return x * scale


@legal("host_read", "torch: a kernel compares")
def compares_on_the_device(x: Tensor) -> Any:
    return torch.isclose(x, x + 1) | (x == x.max())


@torch.library.custom_op("capture_programs::doubled", mutates_args=())
def _doubled(x: Tensor) -> Tensor:
    return x * 2


@legal("host_read", "torch.library: its Python launches kernels only")
def custom_operator(x: Tensor) -> Any:
    return _doubled(x) + 1


@legal("host_read", "torch: a kernel takes the smaller")
def the_smaller_on_the_device(x: Tensor) -> Any:
    return x * torch.clamp(x.max(), max=3.0) / x.abs().sum().sqrt()


# The host waits for a stream, the device or an event.


@fault("synchronise", 107027, DEVICE)
def synchronize(x: Tensor) -> Any:
    y = x * 2
    torch.npu.synchronize()  # here
    return y


@fault("synchronise", 107027, DEVICE)
def synchronize_as_on_a_gpu(x: Tensor) -> Any:
    y = x * 2
    torch.cuda.synchronize()  # here
    return y


@fault("synchronise", 107027, DEVICE)
def synchronize_an_accelerator(x: Tensor) -> Any:
    y = x * 2
    torch.accelerator.synchronize()  # here
    return y


@fault("synchronise", 107027, STREAM)
def synchronize_a_stream(x: Tensor) -> Any:
    y = x * 2
    torch.npu.current_stream().synchronize()  # here
    return y


@fault("synchronise", 107027, "RT api/impl/api_error.cc:1484; TN core/npu/NPUStream.cpp:440")
def query_a_stream(x: Tensor) -> Any:
    torch.npu.current_stream().query()  # here
    return x * 2


@fault("synchronise", 107027, "TN core/npu/NPUCachingAllocator.cpp:1738")
def empty_cache(x: Tensor) -> Any:
    torch.npu.empty_cache()  # here
    return x * 2


@fault("synchronise", 107027, "torch_npu 2.13.0 npu/npu_config.py: set_compile_mode calls synchronize")
def set_compile_mode(x: Tensor) -> Any:
    torch.npu.set_compile_mode(jit_compile=False)  # here
    return x * 2


@fault("synchronise", 107027, "TN distributed/ProcessGroupHCCL.cpp:1025: the work of a barrier synchronises the device")
def barrier(x: Tensor) -> Any:
    torch.distributed.barrier()  # here
    return x * 2


@fault("event_wait", 107028, EVENT)
def synchronize_an_event(x: Tensor) -> Any:
    done = torch.npu.Event()
    y = x * 2
    done.record()
    done.synchronize()  # here
    return y


@fault("event_wait", 107028, ASKED)
def query_an_event(x: Tensor) -> Any:
    done = torch.npu.Event()
    done.record()
    return x * 2 if done.query() else x  # here


@fault("event_wait", 107028, "RT api/impl/api_error.cc:1780; TN core/npu/NPUEvent.cpp:159")
def elapsed_time(x: Tensor) -> Any:
    begun, done = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    begun.record()
    y = x * 2
    done.record()
    begun.elapsed_time(done)  # here
    return y


@fault("event_wait", 107028, "RT api/impl/api_error.cc:1814; TN distributed/ProcessGroupHCCL.cpp:860")
def is_completed(x: Tensor) -> Any:
    y = x * 2
    work = torch.distributed.all_reduce(y, async_op=True)
    work.is_completed()  # here
    work.wait()
    return y


def _loaded() -> Any:
    event = torch.npu.Event(enable_timing=True)
    event.record()
    return event


@legal("event_wait", "RT api/impl/api_error.cc:1814: the event of the capture alone is refused", before=_loaded)
def query_an_event_from_before(x: Tensor, loaded: Any) -> Any:
    return x * 2 if loaded.query() else x


@legal("event_wait", "RT api/impl/api_error.cc:1780: the event of the capture alone is refused", before=_loaded)
def synchronize_an_event_from_before(x: Tensor, loaded: Any) -> Any:
    loaded.synchronize()
    return x * 2


@legal("event_wait", "TN core/npu/NPUEvent.cpp:73: an event that was never recorded is done")
def query_an_event_never_recorded(x: Tensor) -> Any:
    return x * 2 if torch.npu.Event().query() else x


@legal("event_wait", "TN npu/Event.cpp:51: an event that takes time has the flag of a capture too")
def events_that_take_time(x: Tensor) -> Any:
    begun, done = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    begun.record()
    y = x * 2
    done.record()
    return y


@legal(
    "synchronise",
    "RT api/impl/api_error.cc:1446: the captured stream alone is refused",
    before=lambda: torch.npu.Stream(),
)
def synchronize_another_stream(x: Tensor, loading: Any) -> Any:
    loading.synchronize()
    return x * 2 if loading.query() else x


@legal("synchronise", "torch_npu 2.13.0 npu/memory.py: the allocator's own figures")
def asks_for_memory(x: Tensor) -> Any:
    torch.npu.reset_peak_memory_stats()
    return x * 2 if torch.npu.memory_allocated() >= 0 else x


@legal("synchronise", "torch_npu 2.13.0 npu/__init__.py: no function of these synchronises")
def asks_for_the_device(x: Tensor) -> Any:
    torch.npu.set_device(torch.npu.current_device())
    names = torch.npu.get_device_name(), torch.npu.device_count(), torch.npu.is_available()
    return x * len(names) if torch.npu.is_current_stream_capturing() else x


@legal("synchronise", "RT dev_guide/04-02: streams wait for each other")
def streams_wait_instead(x: Tensor) -> Any:
    y = x * 2
    torch.npu.current_stream().record_event()
    torch.npu.current_stream().wait_stream(torch.npu.current_stream())
    return y


@fault("unknown_call", None, "no table of torch_npu's functions has it", sure=False)
def a_function_that_no_table_has(x: Tensor) -> Any:
    torch.npu.flush_everything()  # here
    return x * 2


@fault(
    "unknown_call",
    None,
    "RT dev_guide/04-01, limit 4: settings may not be kept",
    sure=False,
)
def sets_a_dump(x: Tensor) -> Any:
    torch.npu.set_dump("dump.json")  # here
    return x * 2
