"""What multi-head latent attention computes before it attends, for one decode step: queries, and the cache entries."""

from __future__ import annotations

import torch
from torch import nn

from npucompose.models.modules.gpt import RmsNorm


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: the two halves of the last dimension turned by the angles."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class Queries(nn.Module):
    """Hidden state -> latent -> heads; the part without position is multiplied into the space of the latent keys."""

    def __init__(self, hidden: int, heads: int, latent: int, kv_latent: int, nope: int, rope: int) -> None:
        super().__init__()
        self.heads, self.nope, self.rope = heads, nope, rope
        self.down = nn.Linear(hidden, latent, bias=False)
        self.norm = RmsNorm(latent)
        self.up = nn.Linear(latent, heads * (nope + rope), bias=False)
        self.absorbed = nn.Parameter(torch.randn(heads, nope, kv_latent) / nope**0.5)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = self.up(self.norm(self.down(x))).view(-1, self.heads, self.nope + self.rope)
        without, turned = q.split((self.nope, self.rope), -1)
        in_latent = torch.bmm(without.transpose(0, 1), self.absorbed).transpose(0, 1)
        return in_latent, rotated(turned, cos.unsqueeze(1), sin.unsqueeze(1))


class Latents(nn.Module):
    """Hidden state -> what goes into the two caches: the normalised latent and the shared key with its position."""

    def __init__(self, hidden: int, latent: int, rope: int) -> None:
        super().__init__()
        self.latent, self.rope = latent, rope
        self.down = nn.Linear(hidden, latent + rope, bias=False)
        self.norm = RmsNorm(latent)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latent, key = self.down(x).split((self.latent, self.rope), -1)
        return self.norm(latent), rotated(key, cos, sin)


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
