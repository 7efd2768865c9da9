"""Rotary position embedding, halves swapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from npucompose.passes.replace.pattern import Pattern

HALF = 613
"""Stands for any half of a last dimension."""


def _find(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, half: int) -> torch.Tensor:
    """transformers' rotate_half."""
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class RotaryMul(Pattern):
    """Over [batch, heads, tokens, size] or with heads and tokens swapped; cos and sin broadcast over two of them."""

    name: ClassVar[str] = "rotary_mul"
    scalars: ClassVar[Mapping[str, float]] = {"half": HALF}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.empty(2, 3, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_find, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        x, cos, sin, _ = arguments
        return torch.ops.npu.npu_rotary_mul(x, cos, sin)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, cos, sin = values
        same = x.dim() == cos.dim() == sin.dim() == 4 and x.dtype == cos.dtype == sin.dtype
        sizes = x.shape[-1] == cos.shape[-1] == sin.shape[-1] == 2 * numbers["half"]
        return bool(same and sizes and cos.shape == sin.shape)
