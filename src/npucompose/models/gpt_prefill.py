"""A whole prompt through a GPT of ordinary width: few operators, each large."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class GptPrefill(Model):
    """forward(x [batch, tokens, hidden]) -> [batch, tokens, hidden], causally masked."""

    name: ClassVar[str] = "gpt_prefill"
    hidden: int = option(1024, "width", ge=1)
    layers: int = option(8, "blocks", ge=1)
    heads: int = option(16, "attention heads; a divisor of `hidden`", ge=1)
    ffn: int = option(2048, "inner width of the SwiGLU network", ge=1)
    batch: int = option(1, "prompts", ge=1)
    tokens: int = option(128, "tokens of a prompt", ge=1)

    def check(self) -> None:
        if self.hidden % self.heads:
            raise ConfigError(f"model.heads={self.heads} does not divide model.hidden={self.hidden}.")

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import gpt
        from npucompose.models.modules.seeding import generator, inference, seeded

        self.check()
        with seeded(seed):
            module = inference(gpt.GptPrefill(self.hidden, self.layers, self.heads, self.ffn, self.tokens))

        def inputs(step: int) -> Inputs:
            return {"x": torch.randn(self.batch, self.tokens, self.hidden, generator=generator(seed, step))}

        return Built(module=module, inputs=inputs)
