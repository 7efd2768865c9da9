"""Root-mean-square norms, with and without the sum before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from npucompose.passes.replace.pattern import Pattern

EPSILON = 1.234567e-6
HALF = (torch.float16, torch.bfloat16)


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
        return [(_plain, torch.float32), *((_in_float, dtype) for dtype in HALF)]

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
