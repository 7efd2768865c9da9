"""One of Paddle's operators in a small module: the cases of the document on adapting them to CANN. The model loads no
torch, and `operators` defines what it calls; the rules that adapt them lie in conf/adapt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network
from npucompose.table.options import option

if TYPE_CHECKING:
    import torch
    from torch import Generator, nn

Operator = Literal["relu_grad", "nll_loss", "pool2d", "pool2d_grad"]
OPERATORS: tuple[Operator, ...] = ("relu_grad", "nll_loss", "pool2d", "pool2d_grad")


@frozen(kw_only=True)
class Paddle(Network):
    """forward(out, dout), forward(x, label), forward(x) or forward(x, out_grad), as the operator takes it."""

    name: ClassVar[str] = "paddle"
    operator: Operator = option("relu_grad", "which operator of torch.ops.paddle", choices=OPERATORS)
    batch: int = option(4, "rows, or images", ge=1)
    classes: int = option(10, "nll_loss: columns of x", ge=2)
    size: int = option(32, "pooling: height and width of an image", ge=4)
    channels: int = option(8, "pooling: channels", ge=1)
    layers: int = option(1, "pool2d: operators one after the other, a relu between them", ge=1)
    data_format: Literal["NCHW", "NHWC"] = option("NHWC", "pooling: order of dimensions")
    pooling_type: Literal["max", "avg", "both"] = option(
        "max", "pooling: which; both does the one and the other and adds them"
    )
    ceil_mode: bool = option(False, "pooling: a window may reach over the edge")

    def check(self) -> None:
        if self.pooling_type == "both" and self.operator != "pool2d":
            raise ConfigError("model.pooling_type=both is for model.operator=pool2d: choose max or avg.")

    def network(self) -> nn.Module:
        from npucompose_extras.paddle.operators import define

        define()
        return {
            "relu_grad": self._relu_grad,
            "nll_loss": self._nll_loss,
            "pool2d": self._pooling,
            "pool2d_grad": self._pooling_gradient,
        }[self.operator]()

    def _relu_grad(self) -> nn.Module:
        import torch
        from torch import nn

        class ReluGrad(nn.Module):
            def forward(self, out: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
                return torch.ops.paddle.relu_grad(out, dout)

        return ReluGrad()

    def _nll_loss(self) -> nn.Module:
        import torch
        from torch import nn

        class NllLoss(nn.Module):
            """(loss, total_weight), the classes weighted 1, 2, 3, …"""

            def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                weight = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
                return torch.ops.paddle.nll_loss(x, label, weight)

        return NllLoss()

    def _pooling(self) -> nn.Module:
        import torch
        from torch import nn

        class PoolingModel(nn.Module):
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

        return PoolingModel(self.data_format, self.pooling_type, self.ceil_mode, self.layers)

    def _pooling_gradient(self) -> nn.Module:
        import torch
        from torch import nn

        pooled, options = self._pooled, (self.ceil_mode, True, self.data_format, self.pooling_type)

        class PoolGrad(nn.Module):
            """The gradient of one pooling."""

            def forward(self, x: torch.Tensor, out_grad: torch.Tensor) -> torch.Tensor:
                return torch.ops.paddle.pool2d_grad(x, pooled(x), out_grad, [2, 2], [2, 2], [0, 0], *options)

        return PoolGrad()

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        if self.operator == "nll_loss":
            x = torch.randn(self.batch, self.classes, generator=chance, dtype=torch.float64).log_softmax(1)
            return {"x": x, "label": torch.randint(self.classes, (self.batch,), generator=chance)}
        if self.operator == "relu_grad":
            out = torch.randn(self.batch, self.size, generator=chance).relu()
            return {"out": out, "dout": torch.randn(self.batch, self.size, generator=chance)}
        image = (self.size, self.size)
        x = torch.randn(
            (self.batch, *image, self.channels) if self.data_format == "NHWC" else (self.batch, self.channels, *image),
            generator=chance,
        )
        if self.operator == "pool2d":
            return {"x": x}
        return {"x": x, "out_grad": torch.randn(self._pooled(x).shape, generator=chance)}

    def _pooled(self, x: torch.Tensor) -> torch.Tensor:
        """One pooling with windows of 2 x 2 that halves an image."""
        import torch

        options = (self.ceil_mode, True, self.data_format, self.pooling_type)
        return torch.ops.paddle.pool2d(x, [2, 2], [2, 2], [0, 0], *options)
