"""vLLM's attention of a processor, as a recorded step calls it: most of its time for a few tokens is Python.

The same kernels with the same arguments, in the common case: a decoder's own cache, no padded rows. The halves of a
cache are made once instead of twice in each layer of each step, and a kernel is called as the overload that it is.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionType  # pyright: ignore[reportMissingImports]
from vllm.v1.attention.backends.cpu_attn import (  # pyright: ignore[reportMissingImports]
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
)

_store: Any = torch.ops._C.cpu_attn_reshape_and_cache.default
_attend: Any = torch.ops._C.cpu_attention_with_kv_cache.default


class LeanAttention(CPUAttentionBackendImpl):
    """Of a layer that attends to a cache of its own; encoders and attention sinks take vLLM's way."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_common = self.attn_type == AttentionType.DECODER and self.sinks is None
        self._seen: tuple[int, torch.Size] | None = None
        self._halves: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        now, scaled = attn_metadata, output_scale is not None or output_block_scale is not None
        if not self._is_common or scaled or now is None or now.num_actual_tokens != query.shape[0]:
            return super().forward(layer, query, key, value, kv_cache, now, output, output_scale, output_block_scale)
        keys, values = self._halves_of(kv_cache)
        _attend(
            query, keys, values, output, now.query_start_loc, now.seq_lens, self.scale, now.causal, self.alibi_slopes,
            self.sliding_window, now.block_table, self.logits_soft_cap, now.scheduler_metadata, None,
            now.dynamic_causal, layer._k_scale_float, layer._v_scale_float, self.kv_cache_dtype,
        )  # fmt: skip
        return output

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        if not self._is_common:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        keys, values = self._halves_of(kv_cache)
        _store(
            key, value, keys, values, slot_mapping, layer.isa, layer._k_scale_float, layer._v_scale_float,
            self.kv_cache_dtype,
        )  # fmt: skip

    def _halves_of(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of [blocks, heads, block, 2 · head size]: keys and values as vLLM lays them; made anew for another cache. The
        halves hold the cache's memory, so nothing else can come to lie in its place."""
        given = kv_cache.data_ptr(), kv_cache.shape
        if self._halves is None or given != self._seen:
            blocks, heads, block, _ = kv_cache.shape
            keys, values = kv_cache.view((blocks, heads, block * 2, -1)).chunk(2, dim=2)
            self._seen, self._halves = given, (keys, values)
        return self._halves


class LeanAttentionBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[LeanAttention]:
        return LeanAttention
