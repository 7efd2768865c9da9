"""Experts whose weights lie in one tensor, and linear layers in int8. Imports torch: models import it in `network`."""

from __future__ import annotations

import torch
from torch import nn


def in_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [.., in, out] in int8, scale of each column), as a checkpoint in w8a8 has them."""
    scale = weight.abs().amax(-2) / 127
    return (weight / scale.unsqueeze(-2)).round().to(torch.int8), scale


class Experts(nn.Module):
    """SwiGLU networks, the rows of each expert in a group."""

    def __init__(self, experts: int, hidden: int, ffn: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Parameter((torch.randn(experts, hidden, 2 * ffn) / hidden**0.5).to(dtype))
        self.down = nn.Parameter((torch.randn(experts, ffn, hidden) / ffn**0.5).to(dtype))

    def forward(self, rows: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        groups = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 2}
        inner = torch.ops.npu.npu_grouped_matmul([rows], [self.up], **groups)[0]
        return torch.ops.npu.npu_grouped_matmul([torch.ops.npu.npu_swiglu(inner)], [self.down], **groups)[0]


class QuantisedExperts(nn.Module):
    """The same in int8: rows come with a scale each, and what is between the products gets new ones."""

    up: torch.Tensor
    up_scale: torch.Tensor
    down: torch.Tensor
    down_scale: torch.Tensor

    def __init__(self, experts: int, hidden: int, ffn: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = {torch.float16: 5, torch.bfloat16: 15}[dtype]
        for name, rows, columns in (("up", hidden, 2 * ffn), ("down", ffn, hidden)):
            weight, scale = in_int8(torch.randn(experts, rows, columns) / rows**0.5)
            self.register_buffer(name, weight)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, rows: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        inner = self._product(rows, self.up, self.up_scale, scales, counts)
        inner, scales = torch.ops.npu.npu_dynamic_quant(torch.ops.npu.npu_swiglu(inner))
        return self._product(inner, self.down, self.down_scale, scales, counts)

    def _product(
        self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        return torch.ops.npu.npu_grouped_matmul(
            [rows],
            [weight],
            scale=[scale],
            per_token_scale=[scales],
            group_list=counts,
            group_list_type=1,
            group_type=0,
            split_item=2,
            output_dtype=self.number,
        )[0]


class QuantisedLinear(nn.Module):
    """A linear layer in w8a8: each row becomes int8 by a scale of its own, the product is scaled back."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int, out: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = {torch.float16: 5, torch.bfloat16: 15}[dtype]
        weight, scale = in_int8(torch.randn(width, out) / width**0.5)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, scales = torch.ops.npu.npu_dynamic_quant(x)
        return torch.ops.npu.npu_quant_matmul(
            rows, self.weight, self.scale, pertoken_scale=scales, output_dtype=self.number
        )
