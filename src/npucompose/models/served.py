"""Parts of a served model as vllm-ascend calls them: experts by products in groups (fused_moe), routed there and back
with no size by data; linear layers in w8a8 with scales made while the model runs (w8a8_dynamic); what chooses a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network, normal
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class MoeGrouped(Network):
    """forward(x [tokens, hidden]) -> x + experts(x).

    npu_moe_init_routing_v2 sorts the rows by expert and counts them, npu_grouped_matmul multiplies each group with its
    expert's weights, npu_moe_finalize_routing brings the rows back. The counts stay on the device. `combine=unpermute`
    brings them back by npu_moe_token_unpermute, for which the wheel has no GE converter: mode=npugraph_ex captures it.
    """

    name: ClassVar[str] = "moe_grouped"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(128, "width", ge=1)
    ffn: int = option(128, "inner width of an expert", ge=1)
    experts: int = option(8, "experts", ge=1)
    top_k: int = option(2, "experts chosen for a token", ge=1)
    quant: Literal["none", "w8a8"] = option("none", "w8a8: weights in int8, rows made int8 while the model runs")
    combine: Literal["finalize", "unpermute"] = option(
        "finalize", "npu_moe_finalize_routing or npu_moe_token_unpermute"
    )
    dtype: Literal["float16", "bfloat16"] = option("float16", "of every tensor that is no int8")

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(f"model.top_k={self.top_k} is more than model.experts={self.experts}.")

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops
        from npucompose.models.layers import Experts, QuantisedExperts

        ops.define()

        class MoeGroupedModule(torch.nn.Module):
            """Gate, rows to their experts, the experts, rows back."""

            def __init__(
                self, hidden: int, ffn: int, experts: int, top_k: int, quantised: bool, combine: str, dtype: torch.dtype
            ) -> None:
                super().__init__()
                self.experts, self.top_k, self.combine = experts, top_k, combine
                self.quant_mode = 1 if quantised else -1
                self.gate = torch.nn.Linear(hidden, experts, bias=False, dtype=dtype)
                self.inner = (QuantisedExperts if quantised else Experts)(experts, hidden, ffn, dtype)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weights, chosen, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(self.gate(x), None, self.top_k)
                weights = weights / weights.sum(-1, keepdim=True)
                rows, where, counts, scales = torch.ops.npu.npu_moe_init_routing_v2(
                    x,
                    chosen,
                    active_num=x.shape[0] * self.top_k,
                    expert_num=self.experts,
                    expert_tokens_num_type=1,
                    expert_tokens_num_flag=True,
                    active_expert_range=[0, self.experts],
                    quant_mode=self.quant_mode,
                )
                done = self.inner(rows, scales, counts)
                if self.combine == "unpermute":
                    return x + torch.ops.npu.npu_moe_token_unpermute(done, where, weights)
                return torch.ops.npu.npu_moe_finalize_routing(done, x, None, None, weights, where, None, 2)

        return MoeGroupedModule(
            self.hidden,
            self.ffn,
            self.experts,
            self.top_k,
            self.quant == "w8a8",
            self.combine,
            getattr(torch, self.dtype),
        )

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {"x": normal(chance, self.tokens, self.hidden).to(getattr(torch, self.dtype))}


@frozen(kw_only=True)
class W8a8Linear(Network):
    """forward(x [tokens, hidden], residual) -> (x, residual): npu_add_rms_norm, then a SwiGLU network in int8."""

    name: ClassVar[str] = "w8a8_linear"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(512, "inner width", ge=1)
    dtype: Literal["float16", "bfloat16"] = option("float16", "of every tensor that is no int8")

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops
        from npucompose.models.layers import QuantisedLinear

        ops.define()

        class W8a8LinearModule(torch.nn.Module):
            """Norm of the sum, and two layers whose rows are made int8 one by one."""

            def __init__(self, hidden: int, ffn: int, dtype: torch.dtype) -> None:
                super().__init__()
                self.norm = torch.nn.Parameter(torch.ones(hidden, dtype=dtype))
                self.up = QuantisedLinear(hidden, 2 * ffn, dtype)
                self.down = QuantisedLinear(ffn, hidden, dtype)

            def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                normed, _, residual = torch.ops.npu.npu_add_rms_norm(x, residual, self.norm, 1e-6)
                return self.down(torch.ops.npu.npu_swiglu(self.up(normed))), residual

        return W8a8LinearModule(self.hidden, self.ffn, getattr(torch, self.dtype))

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        return {name: normal(chance, self.tokens, self.hidden).to(dtype) for name in ("x", "residual")}


@frozen(kw_only=True)
class SamplingTail(Network):
    """forward(x [batch, hidden], temperature, top_p, top_k, noise) -> (tokens [batch], their log-probabilities).

    Drawn is the token with the greatest probability / noise, the noise being exponential: no torch.multinomial, which
    waits for the device. `filter`: by sorting, or by npu_top_k_top_p, for which the wheel has no GE converter.
    """

    name: ClassVar[str] = "sampling_tail"
    batch: int = option(4, "sequences", ge=1)
    hidden: int = option(256, "width", ge=1)
    vocabulary: int = option(2048, "tokens to choose from", ge=2)
    filter: Literal["sort", "npu"] = option("sort", "top-k and top-p by torch.sort, or by npu_top_k_top_p")
    dtype: Literal["float16", "bfloat16", "float32"] = option("float16", "of x and the weights; logits are float32")

    def network(self) -> nn.Module:
        import torch

        from npucompose import ops

        ops.define()

        class SamplingTailModule(torch.nn.Module):
            """Norm, logits over the temperature, all but the likeliest hidden, one token drawn of each row."""

            def __init__(self, hidden: int, vocabulary: int, npu: bool) -> None:
                super().__init__()
                self.npu = npu
                self.norm = torch.nn.Parameter(torch.ones(hidden))
                self.head = torch.nn.Linear(hidden, vocabulary, bias=False)

            def forward(
                self,
                x: torch.Tensor,
                temperature: torch.Tensor,
                top_p: torch.Tensor,
                top_k: torch.Tensor,
                noise: torch.Tensor,
            ) -> tuple[torch.Tensor, torch.Tensor]:
                logits = self.head(torch.ops.npu.npu_rms_norm(x, self.norm, 1e-6)[0]).float() / temperature[:, None]
                if self.npu:
                    kept = torch.ops.npu.npu_top_k_top_p(logits, top_p, top_k)
                else:
                    kept = self._kept(logits, top_p, top_k)
                drawn = (torch.softmax(kept, -1) / noise).argmax(-1)
                return drawn, torch.log_softmax(logits, -1).gather(-1, drawn[:, None])[:, 0]

            def _kept(self, logits: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
                """Logits with -inf where more than 1 - p of the probability is, and behind the k greatest."""
                ordered = torch.sort(logits, -1).values
                least = ordered.gather(-1, (logits.shape[-1] - top_k).long()[:, None])
                ordered = torch.where(ordered < least, -torch.inf, ordered)
                unlikely = torch.softmax(ordered, -1).cumsum(-1) <= 1 - top_p[:, None]
                count = unlikely.sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
                return torch.where(logits < ordered.gather(-1, count), -torch.inf, logits)

        return SamplingTailModule(self.hidden, self.vocabulary, self.filter == "npu").to(getattr(torch, self.dtype))

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        drawn = torch.rand(self.batch, self.vocabulary, generator=chance)
        return {
            "x": normal(chance, self.batch, self.hidden).to(getattr(torch, self.dtype)),
            "temperature": 0.5 + torch.rand(self.batch, generator=chance),
            "top_p": 0.8 + 0.2 * torch.rand(self.batch, generator=chance),
            "top_k": torch.randint(1, min(64, self.vocabulary) + 1, (self.batch,), generator=chance).int(),
            "noise": -torch.log1p(-drawn).clamp(min=-20) + 1e-9,
        }
