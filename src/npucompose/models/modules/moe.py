"""A mixture-of-experts layer without shapes that depend on data, and one expert that every token visits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from npucompose.models.modules.gpt import SwiGlu


class MoeSharedExpert(nn.Module):
    """Every expert computes every token and the router's weight, zero for all but `top_k`, decides what counts.

    The shared expert needs nothing of the router and the experts: the branch that Ascend models put on a second stream.
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
