"""Attention that GE can take: the third version of torch_npu's kernel as the first, which TorchAir converts.

# Note [Attention under max-autotune]
On an Ascend 910B torch_npu makes npu_fusion_attention_v3 of scaled_dot_product_attention. TorchAir (torch_npu 2.13.0)
has a converter for npu_fusion_attention alone, and generates none for an operator without a namesake in CANN. Both are
FlashAttentionScore; they differ in the seeds of a dropout, numbers in the first and tensors in the third. Without
dropout the one is taken for the other, which is what the `custom_decompositions` of TorchAir's backend are for. With a
version that has a converter nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SEEDLESS = ("seed", "offset", "dropout_mask")


def convertible() -> dict[Any, Callable[..., Any]]:
    """{the third version: the first}, forward and gradient, as far as torch_npu has them and TorchAir no converter."""
    return {
        operator.default: _as_first(operator.default, getattr(torch.ops.npu, first).default)
        for third, first in (
            ("npu_fusion_attention_v3", "npu_fusion_attention"),
            ("npu_fusion_attention_grad_v3", "npu_fusion_attention_grad"),
        )
        if (operator := getattr(torch.ops.npu, third, None)) is not None and not _has_converter(operator.default)
    }


def _has_converter(operator: Any) -> bool:
    """TorchAir hangs its converters on the operators."""
    return hasattr(operator, "_ge_converter")


def _as_first(third: Any, first: Any) -> Callable[..., Any]:
    places = [argument.name for argument in third._schema.arguments]
    known = {argument.name for argument in first._schema.arguments} - set(SEEDLESS)

    def decomposed(*args: Any, **named: Any) -> Any:
        given = {**dict(zip(places, args, strict=False)), **named}
        if given.get("keep_prob", 1.0) != 1.0 or any(given.get(n) is not None for n in ("actual_seq_qlen", "prefix")):
            return NotImplemented
        results = first(**{name: value for name, value in given.items() if name in known})
        if third is not torch.ops.npu.npu_fusion_attention_v3.default:
            return results
        seeds = [given["query"].new_zeros(1, dtype=torch.int64) for _ in range(2)]
        return (*results[:4], *seeds)

    return decomposed
