"""How a mixture of experts is computed where no shape may depend on which token goes to which expert.

Imports torch: a model imports this inside `build`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.integrations.moe import (  # pyright: ignore[reportMissingImports]
    ALL_EXPERTS_FUNCTIONS,
    batched_mm_experts_forward,
)

STATIC = "npucompose_static"


def implementation(device: str) -> str:
    """The name under which transformers has it.

    On a CPU its own default, `grouped_mm`: tokens sorted by expert, one product for each expert, where the kernel reads
    on the host how many rows each has. A device cannot do that inside a graph.
    """
    return "grouped_mm" if device == "cpu" else STATIC


def static_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [tokens, hidden], top_k_index and top_k_weights [tokens, k] -> [tokens, hidden].

    `batched_mm` gathers the weights of an expert for each pair of a token and an expert: the least work for the few
    tokens of a step of decoding, and more memory than any device has for a prompt. With more pairs than experts every
    expert computes every token, and those that a token was not given to weigh 0.
    """
    if top_k_index.numel() <= self.num_experts or self._is_expert_parallel:
        return batched_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    name = "gate_up_proj" if self.has_gate else "up_proj"
    made = _each(self, hidden_states.expand(self.num_experts, -1, -1), name)
    made = _each(self, self._apply_gate(made) if self.has_gate else self.act_fn(made), "down_proj")
    if self.has_post_expert_norm:
        made = self.post_expert_norm(made)
    shares = top_k_weights.new_zeros(hidden_states.shape[0], self.num_experts).scatter(1, top_k_index, top_k_weights)
    return (made * shares.t().unsqueeze(-1)).sum(0).to(hidden_states.dtype)


def _each(experts: Any, rows: Tensor, name: str) -> Tensor:
    """rows [experts, tokens, in] -> [experts, tokens, out], by the weights of each expert."""
    weight = getattr(experts, name)
    made = rows @ (weight if experts.is_transposed else weight.transpose(1, 2))
    return made + getattr(experts, f"{name}_bias").unsqueeze(1) if experts.has_bias else made


ALL_EXPERTS_FUNCTIONS.register(STATIC, static_experts_forward)
