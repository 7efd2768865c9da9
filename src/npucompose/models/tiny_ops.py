"""Many operators that cost next to nothing each: what a call through Python costs is all the time there is."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class TinyOps(Model):
    """forward(x8, x16, x32, x64), squares of that size, each followed through mm, add, relu, mul again and again."""

    name: ClassVar[str] = "tiny_ops"
    count: int = option(200, "operators in all", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module = inference(small.TinyOps(self.count))

        def inputs(step: int) -> Inputs:
            g = generator(seed, step)
            return {f"x{n}": torch.randn(n, n, generator=g) for n in small.TinyOps.SIZES}

        return Built(module=module, inputs=inputs)
