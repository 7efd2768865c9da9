"""Modules of one of Paddle's operators each (`npucompose.ops.paddle`)."""

from __future__ import annotations

import torch
from torch import nn


class ReluGrad(nn.Module):
    def forward(self, out: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
        return torch.ops.paddle.relu_grad(out, dout)


class NllLoss(nn.Module):
    """(loss, total_weight), the classes weighted 1, 2, 3, …"""

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
        return torch.ops.paddle.nll_loss(x, label, weight)


class Pooling(nn.Module):
    """`layers` poolings with windows of 2 x 2; the first halves an image, the others keep its size less one."""

    def __init__(self, data_format: str, pooling_type: str, ceil_mode: bool, layers: int) -> None:
        super().__init__()
        self.options = (ceil_mode, True, data_format)
        self.kinds = ("max", "avg") if pooling_type == "both" else (pooling_type,)
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = []
        for kind in self.kinds:
            y = torch.ops.paddle.pool2d(x, [2, 2], [2, 2], [0, 0], *self.options, kind)
            for _ in range(self.layers - 1):
                y = torch.ops.paddle.pool2d(torch.relu(y), [2, 2], [1, 1], [0, 0], *self.options, kind)
            results.append(y)
        return results[0] if len(results) == 1 else results[0] + results[1]

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.paddle.pool2d(x, [2, 2], [2, 2], [0, 0], *self.options, self.kinds[0])


class PoolGrad(nn.Module):
    """The gradient of one pooling."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, x: torch.Tensor, out_grad: torch.Tensor) -> torch.Tensor:
        out, kind = self.pooling.pooled(x), self.pooling.kinds[0]
        return torch.ops.paddle.pool2d_grad(x, out, out_grad, [2, 2], [2, 2], [0, 0], *self.pooling.options, kind)
