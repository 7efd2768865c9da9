"""One decode step of multi-head latent attention over a paged cache, as vllm-ascend's mla_v1 calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.models.base import Inputs, Network, normal, refuse_odd
from npucompose.models.paging import pages_of
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


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
        from npucompose.models.paging import angles, block_table, slots

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
