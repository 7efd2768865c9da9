"""One decode step over a cache in pages, as vllm-ascend's attention_v1 calls it: norm, rope, cache write, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal, refuse_odd, refuse_undivided
from npucompose.models.paging import pages_of
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class PagedDecode(Network):
    """forward(x [batch, hidden], cos, sin, slots, block_table, actual_seq_lengths_kv) -> [batch, hidden].

    The lengths are a list of ints, which vllm-ascend hands over so that the host computes the tiling. The caches are
    buffers that the step writes one token of each sequence into.
    """

    name: ClassVar[str] = "paged_decode"
    layout: Literal["BNSD", "TND"] = option("BNSD", "input_layout of the query")
    batch: int = option(4, "sequences, one new token each", ge=1)
    hidden: int = option(256, "width", ge=1)
    heads: int = option(8, "heads of the query", ge=1)
    kv_heads: int = option(2, "heads of key and value; a divisor of `heads`", ge=1)
    head_dim: int = option(64, "width of a head", ge=2)
    page: int = option(16, "tokens of a page", ge=1)
    length: int = option(40, "valid tokens of the first sequence; each further one has one more", ge=1)
    grow: int = option(0, "step n gets lengths longer by n * grow", ge=0)
    dtype: Literal["float16", "bfloat16", "float32"] = option("float16", "of every tensor")

    def check(self) -> None:
        refuse_undivided(self.heads, self.kv_heads)
        refuse_odd("head_dim", self.head_dim)

    @property
    def longest(self) -> int:
        """Tokens that the block table has room for in each sequence."""
        return self.length + self.batch - 1 + 2 * self.grow

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops
        from npucompose.models.paged_layers import PagedAttention

        ops.define()
        pages = pages_of(self.batch, self.longest, self.page)

        class PagedDecodeModule(torch.nn.Module):
            """One token of each sequence: key and value are written at its slot, then it attends to all before."""

            def __init__(self, hidden: int, layout: str, heads: int, kv_heads: int, head_dim: int, page: int) -> None:
                super().__init__()
                self.layout = layout
                self.norm = torch.nn.Parameter(torch.ones(hidden))
                self.attention = PagedAttention(hidden, heads, kv_heads, head_dim, pages, page)

            def forward(
                self,
                x: torch.Tensor,
                cos: torch.Tensor,
                sin: torch.Tensor,
                slots: torch.Tensor,
                block_table: torch.Tensor,
                actual_seq_lengths_kv: list[int],
            ) -> torch.Tensor:
                normed = torch.ops.npu.npu_rms_norm(x, self.norm, 1e-6)[0]
                query = self.attention.written(normed, cos, sin, slots)
                if self.layout == "TND":
                    ends = list(range(1, x.shape[0] + 1))
                    return x + self.attention.ragged(query, block_table, ends, actual_seq_lengths_kv)
                return x + self.attention.single(query, block_table, actual_seq_lengths_kv)

        return PagedDecodeModule(self.hidden, self.layout, self.heads, self.kv_heads, self.head_dim, self.page).to(
            getattr(torch, self.dtype)
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        from npucompose.models.paging import angles, block_table, slots

        lengths = [min(self.length + n + step * self.grow, self.longest) for n in range(self.batch)]
        table = block_table(self.batch, self.longest, self.page, chance)
        cos, sin = angles([length - 1 for length in lengths], self.head_dim, self.dtype)
        return {
            "x": normal(chance, self.batch, self.hidden).to(cos.dtype),
            "cos": cos,
            "sin": sin,
            "slots": slots(table, [(n, length - 1) for n, length in enumerate(lengths)], self.page),
            "block_table": table,
            "actual_seq_lengths_kv": lengths,
        }
