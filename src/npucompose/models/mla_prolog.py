"""The prolog of multi-head latent attention in a decode step: queries beside the latents that go into the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


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
    positions: int = option(1024, "positions that have angles", ge=1)

    def check(self) -> None:
        if self.rope % 2:
            raise ConfigError(f"model.rope={self.rope} must be even: its halves are turned against each other.")

    def network(self) -> nn.Module:
        import torch
        from torch import nn

        from npucompose.models.layers import Latents, Queries, RmsNorm

        class MlaProlog(nn.Module):
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

        return MlaProlog(self.hidden, self.heads, self.q_latent, self.kv_latent, self.nope, self.rope, self.positions)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {
            "x": torch.randn(self.tokens, self.hidden, generator=chance),
            "position": torch.randint(0, self.positions, (self.tokens,), generator=chance),
        }
