"""Fused operators of `torch.ops.npu` as reference kernels of plain torch calls: what the pass `replace` puts in.

Meaning: Ascend/op-plugin's pages of the same names.
Half types compute in float32 and round once; a device may round in between.

    npu_rms_norm(x, gamma)          (x · rstd · gamma, rstd), rstd = 1 / sqrt(mean(x²) + epsilon) in float32
    npu_add_rms_norm(x1, x2, …)     (the norm of x1 + x2, rstd, x1 + x2)
    npu_swiglu(x, dim)              silu(first half) · second half
    npu_rotary_mul(x, r1, r2)       x · r1 + rotated(x) · r2, rotated swapping halves (or neighbours: interleave)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npucompose.ops.definitions import unsupported


def _rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    wide = _wide(x)
    dims = list(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * _wide(gamma)).to(x.dtype), rstd


def _add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = x1 + x2
    normed, rstd = _rms_norm(total, gamma, epsilon)
    return normed, rstd, total


def _swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, up = _wide(x).chunk(2, dim)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def _rotary_mul(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: torch.Tensor | None = None
) -> torch.Tensor:
    _check_rotary(rotary_mode, rotate)
    wide = _wide(x)
    if rotary_mode == "half":
        first, second = wide.chunk(2, -1)
        rotated = torch.cat([-second, first], -1)
    else:
        rotated = torch.stack([-wide[..., 1::2], wide[..., ::2]], -1).flatten(-2)
    return (wide * _wide(r1) + rotated * _wide(r2)).to(x.dtype)


def _check_rotary(rotary_mode: str, rotate: torch.Tensor | None) -> None:
    if rotate is not None:
        raise unsupported("npu_rotary_mul", "rotate", "is not supported here", "Leave it at None.")
    if rotary_mode not in ("half", "interleave"):
        raise unsupported("npu_rotary_mul", "rotary_mode", f"is '{rotary_mode}'", "Possible: half, interleave.")


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": _rms_norm,
    "npu_add_rms_norm": _add_rms_norm,
    "npu_swiglu": _swiglu,
    "npu_rotary_mul": _rotary_mul,
}


def _rms_norm_meta(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    lead = x.dim() - gamma.dim()
    shape = [*x.shape[:lead], *(1 for _ in range(gamma.dim()))]
    accuracy = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty(shape, dtype=accuracy)


def _add_rms_norm_meta(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return *_rms_norm_meta(x1, gamma, epsilon), torch.empty_like(x1)


def _swiglu_meta(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = shape[dim] // 2
    return x.new_empty(shape)


def _rotary_mul_meta(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: torch.Tensor | None = None
) -> torch.Tensor:
    _check_rotary(rotary_mode, rotate)
    return torch.empty_like(x)


METAS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": _rms_norm_meta,
    "npu_add_rms_norm": _add_rms_norm_meta,
    "npu_swiglu": _swiglu_meta,
    "npu_rotary_mul": _rotary_mul_meta,
}
