"""The built-in patterns: root-mean-square norms with and without the sum before them, SwiGLU, rotary embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from npucompose.passes.replace import Pattern

EPSILON = 1.234567e-6
HALF_TYPES = (torch.float16, torch.bfloat16)
HALF = 613
"""Stands for any half of a last dimension."""


def _plain(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def _in_float(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """As transformers writes it for half types: the norm in float32, the product with the weight in x's dtype."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * normed.to(x.dtype)


class RmsNorm(Pattern):
    name: ClassVar[str] = "rms_norm"
    scalars: ClassVar[Mapping[str, float]] = {"epsilon": EPSILON}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_plain, torch.float32), *((_in_float, dtype) for dtype in HALF_TYPES)]

    def replace(self, *arguments: Any) -> Any:
        x, weight, epsilon = arguments
        return torch.ops.npu.npu_rms_norm(x, weight, epsilon)[0]

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, weight = values
        return weight.dim() == 1 and x.dim() > 1 and x.dtype == weight.dtype and x.shape[-1] == weight.shape[0]


class AddRmsNorm(Pattern):
    """The sum is a result too: the next residual reads it."""

    name: ClassVar[str] = "add_rms_norm"
    scalars: ClassVar[Mapping[str, float]] = {"epsilon": EPSILON}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_added(find), dtype) for find, dtype in RmsNorm().finds()]

    def replace(self, *arguments: Any) -> Any:
        x, y, weight, epsilon = arguments
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, y, weight, epsilon)
        return normed, total

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, y, weight = values
        return x.shape == y.shape and x.dtype == y.dtype and RmsNorm().fits((x, weight), numbers)


def _added(norm: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def find(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, epsilon: float) -> Any:
        total = x + y
        return norm(total, weight, epsilon), total

    return find


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


class SwiGlu(Pattern):
    """The fused operator takes both halves in one tensor, so they are put side by side first."""

    name: ClassVar[str] = "swiglu"

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.randn(2, 3, 8), torch.randn(2, 3, 8)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_gated, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        gate, up = arguments
        return torch.ops.npu.npu_swiglu(torch.cat([gate, up], -1), -1)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        gate, up = values
        return gate.shape == up.shape and gate.dtype == up.dtype and gate.dim() > 1


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, half: int) -> torch.Tensor:
    """transformers' rotate_half."""
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class RotaryMul(Pattern):
    """Over [batch, heads, tokens, size] or with heads and tokens swapped; cos and sin broadcast over two of them."""

    name: ClassVar[str] = "rotary_mul"
    scalars: ClassVar[Mapping[str, float]] = {"half": HALF}

    def inputs(self) -> Sequence[torch.Tensor]:
        return [torch.empty(2, 3, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF), torch.empty(1, 1, 5, 2 * HALF)]

    def finds(self) -> Sequence[tuple[Callable[..., Any], torch.dtype]]:
        return [(_rotated, torch.float32)]

    def replace(self, *arguments: Any) -> Any:
        x, cos, sin, _ = arguments
        return torch.ops.npu.npu_rotary_mul(x, cos, sin)

    def fits(self, values: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> bool:
        x, cos, sin = values
        same = x.dim() == cos.dim() == sin.dim() == 4 and x.dtype == cos.dtype == sin.dtype
        sizes = x.shape[-1] == cos.shape[-1] == sin.shape[-1] == 2 * numbers["half"]
        return bool(same and sizes and cos.shape == sin.shape)
