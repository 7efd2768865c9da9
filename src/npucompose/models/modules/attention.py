"""One decode step through the NPU's attention operators, as an Ascend model writes it."""

from __future__ import annotations

import torch
from torch import nn


class AttentionDecode(nn.Module):
    """The attention of one new token over a key and value cache, then the output projection."""

    def __init__(self, op: str, layout: str, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.op, self.layout, self.heads, self.kv_heads = op, layout, heads, kv_heads
        self.scale = head_dim**-0.5
        self.o_proj = nn.Linear(heads * head_dim, heads * head_dim, bias=False)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, actual_seq_lengths_kv: list[int]
    ) -> torch.Tensor:
        if self.op == "fia":
            attended = torch.ops.npu.npu_fused_infer_attention_score(
                query,
                key,
                value,
                actual_seq_lengths_kv=actual_seq_lengths_kv,
                num_heads=self.heads,
                num_key_value_heads=self.kv_heads,
                scale=self.scale,
                input_layout=self.layout,
            )[0]
        else:
            attended = torch.ops.npu.npu_incre_flash_attention(
                query,
                key,
                value,
                actual_seq_lengths=actual_seq_lengths_kv,
                num_heads=self.heads,
                num_key_value_heads=self.kv_heads,
                scale_value=self.scale,
                input_layout=self.layout,
            )
        # For one token BNSD, BSND and BSH are the same memory.
        return self.o_proj(attended.reshape(attended.shape[0], 1, -1))
