"""One input of each kind: a parameter, a buffer, a tensor and a number of Python."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class LinearScalar(Model):
    """forward(x, times) -> linear(x) * times + shift.

    `times` is a constant of a static graph and a symbol of a dynamic one; with `vary` it grows by 1 each step, so a
    static graph is compiled again for each.
    """

    name: ClassVar[str] = "linear_scalar"
    batch: int = option(8, "rows of x", ge=1)
    features: int = option(64, "columns of x", ge=1)
    times: int = option(3, "the number", ge=2)
    vary: bool = option(False, "step n gets times + n")

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import small
        from npucompose.models.modules.seeding import generator, inference, seeded

        with seeded(seed):
            module = inference(small.LinearScalar(self.features))

        def inputs(step: int) -> Inputs:
            x = torch.randn(self.batch, self.features, generator=generator(seed, step))
            return {"x": x, "times": self.times + step * self.vary}

        return Built(module=module, inputs=inputs)
