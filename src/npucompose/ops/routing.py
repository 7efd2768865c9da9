"""Operators that send tokens to experts and bring them back, as reference kernels of plain torch calls.

Meaning: Ascend/op-plugin's pages docs/zh/custom_APIs/torch_npu/torch_npu-<operator>.md (npu_moe_token_unpermute has
its op-plugin kernel: the sum over k of probs · row). Every shape follows from shapes, values are not looked at; a row
without an expert of this rank is zero, which a device leaves as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from npucompose.ops.definitions import refuse_others, unsupported
from npucompose.ops.quantised import rows_in_int8

INIT_V2, FINALIZE = "npu_moe_init_routing_v2", "npu_moe_finalize_routing"


def _gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weights, experts, rows): row i, choice j stands at j · rows + i, as npu_moe_init_routing wants it."""
    refuse_others("npu_moe_gating_top_k_softmax", {"finished": finished}, "x, k")
    if x.dim() != 2:
        raise unsupported("npu_moe_gating_top_k_softmax", "x", f"has {x.dim()} dimensions", "Supported: 2.")
    best, experts = torch.topk(torch.softmax(x.float(), -1), k, dim=-1)
    rows = torch.arange(x.shape[0] * k, dtype=torch.int32, device=x.device).view(k, -1).t().contiguous()
    return best.to(x.dtype), experts.int(), rows


def _init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows by expert, where each row went, their experts)."""
    experts, order = torch.sort(expert_idx.flatten(), stable=True)
    source = row_idx.flatten()[order]
    count = min(active_num, x.shape[0]) * row_idx.shape[1]
    return x[source[:count].long() % x.shape[0]], _inverse(source).to(row_idx.dtype), experts.to(row_idx.dtype)


def _init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    active_num: int = -1,
    expert_num: int = -1,
    expert_capacity: int = -1,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows by expert, where each row went, tokens of each expert, a scale for each row)."""
    refuse_others(INIT_V2, others, "no argument of dropping, offset or x_dtype")
    if quant_mode not in (-1, 1) or (quant_mode == 1 and scale is not None):
        raise unsupported(INIT_V2, "quant_mode", f"is {quant_mode}", "Supported: -1, and 1 without a scale.")
    if expert_tokens_num_type not in (0, 1):
        raise unsupported(INIT_V2, "expert_tokens_num_type", f"is {expert_tokens_num_type}", "Supported: 0, 1.")
    first, last = active_expert_range or (0, expert_num)
    chosen = expert_idx.flatten()
    ours = (chosen >= first) & (chosen < last)
    order = torch.sort(torch.where(ours, chosen, last), stable=True).indices
    count = order.numel() if active_num <= 0 else min(active_num, order.numel())
    taken, kept = order[:count] // expert_idx.shape[1], ours[order[:count]]
    rows = x[taken] * kept[:, None]
    if quant_mode == 1:
        rows, scales = rows_in_int8(rows)
    else:
        scales = torch.zeros(count, device=x.device) if scale is None else scale.float()[taken] * kept
    where = order if row_idx_type == 1 else torch.where(ours, _inverse(order), -1)
    tokens = (chosen[:, None] == torch.arange(first, last, device=x.device)).sum(0)
    tokens = tokens.cumsum(0) if expert_tokens_num_type == 0 else tokens
    return rows, where.int(), tokens if expert_tokens_num_flag else tokens.new_zeros(()), scales


def _inverse(order: torch.Tensor) -> torch.Tensor:
    """At `order[i]` stands i."""
    places = torch.arange(order.numel(), device=order.device)
    return torch.empty_like(places).scatter_(0, order.long(), places)


def _finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    """skip1 + skip2 + the sum of scale · (row + bias of its expert); mode 0 has the rows of one choice together."""
    if drop_pad_mode not in (0, 2):
        raise unsupported(FINALIZE, "drop_pad_mode", f"is {drop_pad_mode}", "Supported: 0, 2.")
    if bias is not None and export_for_source_row is None:
        raise unsupported(FINALIZE, "export_for_source_row", "is missing", "bias needs it.")
    choices = scales.shape[1] if scales is not None else (k or 1)
    where = expanded_src_to_dst_row.long()
    where = where.view(choices, -1).t() if drop_pad_mode == 0 else where.view(-1, choices)
    rows = expanded_permuted_rows.float()[where]  # rows, choices, H
    if bias is not None and export_for_source_row is not None:
        rows = rows + bias.float()[export_for_source_row.long()]
    if scales is not None:
        rows = rows * scales.float()[:, :, None]
    out = rows.sum(1)
    for skip in (skip1, skip2):
        out = out if skip is None else out + skip.float()
    return out.to(expanded_permuted_rows.dtype)


def _token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    refuse_others("npu_moe_token_unpermute", {"padded_mode": padded_mode}, "permuted_tokens, sorted_indices, probs")
    choices = 1 if probs is None else probs.shape[1]
    rows = permuted_tokens.float()[sorted_indices.long().view(-1, choices).clamp(min=0)]
    rows = rows if probs is None else rows * probs.float()[:, :, None]
    return rows.sum(1).to(permuted_tokens.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "npu_moe_gating_top_k_softmax": _gating_top_k_softmax,
    "npu_moe_init_routing": _init_routing,
    INIT_V2: _init_routing_v2,
    FINALIZE: _finalize_routing,
    "npu_moe_token_unpermute": _token_unpermute,
}
"""{operator: its reference kernel}, which gives the form of its results too."""
