"""Decoders of language models and the parts of them that Ascend's own put on two streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Network, normal, refuse_odd
from npucompose.table.options import option

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

        from npucompose.models.layers import HIDDEN_SCORE, DecoderBlock, RmsNorm

        class GptDecodeModule(torch.nn.Module):
            """One token: `x` is its embedding, `position` its place, behind which the cache is hidden.

            The caches are buffers that the step updates in place; they start full of random keys and values, as if a
            prompt had been read.
            """

            slots: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, cache: int) -> None:
                super().__init__()
                self.where = torch.nn.Embedding(cache, hidden)
                self.blocks = torch.nn.ModuleList(DecoderBlock(hidden, heads, ffn, cache) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("slots", torch.arange(cache))

            def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
                mask = (self.slots > position).to(x.dtype) * HIDDEN_SCORE
                x = x + self.where(position)
                for block in self.blocks:
                    x = block(x, mask, position)
                return self.norm(x)

        return GptDecodeModule(self.hidden, self.layers, self.heads, self.ffn, self.cache)

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

        from npucompose.models.layers import HIDDEN_SCORE, DecoderBlock, RmsNorm

        class GptPrefillModule(torch.nn.Module):
            """A whole prompt at once: `x` [batch, tokens, hidden] are embeddings, the mask is causal."""

            mask: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, tokens: int) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList(DecoderBlock(hidden, heads, ffn, 0) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("mask", torch.full((tokens, tokens), HIDDEN_SCORE).triu(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = block(x, self.mask)
                return self.norm(x)

        return GptPrefillModule(self.hidden, self.layers, self.heads, self.ffn, self.tokens)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.batch, self.tokens, self.hidden)}


@frozen(kw_only=True)
class MoeSharedExpert(Network):
    """forward(x [tokens, hidden]) -> x + routed experts(x) + shared expert(x); no shape depends on data."""

    name: ClassVar[str] = "moe_shared_expert"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(256, "inner width of an expert", ge=1)
    experts: int = option(4, "routed experts", ge=1)
    top_k: int = option(2, "experts chosen for a token", ge=1)
    shared_ffn: int = option(1024, "inner width of the shared expert", ge=1)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(f"model.top_k={self.top_k} is more than model.experts={self.experts}.")

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import SwiGlu

        class MoeSharedExpertModule(torch.nn.Module):
            """Every expert computes every token and the router's weight, zero for all but `top_k`, decides what counts.

            The shared expert needs nothing of the router and the experts: the branch that Ascend models put on a second
            stream.
            """

            def __init__(self, hidden: int, ffn: int, experts: int, top_k: int, shared_ffn: int) -> None:
                super().__init__()
                self.top_k = top_k
                self.router = torch.nn.Linear(hidden, experts, bias=False)
                self.gate = torch.nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.up = torch.nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.down = torch.nn.Parameter(torch.randn(experts, ffn, hidden) / ffn**0.5)
                self.shared_expert = SwiGlu(hidden, shared_ffn)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                routed = self._routed(x)
                return x + routed + self.shared_expert(x)

            def _routed(self, x: torch.Tensor) -> torch.Tensor:
                chances = torch.softmax(self.router(x), -1)
                best, which = torch.topk(chances, self.top_k, dim=-1)
                best = best / best.sum(-1, keepdim=True)
                weights = torch.zeros_like(chances).scatter(-1, which, best)
                # [experts, tokens, hidden]: a view, so each product reads the one x
                tokens = x.unsqueeze(0).expand(self.gate.shape[0], -1, -1)
                inner = torch.nn.functional.silu(torch.bmm(tokens, self.gate)) * torch.bmm(tokens, self.up)
                return (torch.bmm(inner, self.down) * weights.t().unsqueeze(-1)).sum(0)

        return MoeSharedExpertModule(self.hidden, self.ffn, self.experts, self.top_k, self.shared_ffn)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.tokens, self.hidden)}


@frozen(kw_only=True)
class MlaProlog(Network):
    """forward(x [tokens, hidden], position [tokens]) -> (query in latent space, rotated query, latent, rotated key)."""

    name: ClassVar[str] = "mla_prolog"
    tokens: int = option(16, "sequences in the batch, one new token each", ge=1)
    hidden: int = option(1024, "width", ge=1)
    heads: int = option(16, "attention heads", ge=1)
    q_latent: int = option(384, "width of the latent that queries come from", ge=1)
    kv_latent: int = option(256, "width of the latent that is cached", ge=1)
    nope: int = option(64, "width of a head without position", ge=1)
    rope: int = option(32, "width of a head with rotary position", ge=2)
    positions: int = option(1024, "positions with precomputed angles", ge=1)

    def check(self) -> None:
        refuse_odd("rope", self.rope)

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import Latents, Queries, RmsNorm

        class MlaPrologModule(torch.nn.Module):
            """The queries need nothing of the cache entries: the branches that Ascend's decoders put on two streams."""

            angles: torch.Tensor

            def __init__(
                self, hidden: int, heads: int, q_latent: int, kv_latent: int, nope: int, rope: int, positions: int
            ) -> None:
                super().__init__()
                self.norm = RmsNorm(hidden)
                self.queries = Queries(hidden, heads, q_latent, kv_latent, nope, rope)
                self.latents = Latents(hidden, kv_latent, rope)
                steps = torch.arange(positions).unsqueeze(1) * 10000.0 ** (-torch.arange(0, rope, 2) / rope)
                self.register_buffer("angles", steps)

            def forward(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
                angles = self.angles[position]
                cos, sin = angles.cos(), angles.sin()
                x = self.norm(x)
                return *self.queries(x, cos, sin), *self.latents(x, cos, sin)

        return MlaPrologModule(
            self.hidden, self.heads, self.q_latent, self.kv_latent, self.nope, self.rope, self.positions
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {
            "x": torch.randn(self.tokens, self.hidden, generator=chance),
            "position": torch.randint(0, self.positions, (self.tokens,), generator=chance),
        }
