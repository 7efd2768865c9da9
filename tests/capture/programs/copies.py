"""Programs that copy between host and device, or give a kernel what lies on the host, or only seem to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.capture.programs import fault, legal

BLOCKING = "TN aten/ops/op_api/CopyKernelOpApi.cpp:81: the stream is synchronised first; RT api/impl/api_error.cc:1446"
PAGEABLE = "RT api/impl/api_error.cc:2258: 107000 in every mode"
OUTSIDE = "RT api/impl/api_impl.cc:2757, feature/aclgraph/context_aclgraph.cc:230"
PLACE = "torch: all tensors of a kernel lie on one device"
PINNED = "RT dev_guide/04-01, limit 5: page-locked memory is copied in a capture"
Tensor = torch.Tensor


def _host() -> Tensor:
    return torch.ones(4, 4)


def _pinned() -> Tensor:
    return torch.ones(4, 4).pin_memory()


def _device() -> Tensor:
    return torch.ones(4, 4, device="npu")


@fault("sync_copy", 107027, f"VA #6002; {BLOCKING}")
def cpu(x: Tensor) -> Any:
    lengths = (x > 0).sum(1).cpu()  # here
    return x * 2 + lengths.numel()


@fault("sync_copy", 107027, BLOCKING)
def to_cpu(x: Tensor) -> Any:
    return x * x.argmax(1).to("cpu").numel()  # here


@fault("sync_copy", 107027, BLOCKING)
def numpy(x: Tensor) -> Any:
    return x * float(x.cpu().numpy().mean())  # here


@fault("sync_copy", 107027, BLOCKING, before=lambda: torch.tensor([1, 3], device="npu"))
def splits_by_lengths_of_the_device(x: Tensor, lengths: Tensor) -> Any:
    first, last = x.split(lengths.tolist())  # here
    return torch.cat([last, first])


@fault("sync_copy", 107027, f"VA #8992; {BLOCKING}")
def tensor_of_numbers(x: Tensor) -> Any:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)  # here


@fault("sync_copy", 107027, BLOCKING)
def as_tensor(x: Tensor) -> Any:
    return x * torch.as_tensor([2.0] * 4, device="npu")  # here


@fault("sync_copy", 107027, BLOCKING)
def new_tensor(x: Tensor) -> Any:
    return x + x.new_tensor([1, 2, 3, 4])  # here


@fault("sync_copy", 107027, f"VA #10630; {BLOCKING}")
def positions_made_on_the_host(x: Tensor) -> Any:
    return x + torch.arange(4).to(x.device)  # here


@fault("sync_copy", 107027, BLOCKING)
def numbers_of_numpy(x: Tensor) -> Any:
    return x + torch.from_numpy(np.ones(4, np.float32)).to("npu")  # here


@fault("sync_copy", 107027, BLOCKING)
def moves_by_its_method(x: Tensor) -> Any:
    return x + torch.ones(4).npu()  # here


@fault("sync_copy", 107027, "OP utils/AdvancedIndex.cpp:300: an index of the host is copied, and the host waits")
def index_of_the_host(x: Tensor) -> Any:
    return x[torch.tensor([0, 2])]  # here


@fault("sync_copy", 107027, f"VA #11514; {BLOCKING}", before=lambda: (_device(), _host()))
def fills_its_input_from_the_host(x: Tensor, place: Tensor, step: Tensor) -> Any:
    place.copy_(step)  # here
    return x + place


@fault("sync_copy", 107027, BLOCKING, before=_pinned)
def page_locked_and_blocking(x: Tensor, step: Tensor) -> Any:
    return x + step.to(x.device)  # here


@fault("sync_copy", 107027, BLOCKING, before=_host)
def like_a_tensor_of_the_host(x: Tensor, other: Tensor) -> Any:
    x.to(other)  # here
    return x * 2


@fault("sync_copy", 107027, f"{BLOCKING} in every mode", mode="relaxed")
def cpu_in_relaxed_mode(x: Tensor) -> Any:
    x.cpu()  # here
    return x * 2


@fault("pageable_copy", 107000, PAGEABLE, before=_host)
def pageable_and_not_blocking(x: Tensor, step: Tensor) -> Any:
    return x + step.to(x.device, non_blocking=True)  # here


@fault("pageable_copy", 107000, PAGEABLE)
def ones_moved_without_blocking(x: Tensor) -> Any:
    return x.view(-1)[:8] + torch.ones(8).to(x.device, non_blocking=True)  # here


@fault("pageable_copy", 107000, PAGEABLE, before=_host)
def result_into_pageable_memory(x: Tensor, result: Tensor) -> Any:
    y = x * 2
    result.copy_(y, non_blocking=True)  # here
    return y


@fault("pageable_copy", 107000, PAGEABLE, before=_host, mode="relaxed")
def pageable_in_relaxed_mode(x: Tensor, step: Tensor) -> Any:
    return x + step.npu(non_blocking=True)  # here


@fault("outside_copy", 107030, OUTSIDE, before=lambda: (torch.npu.Stream(), _device()))
def copies_on_a_stream_outside(x: Tensor, loading: Any, weights: Tensor) -> Any:
    with torch.npu.stream(loading):
        weights.cpu()  # here
    return x * 2


@fault("outside_copy", 107030, OUTSIDE, before=lambda: (torch.npu.Stream(), _device()))
def reads_on_a_stream_outside(x: Tensor, loading: Any, counter: Tensor) -> Any:
    with torch.npu.stream(loading):
        limit = counter.view(-1)[0].item()  # here
    return x * limit


@fault(
    "outside_pageable", 107041, "RT api/impl/api_error.cc:2261", before=lambda: (torch.npu.Stream(), _device(), _host())
)
def loads_pageable_memory_on_a_stream_outside(x: Tensor, loading: Any, place: Tensor, step: Tensor) -> Any:
    with torch.npu.stream(loading):
        place.copy_(step, non_blocking=True)  # here
    return x * 2


@legal(
    "outside_copy", f"{OUTSIDE}: relaxed mode allows it", before=lambda: (torch.npu.Stream(), _device()), mode="relaxed"
)
def copies_on_a_stream_outside_in_relaxed_mode(x: Tensor, loading: Any, weights: Tensor) -> Any:
    with torch.npu.stream(loading):
        weights.cpu()
    return x * 2


@legal("outside_pageable", "RT api/impl/api_error.cc:2261: relaxed mode allows the copy that comes of it",
       before=lambda: (torch.npu.Stream(), _device(), _host()), mode="relaxed")  # fmt: skip
def loads_pageable_memory_outside_in_relaxed_mode(x: Tensor, loading: Any, place: Tensor, step: Tensor) -> Any:
    with torch.npu.stream(loading):
        place.copy_(step, non_blocking=True)
    return x * 2


@fault("host_tensor", None, PLACE, before=_host)
def operand_of_the_host(x: Tensor, scale: Tensor) -> Any:
    return x * scale  # here


@fault("host_tensor", None, PLACE)
def mask_made_on_the_host(x: Tensor) -> Any:
    causal = torch.ones(4, 4).tril()
    return x * causal  # here


@fault("host_tensor", None, PLACE, before=_host)
def joined_with_rows_of_the_host(x: Tensor, rows: Tensor) -> Any:
    return torch.cat([x, rows])  # here


@fault("host_tensor", None, PLACE, before=_host)
def result_of_the_host(x: Tensor, out: Tensor) -> Any:
    return torch.add(x, x, out=out)  # here


@legal("sync_copy", "OP: a kernel fills the memory of the device")
def positions_made_on_the_device(x: Tensor) -> Any:
    return x + torch.arange(4, device=x.device)


@legal("sync_copy", "OP: a number of Python is an argument of the kernel")
def constants_made_on_the_device(x: Tensor) -> Any:
    limit = torch.full((), 3.0, device=x.device)
    return torch.minimum(x, limit) + x.new_zeros(4) + x.new_full((4,), 2.0)


@legal("sync_copy", "TN aten/ops/op_api/CopyKernelOpApi.cpp:105: within the device a copy is a kernel")
def changes_the_type(x: Tensor) -> Any:
    return x.to(torch.float16).to(x.device).to(x) + x.half().float()


@legal(
    "sync_copy",
    "RT dev_guide/04-01, limit 1",
    before=lambda: _device().cpu().to("npu"),
)
def copied_before_the_capture(x: Tensor, weights: Tensor) -> Any:
    return x * weights


@legal("pageable_copy", PINNED, before=_pinned)
def page_locked_and_not_blocking(x: Tensor, step: Tensor) -> Any:
    return x + step.to(x.device, non_blocking=True)


@legal("pageable_copy", PINNED, before=lambda: torch.zeros(4, 4, pin_memory=True))
def result_into_page_locked_memory(x: Tensor, result: Tensor) -> Any:
    y = x * 2
    result.copy_(y, non_blocking=True)
    return y


@legal("pageable_copy", "TN aten/common/ToKernelNpu.cpp:85: the new tensor of the host is page-locked")
def to_cpu_without_blocking(x: Tensor) -> Any:
    y = x * 2
    y.to("cpu", non_blocking=True)
    return y


@legal("pageable_copy", "Ascend/pytorch test/npu/test_aclgraph_pin_memory.py:44")
def page_locked_inside(x: Tensor) -> Any:
    return x + torch.ones(4, 4).pin_memory().to(x.device, non_blocking=True)


@legal("host_tensor", "torch: a tensor of the host without dimensions is a number")
def number_in_a_tensor(x: Tensor) -> Any:
    return x * torch.tensor(2.0)


@legal("sync_copy", "torch: what lies on the host is computed there", before=lambda: torch.tensor([1, 3]))
def splits_by_lengths_of_the_host(x: Tensor, lengths: Tensor) -> Any:
    first, last = x.split((lengths + 0).tolist())
    return torch.cat([last, first])


@legal("sync_copy", "torch: a tensor that is on the device is not moved")
def moved_where_it_lies(x: Tensor) -> Any:
    return x.to("npu") + x.npu()
