"""A small decoder-only transformer, once for a whole prompt and once for one token with a cache."""

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


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, ffn: int, cache: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = RmsNorm(hidden), RmsNorm(hidden)
        self.attention, self.ffn = Attention(hidden, heads, cache), SwiGlu(hidden, ffn)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), mask, position)
        return x + self.ffn(self.ffn_norm(x))


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


class GptDecode(nn.Module):
    """One token: `x` [1, 1, hidden] is its embedding, `position` [1] its place, behind which the cache is hidden.

    The caches are buffers that the step updates in place; they start full of random keys and values, as if a prompt
    had been read.
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
