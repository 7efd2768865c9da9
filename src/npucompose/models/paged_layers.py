"""Attention over a cache in pages as a layer. Imports torch: a model imports this inside `network`."""

from __future__ import annotations

import torch
from torch import nn

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
