"""The prolog of multi-head latent attention in a decode step: queries beside the latents that go into the cache."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Model
from npucompose.schema.options import option


@frozen(kw_only=True)
class MlaProlog(Model):
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

    def build(self, seed: int) -> Built:
        import torch

        from npucompose.models.modules import mla
        from npucompose.models.modules.seeding import generator, inference, seeded

        self.check()
        with seeded(seed):
            net = mla.MlaProlog(
                self.hidden, self.heads, self.q_latent, self.kv_latent, self.nope, self.rope, self.positions
            )

        def inputs(step: int) -> Inputs:
            chance = generator(seed, step)
            return {
                "x": torch.randn(self.tokens, self.hidden, generator=chance),
                "position": torch.randint(0, self.positions, (self.tokens,), generator=chance),
            }

        return Built(module=inference(net), inputs=inputs)
