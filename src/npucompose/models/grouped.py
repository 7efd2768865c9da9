"""Parts of a quantised model as vllm-ascend calls them: experts by products in groups (fused_moe), routed there and
back with no size by data; linear layers in w8a8 with scales made while the model runs (w8a8_dynamic).
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
        from npucompose.models.grouped_layers import Experts, QuantisedExperts

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
        from npucompose.models.grouped_layers import QuantisedLinear

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
