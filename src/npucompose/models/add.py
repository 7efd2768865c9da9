"""Two tensors added: the smallest graph there is."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class Add(Model):
    """forward(x, y) -> x + y."""

    name: ClassVar[str] = "add"
    size: int = option(64, "both tensors are size × size", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference

        def inputs(step: int) -> Inputs:
            g = generator(seed, step)
            return {name: torch.randn(self.size, self.size, generator=g) for name in ("x", "y")}

        return Built(module=inference(small.Add()), inputs=inputs)
