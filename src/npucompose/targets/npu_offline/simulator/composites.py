"""Composite operators for which torch_npu registers kernels of its own: traced here as they are on a device.

# Note [Choices by device]
A composite operator of torch is taken apart while a graph is traced, and some look at the tensors' device to decide
into what: on CPU tensors scaled_dot_product_attention becomes a kernel that only the CPU has. torch_npu registers its
own function for such an operator under the key of the NPU's autograd (torchnpugen, filt_compositeimplicitautograd_api),
which runs before the operator reaches the tracer: the graph holds what that function calls. The process of the stand-in
is a device whose tensors say CPU, so ours are registered for the CPU's keys.

What torch_npu decides is in C++ that the wheel brings compiled; read from Ascend/op-plugin (August 2026):
ScaledDotProductAttentionKernelNpuOpApi.cpp and FusedSdpChoiceKernelNpuOpApi.cpp.
"""

from __future__ import annotations

import math

import torch

FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_HEADS, MOST_DEPTH, TRIANGLE = 2048, 512, 2048
LEFT_UP = 2
"""sparse_mode: what lies above the diagonal from the upper left corner is hidden."""


def register(aten: torch.library.Library) -> None:
    """`aten` is a library for implementations of torch's own operators; they last as long as it does."""
    for operator, function in (
        ("scaled_dot_product_attention", scaled_dot_product_attention),
        ("_weight_norm", weight_norm),
    ):
        aten.impl(operator, function, "AutogradCPU")
        aten.impl(operator, function, "CPU")  # under inference_mode the autograd keys are skipped


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """FlashAttentionScore where it takes the tensors (an Ascend 910B), and torch's own composition elsewhere."""
    if not _fuses(query, key, value, attn_mask):
        mask = _added(attn_mask, query.dtype)
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    precise = 2 if not is_causal and query.size(2) > 1 and attn_mask is not None else 0
    if is_causal:
        square = torch.ones((TRIANGLE, TRIANGLE), dtype=torch.bool, device=query.device)
        hidden = torch.triu(square, 1)
    else:
        hidden = None if attn_mask is None else _as_wide_as_needed(attn_mask, query, key).logical_not()
    name = "npu_fusion_attention_v3" if hasattr(torch.ops.npu, "npu_fusion_attention_v3") else "npu_fusion_attention"
    return getattr(torch.ops.npu, name)(
        query,
        key,
        value,
        query.size(1),
        "BNSD",
        atten_mask=hidden,
        scale=1.0 / math.sqrt(query.size(-1)) if scale is None else scale,
        keep_prob=1.0 - dropout_p,
        next_tockens=0 if is_causal else 2147483647,
        inner_precise=precise,
        sparse_mode=LEFT_UP if is_causal else 0,
    )[0]


def _fuses(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    if query.dtype == torch.float32 and any(t.size(-1) % 4 for t in (query, key, value)):
        return False
    if not query.dim() == key.dim() == value.dim() == 4 or query.dtype not in FUSED_DTYPES:
        return False
    heads, kv_heads = query.size(1), key.size(1)
    sizes = heads <= MOST_HEADS and kv_heads <= MOST_HEADS and query.size(3) <= MOST_DEPTH
    return sizes and heads >= kv_heads and heads % kv_heads == 0 and (mask is None or mask.dtype == torch.bool)


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of True for what counts, as numbers that are added."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask.logical_not(), float("-inf"))


def _as_wide_as_needed(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The kernel broadcasts a mask over batch and heads together, or over heads; every other way is written out."""
    wanted = (query.size(0), query.size(1), query.size(2), key.size(2))
    given = tuple(mask.shape)
    if len(given) not in (2, 3, 4) or any(a not in (1, b) for a, b in zip(given[::-1], wanted[::-1], strict=False)):
        return mask
    square, outer = given[-2:] == wanted[2:], given[:-2]
    taken = square and outer in ((), wanted[:2], (wanted[0], 1), (1, 1))
    return mask if taken else mask.expand(wanted)


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """In two steps, as torch_npu writes it; torch would take its own kernel for both."""
    return v * (g / torch.norm_except_dim(v, 2, dim))
