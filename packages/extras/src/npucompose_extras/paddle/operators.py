"""Four operators as Paddle has them, as reference kernels of plain torch calls: what adaptation starts from.

Source: 飞桨 x 昇腾生态适配方案 06, 算子适配举例 (the adaptation of ReluGrad, nll_loss and Pool2dGrad to CANN), which
names the operators; their arguments follow Paddle's own. Meaning:

    relu_grad(out, dout)    dout where out > 0, else 0; a NaN in out lets dout through, as CANN's ThresholdBackward does
    nll_loss                x in float32 or float64; total_weight is the sum of the weights of the labels that count
    pool2d, pool2d_grad     NCHW or NHWC, max or avg; `exclusive` leaves padding out of an average
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

from npucompose.ops.definitions import define_missing

POOLING = (
    "int[2] kernel_size, int[2] strides, int[2] paddings, bool ceil_mode=False, bool exclusive=True, "
    'str data_format="NCHW", str pooling_type="max"'
)
SCHEMAS = {
    "relu_grad": "relu_grad(Tensor out, Tensor dout) -> Tensor",
    "nll_loss": (
        "nll_loss(Tensor x, Tensor label, Tensor? weight=None, int ignore_index=-100, "
        'str reduction="mean") -> (Tensor out, Tensor total_weight)'
    ),
    "pool2d": f"pool2d(Tensor x, {POOLING}) -> Tensor",
    "pool2d_grad": f"pool2d_grad(Tensor x, Tensor out, Tensor out_grad, {POOLING}) -> Tensor",
}
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
aten = torch.ops.aten


def define() -> None:
    """Define `torch.ops.paddle.*`; the second call does nothing."""
    define_missing("paddle", SCHEMAS, _KERNELS)


def _relu_grad(out: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
    return torch.where(out <= 0, torch.zeros((), dtype=dout.dtype, device=dout.device), dout)


def _relu_grad_meta(out: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(dout)


def _nll_loss(
    x: torch.Tensor,
    label: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    return aten.nll_loss_forward.default(x, label, weight, REDUCTIONS[reduction], ignore_index)


def _nll_loss_meta(
    x: torch.Tensor,
    label: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(label.shape if reduction == "none" and x.dim() == 2 else ()), x.new_empty(())


@frozen
class Pooling:
    """The arguments of POOLING, which both operators share."""

    kernel_size: Sequence[int]
    strides: Sequence[int]
    paddings: Sequence[int]
    ceil_mode: bool = False
    exclusive: bool = True
    data_format: str = "NCHW"
    pooling_type: str = "max"

    @property
    def windows(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        return self.kernel_size, self.strides, self.paddings


def _pool2d(x: torch.Tensor, *pooling: Any, **named: Any) -> torch.Tensor:
    how = Pooling(*pooling, **named)
    x = _nchw(x, how.data_format)
    if how.pooling_type == "max":
        out = aten.max_pool2d_with_indices.default(x, *how.windows, (1, 1), how.ceil_mode)[0]
    else:
        out = aten.avg_pool2d.default(x, *how.windows, how.ceil_mode, not how.exclusive)
    return _as_given(out, how.data_format)


def _pool2d_meta(x: torch.Tensor, *pooling: Any, **named: Any) -> torch.Tensor:
    how = Pooling(*pooling, **named)
    shape = list(x.shape)
    dims = (2, 3) if how.data_format == "NCHW" else (1, 2)
    for dim, kernel, stride, padding in zip(dims, *how.windows, strict=True):
        shape[dim] = _pooled(shape[dim], kernel, stride, padding, how.ceil_mode)
    return x.new_empty(shape)


def _pooled(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """How many windows: the last one must start inside the input or its left padding."""
    reach = size + 2 * padding - kernel
    if not ceil_mode:
        return reach // stride + 1
    count = -(-reach // stride) + 1
    return count - 1 if (count - 1) * stride >= size + padding else count


def _pool2d_grad(
    x: torch.Tensor, out: torch.Tensor, out_grad: torch.Tensor, *pooling: Any, **named: Any
) -> torch.Tensor:
    how = Pooling(*pooling, **named)
    x, out_grad = _nchw(x, how.data_format), _nchw(out_grad, how.data_format)
    if how.pooling_type == "max":
        indices = aten.max_pool2d_with_indices.default(x, *how.windows, (1, 1), how.ceil_mode)[1]
        grad = aten.max_pool2d_with_indices_backward.default(out_grad, x, *how.windows, (1, 1), how.ceil_mode, indices)
    else:
        grad = aten.avg_pool2d_backward.default(out_grad, x, *how.windows, how.ceil_mode, not how.exclusive, None)
    return _as_given(grad, how.data_format)


def _pool2d_grad_meta(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _nchw(x: torch.Tensor, data_format: str) -> torch.Tensor:
    return x if data_format == "NCHW" else x.permute(TO_NCHW).contiguous()


def _as_given(x: torch.Tensor, data_format: str) -> torch.Tensor:
    return x.contiguous() if data_format == "NCHW" else x.permute(TO_NHWC).contiguous()


_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu_grad": (_relu_grad, _relu_grad_meta),
    "nll_loss": (_nll_loss, _nll_loss_meta),
    "pool2d": (_pool2d, _pool2d_meta),
    "pool2d_grad": (_pool2d_grad, _pool2d_grad_meta),
}
