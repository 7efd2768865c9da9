"""One decode step through an NPU attention operator, whose lengths are a list of ints (SymInt[] in the schema)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network, refuse_undivided
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class AttentionDecode(Network):
    """forward(query, key, value, actual_seq_lengths_kv) -> [batch, 1, heads * head_dim].

    The lengths are the question of "will my graph be static?": with shapes=static they are constants and `grow` > 0
    means one more compilation a step; with shapes=dynamic they are symbols.
    """

    name: ClassVar[str] = "attention_decode"
    op: Literal["fia", "ifa"] = option("fia", "npu_fused_infer_attention_score or npu_incre_flash_attention")
    layout: Literal["BNSD", "BSND", "BSH"] = option("BNSD", "input_layout of query, key and value")
    batch: int = option(2, "sequences", ge=1)
    heads: int = option(8, "heads of the query", ge=1)
    kv_heads: int = option(8, "heads of key and value; a divisor of `heads`", ge=1)
    head_dim: int = option(64, "width of a head", ge=1)
    cache: int = option(128, "tokens that key and value hold", ge=1)
    length: int = option(64, "valid tokens of the first sequence; each further one has one more", ge=1)
    grow: int = option(0, "step n gets lengths longer by n * grow", ge=0)
    dtype: Literal["float32", "float16", "bfloat16"] = option("float32", "of every tensor")

    def check(self) -> None:
        refuse_undivided(self.heads, self.kv_heads)
        if self.length + self.batch - 1 > self.cache:
            raise ConfigError(
                f"model.length={self.length}: the last of {self.batch} sequences has {self.length + self.batch - 1} "
                f"tokens, but model.cache holds {self.cache}."
            )

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops

        ops.define()

        class AttentionDecodeModule(torch.nn.Module):
            """The attention of one new token over a key and value cache, then the output projection."""

            def __init__(self, op: str, layout: str, heads: int, kv_heads: int, head_dim: int) -> None:
                super().__init__()
                self.op, self.layout, self.heads, self.kv_heads = op, layout, heads, kv_heads
                self.scale = head_dim**-0.5
                self.o_proj = torch.nn.Linear(heads * head_dim, heads * head_dim, bias=False)

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

        return AttentionDecodeModule(self.op, self.layout, self.heads, self.kv_heads, self.head_dim).to(
            getattr(torch, self.dtype)
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        named: dict[str, object] = {}
        for name, heads, tokens in (
            ("query", self.heads, 1),
            ("key", self.kv_heads, self.cache),
            ("value", self.kv_heads, self.cache),
        ):
            x = torch.randn(self.batch, tokens, heads, self.head_dim, generator=chance).to(dtype)
            named[name] = {"BNSD": x.transpose(1, 2).contiguous(), "BSND": x, "BSH": x.flatten(2)}[self.layout]
        longest = [self.length + n + step * self.grow for n in range(self.batch)]
        return {**named, "actual_seq_lengths_kv": [min(n, self.cache) for n in longest]}
