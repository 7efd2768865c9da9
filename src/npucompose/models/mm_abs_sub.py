"""A matrix product beside abs → sub, then a sum: the example of the TorchAir issue on streams in FX graphs."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class MmAbsSub(Model):
    """forward(x) -> mm(x, x) + (abs(x) - x)."""

    name: ClassVar[str] = "mm_abs_sub"
    size: int = option(256, "x is size × size", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference

        def inputs(step: int) -> Inputs:
            return {"x": torch.randn(self.size, self.size, generator=generator(seed, step))}

        return Built(module=inference(small.MmAbsSub()), inputs=inputs)
