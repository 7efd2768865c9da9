"""One of Paddle's operators in a small module: the cases of the document on adapting them to CANN."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option

Operator = Literal["relu_grad", "nll_loss", "pool2d", "pool2d_grad"]
OPERATORS: tuple[Operator, ...] = ("relu_grad", "nll_loss", "pool2d", "pool2d_grad")


@frozen(kw_only=True)
class Paddle(Model):
    """forward(out, dout), forward(x, label), forward(x) or forward(x, out_grad), as the operator takes it."""

    name: ClassVar[str] = "paddle"
    operator: Operator = option("relu_grad", "which of torch.ops.paddle", choices=OPERATORS)
    batch: int = option(4, "rows, or images", ge=1)
    classes: int = option(10, "nll_loss: columns of x", ge=2)
    size: int = option(32, "pooling: height and width of an image", ge=4)
    channels: int = option(8, "pooling: channels", ge=1)
    layers: int = option(1, "pool2d: operators one after the other, a relu between them", ge=1)
    data_format: Literal["NCHW", "NHWC"] = option("NHWC", "pooling: order of dimensions", choices=("NCHW", "NHWC"))
    pooling_type: Literal["max", "avg", "both"] = option(
        "max", "pooling: which; both does the one and the other and adds them", choices=("max", "avg", "both")
    )
    ceil_mode: bool = option(False, "pooling: a window may reach over the edge")

    def check(self) -> None:
        if self.pooling_type == "both" and self.operator != "pool2d":
            raise ConfigError("model.pooling_type=both is for model.operator=pool2d: choose max or avg.")

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import paddle
        from npucompose.models.modules.seeding import generator, inference

        pooling = paddle.Pooling(self.data_format, self.pooling_type, self.ceil_mode, self.layers)
        image = (self.batch, self.size, self.size, self.channels)
        shape = image if self.data_format == "NHWC" else (image[0], image[3], image[1], image[2])

        def inputs(step: int) -> Inputs:
            g = generator(seed, step)
            if self.operator == "nll_loss":
                x = torch.randn(self.batch, self.classes, generator=g, dtype=torch.float64).log_softmax(1)
                return {"x": x, "label": torch.randint(self.classes, (self.batch,), generator=g)}
            if self.operator == "relu_grad":
                out = torch.randn(self.batch, self.size, generator=g).relu()
                return {"out": out, "dout": torch.randn(self.batch, self.size, generator=g)}
            x = torch.randn(shape, generator=g)
            if self.operator == "pool2d":
                return {"x": x}
            return {"x": x, "out_grad": torch.randn(pooling.pooled(x).shape, generator=g)}

        modules = {
            "relu_grad": paddle.ReluGrad,
            "nll_loss": paddle.NllLoss,
            "pool2d": lambda: pooling,
            "pool2d_grad": lambda: paddle.PoolGrad(pooling),
        }
        return Built(module=inference(modules[self.operator]()), inputs=inputs)
