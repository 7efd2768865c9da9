"""Layers that several models are made of. Imports torch: a model imports this inside `network`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

HIDDEN_SCORE = -1.0e9
"""Added to a score that does not count. Finite, so that no row of a softmax can become NaN."""


class RmsNorm(nn.Module):
    """Written out instead of nn.RMSNorm: the same operators in every version of torch."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SwiGlu(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Multi-head attention written out. With `cache` > 0 it holds that many keys and values and takes one token."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, hidden: int, heads: int, cache: int) -> None:
        super().__init__()
        self.heads, self.head_dim, self.cache = heads, hidden // heads, cache
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        if cache:
            for name in ("keys", "values"):
                self.register_buffer(name, torch.randn(1, heads, cache, self.head_dim))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        q, k, v = (
            linear(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        if position is not None:
            # scatter_, because TorchAir's GE converters take aten.scatter and neither index_copy nor index_put.
            slot = position.view(1, 1, 1, 1).expand(1, self.heads, 1, self.head_dim)
            k, v = self.keys.scatter_(2, slot, k), self.values.scatter_(2, slot, v)
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head_dim**-0.5 + mask
        attended = torch.matmul(torch.softmax(scores, -1), v)
        return self.o(attended.transpose(1, 2).reshape(batch, tokens, hidden))


class DecoderBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int, cache: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = RmsNorm(hidden), RmsNorm(hidden)
        self.attention, self.ffn = Attention(hidden, heads, cache), SwiGlu(hidden, ffn)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), mask, position)
        return x + self.ffn(self.ffn_norm(x))


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
