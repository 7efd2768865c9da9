"""Two chains of matrix products that need nothing of each other: the best case of a second stream."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class ParallelBranches(Model):
    """forward(x [size, size]) -> left chain(x) + right chain(x)."""

    name: ClassVar[str] = "parallel_branches"
    size: int = option(256, "every matrix is size × size", ge=1)
    depth: int = option(4, "products in each chain", ge=1)

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module = inference(small.ParallelBranches(self.size, self.depth))

        def inputs(step: int) -> Inputs:
            return {"x": torch.randn(self.size, self.size, generator=generator(seed, step))}

        return Built(module=module, inputs=inputs)
