"""Steps over a cache in pages, as vllm-ascend calls them: one token each, prompts in one row, latent attention.

Their inputs say which pages a sequence has, where a token is written, and the angles of rope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal, refuse_odd, refuse_undivided
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn


def pages_of(batch: int, longest: int, page: int) -> int:
    """Pages that so many sequences of so many tokens need in all."""
    return batch * -(-longest // page)


def block_table(batch: int, longest: int, page: int, chance: Generator) -> Tensor:
    """[batch, pages of a sequence] int32: every page once, in an order of chance."""
    import torch

    return torch.randperm(pages_of(batch, longest, page), generator=chance).int().view(batch, -1)


def slots(table: Tensor, tokens: Sequence[tuple[int, int]], page: int) -> Tensor:
    """int32, page · size + place, for each (sequence, its token's number)."""
    import torch

    places = [int(table[sequence, token // page]) * page + token % page for sequence, token in tokens]
    return torch.tensor(places, dtype=torch.int32)


def angles(positions: Sequence[int], width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """(cos, sin) [tokens, width], the second half as the first, as npu_rotary_mul takes them."""
    import torch

    steps = torch.tensor(positions)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    steps = torch.cat([steps, steps], -1)
    return steps.cos().to(getattr(torch, dtype)), steps.sin().to(getattr(torch, dtype))


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
        from npucompose.models.layers import PagedAttention

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
        from npucompose.models.layers import PagedAttention

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


@frozen(kw_only=True)
class MlaDecode(Network):
    """forward(x [batch, hidden], cos, sin, slots, block_table, kv_cache, rope_cache, actual_seq_kvlen) -> as x.

    npu_kv_rmsnorm_rope_cache writes one latent row of each sequence; every head attends to the latents, which are its
    keys and its values. What comes out is taken up by npu_transpose_batchmatmul.
    """

    name: ClassVar[str] = "mla_decode"
    batch: int = option(4, "sequences, one new token each", ge=1)
    hidden: int = option(256, "width", ge=1)
    heads: int = option(8, "attention heads", ge=1)
    nope: int = option(64, "width of a head of the query without position", ge=1)
    rope: int = option(64, "width of a head with rotary position", ge=2)
    latent: int = option(512, "width of the latent that is cached", ge=1)
    value: int = option(64, "width of a head of the values", ge=1)
    page: int = option(16, "tokens of a page", ge=1)
    length: int = option(40, "valid tokens of the first sequence; each further one has one more", ge=1)
    dtype: Literal["float16", "bfloat16", "float32"] = option("float16", "of every tensor")

    def check(self) -> None:
        refuse_odd("rope", self.rope)

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops

        ops.define()

        class MlaDecodeModule(torch.nn.Module):
            """Queries into the latent space, the latent row into its cache, attention there, values out of it."""

            def __init__(
                self, hidden: int, heads: int, nope: int, rope: int, latent: int, value: int, page: int
            ) -> None:
                super().__init__()
                self.heads, self.nope, self.rope, self.latent, self.page = heads, nope, rope, latent, page
                self.scale = (nope + rope) ** -0.5
                self.norm = torch.nn.Parameter(torch.ones(hidden))
                self.q_proj = torch.nn.Linear(hidden, heads * (nope + rope), bias=False)
                self.kv_proj = torch.nn.Linear(hidden, latent + rope, bias=False)
                self.kv_norm = torch.nn.Parameter(torch.ones(latent))
                self.up_keys = torch.nn.Parameter(torch.randn(heads, nope, latent) / nope**0.5)
                self.up_values = torch.nn.Parameter(torch.randn(heads, latent, value) / latent**0.5)
                self.o_proj = torch.nn.Linear(heads * value, hidden, bias=False)

            def forward(
                self,
                x: torch.Tensor,
                cos: torch.Tensor,
                sin: torch.Tensor,
                slots: torch.Tensor,
                block_table: torch.Tensor,
                kv_cache: torch.Tensor,
                rope_cache: torch.Tensor,
                actual_seq_kvlen: list[int],
            ) -> torch.Tensor:
                normed = torch.ops.npu.npu_rms_norm(x, self.norm, 1e-6)[0]
                query = self.q_proj(normed).view(-1, self.heads, self.nope + self.rope)
                plain, turned = query.split([self.nope, self.rope], -1)
                plain = torch.bmm(plain.transpose(0, 1), self.up_keys).transpose(0, 1)  # batch, heads, latent
                turned = torch.ops.npu.npu_interleave_rope(turned[:, :, None].contiguous(), cos, sin)
                rope_cache, kv_cache, _, _ = torch.ops.npu.npu_kv_rmsnorm_rope_cache(
                    self.kv_proj(normed)[:, None, None],
                    self.kv_norm,
                    cos,
                    sin,
                    slots,
                    rope_cache,
                    kv_cache,
                    epsilon=1e-6,
                    cache_mode="PA",
                )
                keys = kv_cache.view(-1, 1, self.page, self.latent)
                attended = torch.ops.npu.npu_fused_infer_attention_score_v2(
                    plain[:, :, None].contiguous(),
                    keys,
                    keys,
                    query_rope=turned,
                    key_rope=rope_cache.view(-1, 1, self.page, self.rope),
                    block_table=block_table,
                    block_size=self.page,
                    actual_seq_kvlen=actual_seq_kvlen,
                    num_query_heads=self.heads,
                    num_key_value_heads=1,
                    softmax_scale=self.scale,
                    input_layout="BNSD_NBSD",
                )[0]
                latents = attended.view(self.heads, -1, self.latent)
                values = torch.ops.npu.npu_transpose_batchmatmul(latents, self.up_values, perm_y=[1, 0, 2])
                return x + self.o_proj(values.flatten(1))

        return MlaDecodeModule(self.hidden, self.heads, self.nope, self.rope, self.latent, self.value, self.page).to(
            getattr(torch, self.dtype)
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        lengths = [self.length + n for n in range(self.batch)]
        table = block_table(self.batch, lengths[-1], self.page, chance)
        cos, sin = (one[:, None, None] for one in angles([length - 1 for length in lengths], self.rope, self.dtype))
        head = (pages_of(self.batch, lengths[-1], self.page), self.page, 1)
        return {
            "x": normal(chance, self.batch, self.hidden).to(cos.dtype),
            "cos": cos,
            "sin": sin,
            "slots": slots(table, [(n, length - 1) for n, length in enumerate(lengths)], self.page).long(),
            "block_table": table,
            "kv_cache": normal(chance, *head, self.latent).to(cos.dtype),
            "rope_cache": normal(chance, *head, self.rope).to(cos.dtype),
            "actual_seq_kvlen": lengths,
        }
