"""Layers that models are made of: those of decoders and of convolutional networks, experts whose weights lie in one
tensor, linear layers in int8, attention over a cache in pages. Imports torch: a model imports this inside `network`.
"""

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


def convolution(given: int, channels: int, kernel: int, stride: int = 1, *, bias: bool = True) -> nn.Conv2d:
    """Padded so that stride 1 keeps an image's size; weights as He et al. draw them (arXiv:1502.01852)."""
    made = nn.Conv2d(given, channels, kernel, stride, kernel // 2, bias=bias)
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    return made


class Normed(nn.Sequential):
    """A convolution and its batch norm, with statistics that a training could have left: neither 0 nor 1."""

    def __init__(self, given: int, channels: int, kernel: int, stride: int = 1) -> None:
        norm = nn.BatchNorm2d(channels)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        nn.init.normal_(norm.running_mean, std=0.1)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
        super().__init__(convolution(given, channels, kernel, stride, bias=False), norm)


class BasicBlock(nn.Module):
    """Two convolutions of 3×3 beside a shortcut (He et al., arXiv:1512.03385, figure 5 left and option B)."""

    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = Normed(given, channels, 3, stride), Normed(channels, channels, 3)
        nn.init.constant_(self.second[1].weight, 0.5)  # a sum of many blocks keeps its size  # pyright: ignore
        straight = stride == 1 and given == channels
        self.shortcut = nn.Identity() if straight else Normed(given, channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class DoubleConvolution(nn.Module):
    """Two convolutions of 3×3, each with a ReLU behind it."""

    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.first, self.second = convolution(given, channels, 3), convolution(channels, channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class Up(nn.Module):
    """An image of twice the size beside what the way down had of that size, then two convolutions."""

    def __init__(self, given: int, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(given, channels, 2, stride=2)
        self.convolutions = DoubleConvolution(2 * channels, channels)

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        return self.convolutions(torch.cat((beside, self.up(x)), 1))


def in_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [.., in, out] in int8, scale of each column), as a checkpoint in w8a8 has them."""
    scale = weight.abs().amax(-2) / 127
    return (weight / scale.unsqueeze(-2)).round().to(torch.int8), scale


class Experts(nn.Module):
    """SwiGLU networks, the rows of each expert in a group."""

    def __init__(self, experts: int, hidden: int, ffn: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Parameter((torch.randn(experts, hidden, 2 * ffn) / hidden**0.5).to(dtype))
        self.down = nn.Parameter((torch.randn(experts, ffn, hidden) / ffn**0.5).to(dtype))

    def forward(self, rows: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        groups = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 2}
        inner = torch.ops.npu.npu_grouped_matmul([rows], [self.up], **groups)[0]
        return torch.ops.npu.npu_grouped_matmul([torch.ops.npu.npu_swiglu(inner)], [self.down], **groups)[0]


class QuantisedExperts(nn.Module):
    """The same in int8: rows come with a scale each, and what is between the products gets new ones."""

    up: torch.Tensor
    up_scale: torch.Tensor
    down: torch.Tensor
    down_scale: torch.Tensor

    def __init__(self, experts: int, hidden: int, ffn: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = {torch.float16: 5, torch.bfloat16: 15}[dtype]
        for name, rows, columns in (("up", hidden, 2 * ffn), ("down", ffn, hidden)):
            weight, scale = in_int8(torch.randn(experts, rows, columns) / rows**0.5)
            self.register_buffer(name, weight)
            self.register_buffer(f"{name}_scale", scale)

    def forward(self, rows: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        inner = self._product(rows, self.up, self.up_scale, scales, counts)
        inner, scales = torch.ops.npu.npu_dynamic_quant(torch.ops.npu.npu_swiglu(inner))
        return self._product(inner, self.down, self.down_scale, scales, counts)

    def _product(
        self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, scales: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        return torch.ops.npu.npu_grouped_matmul(
            [rows],
            [weight],
            scale=[scale],
            per_token_scale=[scales],
            group_list=counts,
            group_list_type=1,
            group_type=0,
            split_item=2,
            output_dtype=self.number,
        )[0]


class QuantisedLinear(nn.Module):
    """A linear layer in w8a8: each row becomes int8 by a scale of its own, the product is scaled back."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, width: int, out: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = {torch.float16: 5, torch.bfloat16: 15}[dtype]
        weight, scale = in_int8(torch.randn(width, out) / width**0.5)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, scales = torch.ops.npu.npu_dynamic_quant(x)
        return torch.ops.npu.npu_quant_matmul(
            rows, self.weight, self.scale, pertoken_scale=scales, output_dtype=self.number
        )


MASK = 2048
"""Size of the triangle that sparse_mode=3 takes for a mask, whatever the lengths are."""


class PagedAttention(nn.Module):
    """Projections, rope, the write into the cache, and npu_fused_infer_attention_score over its pages."""

    key_cache: torch.Tensor
    value_cache: torch.Tensor
    mask: torch.Tensor

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, pages: int, page: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.page = heads, kv_heads, head_dim, page
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        for name in ("key_cache", "value_cache"):
            self.register_buffer(name, torch.randn(pages, page, kv_heads, head_dim))
        self.register_buffer("mask", torch.ones(MASK, MASK, dtype=torch.bool).triu(1))

    def _apply(self, fn: object, recurse: bool = True) -> nn.Module:
        mask = self.mask
        super()._apply(fn, recurse)  # type: ignore[arg-type]
        self.mask = self.mask if self.mask.dtype == torch.bool else mask
        return self

    def written(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """The query [tokens, N, D]; key and value of the tokens are in the cache."""
        rows = self.qkv(x).view(1, -1, self.heads + 2 * self.kv_heads, self.head_dim)
        query, key, value = rows.split([self.heads, self.kv_heads, self.kv_heads], 2)
        cos, sin = cos[None, :, None], sin[None, :, None]
        query = torch.ops.npu.npu_rotary_mul(query.contiguous(), cos, sin)[0]
        key = torch.ops.npu.npu_rotary_mul(key.contiguous(), cos, sin)[0]
        torch.ops.npu.npu_scatter_pa_kv_cache(
            key, value[0].contiguous(), self.key_cache, self.value_cache, slots, cache_mode="Norm"
        )
        return query

    def single(self, query: torch.Tensor, block_table: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """One token of each sequence, as [B, N, 1, D]."""
        attended = torch.ops.npu.npu_fused_infer_attention_score(
            query[:, :, None],
            *self._caches(),
            block_table=block_table,
            block_size=self.page,
            actual_seq_lengths_kv=lengths,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            scale=self.head_dim**-0.5,
            input_layout="BNSD",
        )[0]
        return self.o_proj(attended.flatten(1))

    def ragged(
        self, query: torch.Tensor, block_table: torch.Tensor, ends: list[int], lengths: list[int]
    ) -> torch.Tensor:
        """All tokens of all sequences in one row; `ends` are sums, the lengths of the cache are not."""
        attended = torch.ops.npu.npu_fused_infer_attention_score(
            query,
            *self._caches(),
            atten_mask=self.mask,
            block_table=block_table,
            block_size=self.page,
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=lengths,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            scale=self.head_dim**-0.5,
            input_layout="TND",
            sparse_mode=3,
        )[0]
        return self.o_proj(attended.flatten(1))

    def _caches(self) -> list[torch.Tensor]:
        """(pages, tokens, H): the form that takes every layout of the query."""
        return [cache.flatten(2) for cache in (self.key_cache, self.value_cache)]
