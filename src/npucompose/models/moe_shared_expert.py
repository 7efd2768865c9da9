"""Router and experts beside one shared expert: the branch that is worth a second stream in DeepSeek-like models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.models.base import Inputs, Network
from npucompose.table.options import option

if TYPE_CHECKING:
    from torch import Generator, nn


@frozen(kw_only=True)
class MoeSharedExpert(Network):
    """forward(x [tokens, hidden]) -> x + routed experts(x) + shared expert(x); no shape depends on data."""

    name: ClassVar[str] = "moe_shared_expert"
    tokens: int = option(16, "rows of x", ge=1)
    hidden: int = option(256, "width", ge=1)
    ffn: int = option(256, "inner width of an expert", ge=1)
    experts: int = option(4, "routed experts", ge=1)
    top_k: int = option(2, "experts that count for a token", ge=1)
    shared_ffn: int = option(1024, "inner width of the shared expert", ge=1)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError(f"model.top_k={self.top_k} is more than model.experts={self.experts}.")

    def network(self) -> nn.Module:
        import torch
        from torch import nn
        from torch.nn import functional

        from npucompose.models.layers import SwiGlu

        class MoeSharedExpert(nn.Module):
            """Every expert computes every token and the router's weight, zero for all but `top_k`, decides what counts.

            The shared expert needs nothing of the router and the experts: the branch that Ascend models put on a second
            stream.
            """

            def __init__(self, hidden: int, ffn: int, experts: int, top_k: int, shared_ffn: int) -> None:
                super().__init__()
                self.top_k = top_k
                self.router = nn.Linear(hidden, experts, bias=False)
                self.gate = nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.up = nn.Parameter(torch.randn(experts, hidden, ffn) / hidden**0.5)
                self.down = nn.Parameter(torch.randn(experts, ffn, hidden) / ffn**0.5)
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
                inner = functional.silu(torch.bmm(tokens, self.gate)) * torch.bmm(tokens, self.up)
                return (torch.bmm(inner, self.down) * weights.t().unsqueeze(-1)).sum(0)

        return MoeSharedExpert(self.hidden, self.ffn, self.experts, self.top_k, self.shared_ffn)

    def inputs(self, step: int, chance: Generator) -> Inputs:
        import torch

        return {"x": torch.randn(self.tokens, self.hidden, generator=chance)}
