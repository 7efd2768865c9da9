"""A chain of linear layers with GELU between them."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class Mlp(Model):
    """forward(x) with x [batch, hidden] -> [batch, hidden]."""

    name: ClassVar[str] = "mlp"
    batch: int = option(32, "rows of x", ge=1)
    hidden: int = option(256, "width of every layer", ge=1)
    layers: int = option(3, "linear layers", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module = inference(small.Mlp(self.hidden, self.layers))

        def inputs(step: int) -> Inputs:
            return {"x": torch.randn(self.batch, self.hidden, generator=generator(seed, step))}

        return Built(module=module, inputs=inputs)
