"""Programs whose operators let the host look at data on the device, though the model does not say so."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.capture.programs import fault, legal

SYNC = "OP utils/op_api_common.h:744: a kernel that sets the size of its result synchronises the stream"
MASK = "OP utils/AdvancedIndex.cpp:87"
FIXED = "OP: aclnn kernels of fixed size are tasks of the stream"
Tensor = torch.Tensor


@fault("data_shape", 107027, "OP ops/opapi/NonzeroKernelNpuOpApi.cpp:32")
def nonzero(x: Tensor) -> Any:
    return torch.nonzero(x > 0)  # here


@fault("data_shape", 107027, "OP ops/opapi/NonzeroKernelNpuOpApi.cpp:32")
def argwhere(x: Tensor) -> Any:
    return torch.argwhere(x > 0)  # here


@fault("data_shape", 107027, "OP ops/opapi/NonzeroKernelNpuOpApi.cpp:32")
def where_of_one_argument(x: Tensor) -> Any:
    rows, columns = torch.where(x > 0)  # here
    return rows + columns


@fault("data_shape", 107027, MASK)
def a_mask_as_index(x: Tensor) -> Any:
    return x[x > 0] * 2  # here


@fault("data_shape", 107027, "VA vllm_ascend/_310p/ops/fla/gdn_310.py:71: aclnnMaskedSelect, 107027")
def masked_select(x: Tensor) -> Any:
    return torch.masked_select(x, x > 0)  # here


@fault("data_shape", 107027, "OP ops/opapi/Unique2KernelNpuOpApi.cpp:46")
def unique(x: Tensor) -> Any:
    return torch.unique(x.argmax(dim=1))  # here


@fault("data_shape", 107027, "OP ops/opapi/UniqueConsecutiveKernelNpuOpApi.cpp:66")
def unique_consecutive(x: Tensor) -> Any:
    return torch.unique_consecutive(x.argmax(dim=1))  # here


@fault("data_shape", 107027, "OP ops/opapi/UniqueDimKernelNpuOpApi.cpp:63")
def unique_rows(x: Tensor) -> Any:
    return torch.unique(x, dim=0)  # here


@fault("data_shape", 107027, "OP ops/opapi/BincountKernelNpuOpApi.cpp:38")
def bincount(x: Tensor) -> Any:
    return torch.bincount(x.argmax(dim=1))  # here


def _times() -> Tensor:
    return torch.ones(4, dtype=torch.long, device="npu")


@fault("data_shape", 107027, "OP utils/KernelNpuOutputSize.cpp:1909", before=_times)
def repeat_interleave(x: Tensor, times: Tensor) -> Any:
    return x.repeat_interleave(times, dim=0)  # here


@fault("data_shape", 107027, MASK)
def writes_rows_through_a_mask(x: Tensor) -> Any:
    y = x * 2
    y[x > 0] = x.view(-1)[:10]  # here
    return y


@fault("data_shape", 107027, "OP ops/opapi/IndexPutKernelNpuOpApi.cpp:123: the one value is read on the host")
def writes_a_number_through_a_mask(x: Tensor) -> Any:
    y = x * 2
    y[x < -2] = -2.0  # here
    return y


@fault("data_shape", 107027, MASK)
def adds_through_a_mask(x: Tensor) -> Any:
    return x.index_put((x > 0,), x.sum().view(1), accumulate=True)  # here


@fault("host_read", 107027, "OP ops/opapi/OneHotKernelNpuOpApi.cpp:58")
def one_hot_of_the_largest(x: Tensor) -> Any:
    return F.one_hot(x.argmax(dim=1))  # here


@fault("host_read", 107027, "OP ops/opapi/NormalKernelNpuOpApi.cpp:35: the deviations are checked on the host")
def normal_of_two_tensors(x: Tensor) -> Any:
    return torch.normal(x, x.abs())  # here


def _scales() -> tuple[Tensor, Tensor]:
    return torch.ones(1, device="npu"), torch.zeros(1, dtype=torch.int32, device="npu")


@fault("host_read", 107027, "OP ops/opapi/FakeQuantizeKernelNpuOpApi.cpp:50", before=_scales)
def fake_quantize_by_tensors(x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)  # here


@fault("sync_copy", 107027, "OP ops/opapi/ScatterReduceKernelNpuOpApi.cpp:125: a maximum is computed on the CPU")
def scatter_reduce_by_maximum(x: Tensor) -> Any:
    return torch.zeros_like(x).scatter_reduce(1, x.argsort(1), x, "amax")  # here


@fault("sync_copy", 107027, "OP ops/opapi/VarKernelNpuOpApi.cpp:53: such a correction is computed on the CPU")
def variance_with_half_a_correction(x: Tensor) -> Any:
    return x.var(1, correction=0.5)  # here


def _channels() -> tuple[Tensor, Tensor]:
    return torch.ones(4, device="npu"), torch.zeros(4, dtype=torch.long, device="npu")


@fault("sync_copy", 107027, "OP ops/opapi/QuantizePerChannelKernelNpuOpApi.cpp:137", before=_channels)
def quantize_per_channel(x: Tensor, scales: Tensor, zeros: Tensor) -> Any:
    return torch.quantize_per_channel(x, scales, zeros, 0, torch.quint8)  # here


def _cache() -> Tensor:
    return torch.zeros(4, 4, device="npu")


@fault("moves_memory", None, "RT dev_guide/04-01, limit 7", before=_cache)
def resizes_a_cache(x: Tensor, cache: Tensor) -> Any:
    cache.resize_(8, 4)  # here
    return x * 2


@fault("moves_memory", None, "RT dev_guide/04-01, limit 7", before=_cache)
def exchanges_a_cache(x: Tensor, cache: Tensor) -> Any:
    new = x * 2
    cache.set_(new)  # here
    return new + 1


@fault("conditional", 107027, "TN aten/common/LocalScalarDenseNpu.cpp:26; the capture of branches is a mode of its own")
def cond(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))  # here


@legal("conditional", "torch: a number of Python decides")
def cond_on_a_number(x: Tensor) -> Any:
    return torch.cond(x.shape[0] > 2, lambda y: y + 1, lambda y: y - 1, (x,))


@legal("data_shape", FIXED)
def index_tensor(x: Tensor) -> Any:
    return x[x.argmax(dim=1)]


@legal("data_shape", FIXED)
def sorts_and_gathers(x: Tensor) -> Any:
    return x.sort(1).values.gather(1, x.argsort(1)) + x.cumsum(1) + x.topk(4).values


@legal("data_shape", FIXED)
def a_mask_that_multiplies(x: Tensor) -> Any:
    return x * (x > 0)


@legal("data_shape", "OP ops/opapi/MaskedFillKernelNpuOpApi.cpp:36: the number is an argument of the kernel")
def masked_fill(x: Tensor) -> Any:
    return x.masked_fill(x > 0, 0.0)


@legal("data_shape", FIXED)
def chooses_by_a_mask(x: Tensor) -> Any:
    return torch.where(x < -2, torch.full_like(x, -2.0), x)


@legal("data_shape", "OP utils/KernelNpuOutputSize.cpp:1901: the size that is given is taken", before=_times)
def repeat_interleave_of_known_size(x: Tensor, times: Tensor) -> Any:
    return x.repeat_interleave(times, dim=0, output_size=4) + x.repeat_interleave(2, dim=0)[:4]


@legal(
    "data_shape", "OP ops/opapi/OneHotKernelNpuOpApi.cpp:57: only without a number of classes is the largest looked for"
)
def one_hot_of_known_classes(x: Tensor) -> Any:
    return F.one_hot(x.argmax(dim=1), num_classes=4)


@legal("data_shape", "OP ops/opapi/IndexPutKernelNpuOpApi.cpp:134: an index of numbers is a task", before=_times)
def writes_through_an_index(x: Tensor, rows: Tensor) -> Any:
    y = x * 2
    y[rows] = x
    y[:2] = 1.0
    return y


@legal("host_read", "OP ops/opapi/NormalKernelNpuOpApi.cpp:133: one number as deviation")
def normal_of_one_tensor(x: Tensor) -> Any:
    return torch.normal(x, 1.0)


YAML = "torch_npu 2.13.0 csrc/aten/npu_native_functions*.yaml"


@fault("cpu_kernel", 107027, f"{YAML}: no fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_by_numbers(x: Tensor) -> Any:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)  # here


@fault("cpu_kernel", 107027, f"{YAML}: no _linalg_eigh.eigenvalues")
def eigenvalues(x: Tensor) -> Any:
    return torch.linalg.eigh(x @ x.T)[0]  # here


@fault("cpu_kernel", 107027, f"{YAML}: no nonzero_static")
def nonzero_of_fixed_size(x: Tensor) -> Any:
    return torch.nonzero_static(x > 0, size=4)  # here


@fault("cpu_kernel", 107027, f"{YAML}: no _assert_async.msg; TN aten/VariableFallbackKernel.cpp:225")
def an_assertion_on_the_device(x: Tensor) -> Any:
    torch.ops.aten._assert_async.msg((x < 99).all(), "too large")  # here
    return x + 1


@fault(
    "cpu_kernel",
    107027,
    "torch_npu 2.6.0.post5 csrc/aten/npu_native_functions*.yaml: no gelu.out",
    torch_npu="2.6.0.post5",
)
def gelu_in_place_where_it_has_no_kernel(x: Tensor) -> Any:
    return torch.ops.aten.gelu_.default(x * 2)  # here


@legal("cpu_kernel", f"{YAML}: gelu.out, of which torch makes gelu_")
def gelu_in_place(x: Tensor) -> Any:
    return torch.ops.aten.gelu_.default(x * 2)


@legal("cpu_kernel", f"{YAML}: topk")
def the_four_largest(x: Tensor) -> Any:
    return torch.topk(x.view(-1), 4).values


@fault("aclop", None, f"{YAML}: slow_conv3d_forward, impl_ns: acl_op")
def a_convolution_by_aclop(x: Tensor) -> Any:
    image, weight = x.view(1, 1, 1, 4, 4), torch.ones(1, 1, 1, 1, 1, device=x.device)
    return torch.ops.aten.slow_conv3d_forward(image, weight, [1, 1, 1], None, [1, 1, 1], [0, 0, 0])  # here


@legal("aclop", "OP ops/aclops/ZerosKernelNpu.cpp: memory, and zero_, though impl_ns is acl_op")
def zeros_of_the_device(x: Tensor) -> Any:
    return x + torch.zeros(4, 4, device=x.device)


@fault("opaque", None, f"{YAML}: inverse, and no linalg_inv_ex.inverse", sure=False)
def an_inverse_that_may_be_either(x: Tensor) -> Any:
    return torch.inverse(x + 9 * torch.eye(4, device=x.device))  # here


@legal("sync_copy", "OP ops/opapi/ScatterReduceKernelNpuOpApi.cpp:114: a sum of float32 that includes self is a kernel")
def scatter_reduce_by_sum(x: Tensor) -> Any:
    return torch.zeros_like(x).scatter_reduce(1, x.argsort(1), x, "sum") + torch.zeros_like(x).index_add(
        0, x.argmax(0), x
    )


@legal("sync_copy", "OP ops/opapi/VarKernelNpuOpApi.cpp:33: a whole number is the kernel's")
def variance_with_a_whole_correction(x: Tensor) -> Any:
    return x.var(1, correction=1) + x.std(1, correction=0)


@legal(
    "moves_memory",
    "RT dev_guide/04-01, limit 7: the memory stays",
    before=lambda: (_cache(), _times()),
)
def writes_a_cache_in_place(x: Tensor, cache: Tensor, slots: Tensor) -> Any:
    cache.copy_(x)
    cache[slots] = x
    cache.index_add_(0, slots, x)
    return cache + 1


@legal("moves_memory", "torch: an operator in place")
def writes_its_input(x: Tensor) -> Any:
    x.add_(1)
    return x * 2


@legal("data_shape", FIXED)
def attention(x: Tensor) -> Any:
    y = x.view(1, 2, 2, 4)
    return F.scaled_dot_product_attention(y, y, y, is_causal=True) + F.rms_norm(y, (4,))


@legal("data_shape", FIXED, before=lambda: torch.ones(4, 2, device="npu"))
def experts_that_all_compute(x: Tensor, gate: Tensor) -> Any:
    weights = (x @ gate).softmax(-1)
    return weights[:, :1] * x.relu() + weights[:, 1:] * x.tanh()
