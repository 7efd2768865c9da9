"""A small decoder-only transformer, once for a whole prompt and once for one token with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Network
from npucompose.schema.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class GptDecode(Network):
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
        return attrs.evolve(super().build(seed), steps=self.steps)

    def network(self) -> nn.Module:
        import torch
        from torch import nn

        from npucompose.models.layers import HIDDEN_SCORE, Block, RmsNorm

        class GptDecode(nn.Module):
            """One token: `x` is its embedding, `position` its place, behind which the cache is hidden.

            The caches are buffers that the step updates in place; they start full of random keys and values, as if a
            prompt had been read.
            """

            slots: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, cache: int) -> None:
                super().__init__()
                self.where = nn.Embedding(cache, hidden)
                self.blocks = nn.ModuleList(Block(hidden, heads, ffn, cache) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("slots", torch.arange(cache))

            def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
                mask = (self.slots > position).to(x.dtype) * HIDDEN_SCORE
                x = x + self.where(position)
                for block in self.blocks:
                    x = block(x, mask, position)
                return self.norm(x)

        return GptDecode(self.hidden, self.layers, self.heads, self.ffn, self.cache)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        x = torch.randn(1, 1, self.hidden, generator=chance)
        return {"x": x, "position": torch.tensor([(self.start + step) % self.cache])}


@frozen(kw_only=True)
class GptPrefill(Network):
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

    def network(self) -> nn.Module:
        import torch
        from torch import nn

        from npucompose.models.layers import HIDDEN_SCORE, Block, RmsNorm

        class GptPrefill(nn.Module):
            """A whole prompt at once: `x` [batch, tokens, hidden] are embeddings, the mask is causal."""

            mask: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, tokens: int) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(Block(hidden, heads, ffn, 0) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("mask", torch.full((tokens, tokens), HIDDEN_SCORE).triu(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = block(x, self.mask)
                return self.norm(x)

        return GptPrefill(self.hidden, self.layers, self.heads, self.ffn, self.tokens)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {"x": torch.randn(self.batch, self.tokens, self.hidden, generator=chance)}
