"""A prefill of several prompts over a cache in pages, as vllm-ascend's attention_v1 calls it: all tokens in one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal, refuse_odd, refuse_undivided
from npucompose.models.paging import pages_of
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class PagedPrefill(Network):
    """forward(x [tokens, hidden], cos, sin, slots, block_table, actual_seq_lengths, actual_seq_lengths_kv).

    The queries of all prompts lie in one row (TND): `actual_seq_lengths` are sums, where each prompt ends. `cached`
    tokens of each are in the cache already, as behind a shared prefix or an earlier chunk.
    """

    name: ClassVar[str] = "paged_prefill"
    prompts: int = option(3, "sequences", ge=1)
    tokens: int = option(12, "new tokens of the first prompt; each further one has one more", ge=1)
    cached: int = option(20, "tokens of each prompt that the cache holds already", ge=0)
    hidden: int = option(256, "width", ge=1)
    heads: int = option(8, "heads of the query", ge=1)
    kv_heads: int = option(2, "heads of key and value; a divisor of `heads`", ge=1)
    head_dim: int = option(64, "width of a head", ge=2)
    page: int = option(16, "tokens of a page", ge=1)
    dtype: Literal["float16", "bfloat16", "float32"] = option("float16", "of every tensor")

    def check(self) -> None:
        refuse_undivided(self.heads, self.kv_heads)
        refuse_odd("head_dim", self.head_dim)

    @property
    def counts(self) -> list[int]:
        """New tokens of each prompt."""
        return [self.tokens + n for n in range(self.prompts)]

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops
        from npucompose.models.paged_layers import PagedAttention

        ops.define()
        pages = pages_of(self.prompts, self.cached + self.counts[-1], self.page)

        class PagedPrefillModule(torch.nn.Module):
            """Keys and values of the new tokens are written at their slots; each token attends to all before it."""

            def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int, page: int) -> None:
                super().__init__()
                self.norm = torch.nn.Parameter(torch.ones(hidden))
                self.attention = PagedAttention(hidden, heads, kv_heads, head_dim, pages, page)

            def forward(
                self,
                x: torch.Tensor,
                cos: torch.Tensor,
                sin: torch.Tensor,
                slots: torch.Tensor,
                block_table: torch.Tensor,
                actual_seq_lengths: list[int],
                actual_seq_lengths_kv: list[int],
            ) -> torch.Tensor:
                normed = torch.ops.npu.npu_rms_norm(x, self.norm, 1e-6)[0]
                query = self.attention.written(normed, cos, sin, slots)
                return x + self.attention.ragged(query, block_table, actual_seq_lengths, actual_seq_lengths_kv)

        return PagedPrefillModule(self.hidden, self.heads, self.kv_heads, self.head_dim, self.page).to(
            getattr(torch, self.dtype)
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        from itertools import accumulate

        from npucompose.models.paging import angles, block_table, slots

        table = block_table(self.prompts, self.cached + self.counts[-1], self.page, chance)
        places = [(n, self.cached + at) for n, count in enumerate(self.counts) for at in range(count)]
        cos, sin = angles([position for _, position in places], self.head_dim, self.dtype)
        return {
            "x": normal(chance, sum(self.counts), self.hidden).to(cos.dtype),
            "cos": cos,
            "sin": sin,
            "slots": slots(table, places, self.page),
            "block_table": table,
            "actual_seq_lengths": list(accumulate(self.counts)),
            "actual_seq_lengths_kv": [self.cached + count for count in self.counts],
        }
