"""Convolution and pooling over images that lie channels last in memory."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class ConvNhwc(Model):
    """forward(x [batch, 3, size, size], channels last) -> [batch, classes]."""

    name: ClassVar[str] = "conv_nhwc"
    batch: int = option(1, "images", ge=1)
    size: int = option(112, "height and width of an image", ge=8)
    channels: int = option(32, "channels behind the first convolution; twice as many behind the second", ge=1)
    classes: int = option(10, "width of the result", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module = inference(small.ConvNhwc(self.channels, self.classes))

        def inputs(step: int) -> Inputs:
            x = torch.randn(self.batch, 3, self.size, self.size, generator=generator(seed, step))
            return {"x": x.contiguous(memory_format=torch.channels_last)}

        return Built(module=module, inputs=inputs)
