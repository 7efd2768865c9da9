"""One token through a small GPT whose key and value caches are buffers that each step updates in place."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class GptDecode(Model):
    """forward(x [1, 1, hidden], position [1]) -> [1, 1, hidden]; step n decodes position start + n."""

    name: ClassVar[str] = "gpt_decode"
    hidden: int = option(256, "width", ge=1)
    layers: int = option(4, "blocks", ge=1)
    heads: int = option(8, "attention heads; a divisor of `hidden`", ge=1)
    ffn: int = option(512, "inner width of the SwiGLU network", ge=1)
    cache: int = option(128, "tokens that the caches hold", ge=1)
    start: int = option(64, "position of the first step", ge=0)
    steps: int = option(20, "positions that a comparison with eager decodes", ge=1)

    def check(self) -> None:
        if self.hidden % self.heads:
            raise ConfigError(f"model.heads={self.heads} does not divide model.hidden={self.hidden}.")
        if self.start + self.steps > self.cache:
            raise ConfigError(
                f"model.start={self.start} and model.steps={self.steps} end behind the cache of {self.cache}: "
                f"start + steps may be at most model.cache."
            )

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import gpt
        from npucompose.models.modules.seeding import generator, inference, seeded

        self.check()
        with seeded(seed):
            module = inference(gpt.GptDecode(self.hidden, self.layers, self.heads, self.ffn, self.cache))

        def inputs(step: int) -> Inputs:
            x = torch.randn(1, 1, self.hidden, generator=generator(seed, step))
            return {"x": x, "position": torch.tensor([(self.start + step) % self.cache])}

        return Built(module=module, inputs=inputs, steps=self.steps)
