"""Decoders of language models and the parts of them that Ascend's own put on two streams, or give a list of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Built, Inputs, Network, normal, refuse_odd, refuse_undivided
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class GptDecode(Network):
    """forward(x [1, 1, hidden], position [1]) -> [1, 1, hidden]; step n decodes position start + n."""

    name: ClassVar[str] = "gpt_decode"
    hidden: int = option(256, "width", ge=1)
    layers: int = option(4, "blocks", ge=1)
    heads: int = option(8, "attention heads; a divisor of `hidden`", ge=1)
    ffn: int = option(512, "inner width of the SwiGLU network", ge=1)
    cache: int = option(128, "tokens that the caches hold", ge=1)
    start: int = option(64, "position of the first step", ge=0)
    steps: int = option(20, "positions that a comparison with eager decodes", ge=1)

    def check(self) -> None:
        if self.hidden % self.heads:
            raise ConfigError(f"model.heads={self.heads} does not divide model.hidden={self.hidden}.")
        if self.start + self.steps > self.cache:
            raise ConfigError(
                f"model.start={self.start} and model.steps={self.steps} end behind the cache of {self.cache}: "
                f"start + steps may be at most model.cache."
            )

    def build(self, seed: int) -> Built:
        return attrs.evolve(super().build(seed), steps=self.steps)

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import HIDDEN_SCORE, DecoderBlock, RmsNorm

        class GptDecodeModule(torch.nn.Module):
            """One token: `x` is its embedding, `position` its place, behind which the cache is hidden.

            The caches are buffers that the step updates in place; they start full of random keys and values, as if a
            prompt had been read.
            """

            slots: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, cache: int) -> None:
                super().__init__()
                self.where = torch.nn.Embedding(cache, hidden)
                self.blocks = torch.nn.ModuleList(DecoderBlock(hidden, heads, ffn, cache) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("slots", torch.arange(cache))

            def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
                mask = (self.slots > position).to(x.dtype) * HIDDEN_SCORE
                x = x + self.where(position)
                for block in self.blocks:
                    x = block(x, mask, position)
                return self.norm(x)

        return GptDecodeModule(self.hidden, self.layers, self.heads, self.ffn, self.cache)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        x = torch.randn(1, 1, self.hidden, generator=chance)
        return {"x": x, "position": torch.tensor([(self.start + step) % self.cache])}


@frozen(kw_only=True)
class GptPrefill(Network):
    """forward(x [batch, tokens, hidden]) -> [batch, tokens, hidden], causally masked."""

    name: ClassVar[str] = "gpt_prefill"
    hidden: int = option(1024, "width", ge=1)
    layers: int = option(8, "blocks", ge=1)
    heads: int = option(16, "attention heads; a divisor of `hidden`", ge=1)
    ffn: int = option(2048, "inner width of the SwiGLU network", ge=1)
    batch: int = option(1, "prompts", ge=1)
    tokens: int = option(128, "tokens of a prompt", ge=1)

    def check(self) -> None:
        if self.hidden % self.heads:
            raise ConfigError(f"model.heads={self.heads} does not divide model.hidden={self.hidden}.")

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import HIDDEN_SCORE, DecoderBlock, RmsNorm

        class GptPrefillModule(torch.nn.Module):
            """A whole prompt at once: `x` [batch, tokens, hidden] are embeddings, the mask is causal."""

            mask: torch.Tensor

            def __init__(self, hidden: int, layers: int, heads: int, ffn: int, tokens: int) -> None:
                super().__init__()
                self.blocks = torch.nn.ModuleList(DecoderBlock(hidden, heads, ffn, 0) for _ in range(layers))
                self.norm = RmsNorm(hidden)
                self.register_buffer("mask", torch.full((tokens, tokens), HIDDEN_SCORE).triu(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    x = block(x, self.mask)
                return self.norm(x)

        return GptPrefillModule(self.hidden, self.layers, self.heads, self.ffn, self.tokens)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.batch, self.tokens, self.hidden)}


@frozen(kw_only=True)
class MoeSharedExpert(Network):
    """forward(x [tokens, hidden]) -> x + routed experts(x) + shared expert(x); no shape depends on data."""

    name: ClassVar[str] = "moe_shared_expert"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(256, "inner width of an expert", ge=1)
    experts: int = option(4, "routed experts", ge=1)
    top_k: int = option(2, "experts chosen for a token", ge=1)
    shared_ffn: int = option(1024, "inner width of the shared expert", ge=1)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(f"model.top_k={self.top_k} is more than model.experts={self.experts}.")

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import SwiGlu

        class MoeSharedExpertModule(torch.nn.Module):
            """Every expert computes every token and the router's weight, zero for all but `top_k`, decides what counts.

            The shared expert needs nothing of the router and the experts: the branch that Ascend models put on a second
            stream.
            """

            def __init__(self, hidden: int, ffn: int, experts: int, top_k: int, shared_ffn: int) -> None:
                super().__init__()
                self.top_k = top_k
                self.router = torch.nn.Linear(hidden, experts, bias=False)
                self.gate = torch.nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.up = torch.nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.down = torch.nn.Parameter(torch.randn(experts, ffn, hidden) / ffn**0.5)
                self.shared_expert = SwiGlu(hidden, shared_ffn)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                routed = self._routed(x)
                return x + routed + self.shared_expert(x)

            def _routed(self, x: torch.Tensor) -> torch.Tensor:
                chances = torch.softmax(self.router(x), -1)
                best, which = torch.topk(chances, self.top_k, dim=-1)
                best = best / best.sum(-1, keepdim=True)
                weights = torch.zeros_like(chances).scatter(-1, which, best)
                # [experts, tokens, hidden]: a view, so each product reads the one x
                tokens = x.unsqueeze(0).expand(self.gate.shape[0], -1, -1)
                inner = torch.nn.functional.silu(torch.bmm(tokens, self.gate)) * torch.bmm(tokens, self.up)
                return (torch.bmm(inner, self.down) * weights.t().unsqueeze(-1)).sum(0)

        return MoeSharedExpertModule(self.hidden, self.ffn, self.experts, self.top_k, self.shared_ffn)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        return {"x": normal(chance, self.tokens, self.hidden)}


@frozen(kw_only=True)
class MlaProlog(Network):
    """forward(x [tokens, hidden], position [tokens]) -> (query in latent space, rotated query, latent, rotated key)."""

    name: ClassVar[str] = "mla_prolog"
    tokens: int = option(16, "sequences in the batch, one new token each", ge=1)
    hidden: int = option(1024, "width", ge=1)
    heads: int = option(16, "attention heads", ge=1)
    q_latent: int = option(384, "width of the latent that queries come from", ge=1)
    kv_latent: int = option(256, "width of the latent that is cached", ge=1)
    nope: int = option(64, "width of a head without position", ge=1)
    rope: int = option(32, "width of a head with rotary position", ge=2)
    positions: int = option(1024, "positions with precomputed angles", ge=1)

    def check(self) -> None:
        refuse_odd("rope", self.rope)

    def network(self) -> nn.Module:
        import torch

        from npucompose.models.layers import Latents, Queries, RmsNorm

        class MlaPrologModule(torch.nn.Module):
            """The queries need nothing of the cache entries: the branches that Ascend's decoders put on two streams."""

            angles: torch.Tensor

            def __init__(
                self, hidden: int, heads: int, q_latent: int, kv_latent: int, nope: int, rope: int, positions: int
            ) -> None:
                super().__init__()
                self.norm = RmsNorm(hidden)
                self.queries = Queries(hidden, heads, q_latent, kv_latent, nope, rope)
                self.latents = Latents(hidden, kv_latent, rope)
                steps = torch.arange(positions).unsqueeze(1) * 10000.0 ** (-torch.arange(0, rope, 2) / rope)
                self.register_buffer("angles", steps)

            def forward(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
                angles = self.angles[position]
                cos, sin = angles.cos(), angles.sin()
                x = self.norm(x)
                return *self.queries(x, cos, sin), *self.latents(x, cos, sin)

        return MlaPrologModule(
            self.hidden, self.heads, self.q_latent, self.kv_latent, self.nope, self.rope, self.positions
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {
            "x": torch.randn(self.tokens, self.hidden, generator=chance),
            "position": torch.randint(0, self.positions, (self.tokens,), generator=chance),
        }


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
