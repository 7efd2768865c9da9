"""Attention with lengths and masks over [B, N, S, D], in few torch calls, and what brings masks and layouts of the
operators into that form. Knows no operator schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any, Literal, NamedTuple

import torch
from attrs import frozen

from npucompose.ops.definitions import unsupported

# Masks and biases as the attention operators take them, in the one form that `attend` knows.


def refuse_other_than_triangle(op: str, sparse_mode: int, mask: torch.Tensor | None) -> None:
    """Modes 2 and 3 want the compressed mask, whose content is fixed: what is above the diagonal is hidden."""
    shape = None if mask is None else tuple(mask.shape)
    if shape is None or shape[-2:] != (2048, 2048) or any(size != 1 for size in shape[:-2]):
        given = "is missing" if shape is None else f"has shape {shape}"
        raise unsupported(op, "atten_mask", given, f"sparse_mode={sparse_mode} needs the 2048 × 2048 one.")


def mask_of(op: str, mask: torch.Tensor | None, batch: int, rows: int, columns: int) -> torch.Tensor | None:
    """True where a score is hidden, of shape [B or 1, 1, rows, columns], cut out of a mask that may be padded."""
    if mask is None:
        return None
    if mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        raise unsupported(op, "atten_mask", f"is {mask.dtype}", "Possible: bool, int8, uint8.")
    shape = tuple(mask.shape)
    if mask.dim() == 2:
        mask = mask[:, None, None, :] if rows == 1 else mask[None, None]
    elif mask.dim() == 3:
        mask = mask[:, None]
    fits = mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[1] == 1
    if not fits or mask.shape[2] < rows or mask.shape[3] < columns:
        possible = "(Q_S, KV_S), (B|1, Q_S, KV_S), (B|1, 1, Q_S, KV_S)"
        possible = "(B, KV_S), (B, 1, KV_S), (B, 1, 1, KV_S)" if rows == 1 else possible
        here = f"B = {batch}, Q_S = {rows}, KV_S = {columns}, S may be padded."
        raise unsupported(op, "atten_mask", f"has shape {shape}", f"Possible: {possible}; {here}")
    return mask[:, :, :rows, :columns].to(torch.bool)


def bias_of(op: str, pse: torch.Tensor | None, q: torch.Tensor, columns: int) -> torch.Tensor | None:
    if pse is None:
        return None
    batch, heads, rows, _ = q.shape
    if pse.dtype != q.dtype:
        raise unsupported(op, "pse_shift", f"is {pse.dtype}", f"The query is {q.dtype}.")
    fits = pse.dim() == 4 and pse.shape[0] in (1, batch) and pse.shape[1] == heads
    if not fits or pse.shape[2] < rows or pse.shape[3] < columns:
        possible = f"Possible: (B|1, N, Q_S, KV_S) of B = {batch}, N = {heads}, Q_S = {rows}, KV_S = {columns}."
        raise unsupported(op, "pse_shift", f"has shape {tuple(pse.shape)}", possible)
    return pse[:, :, :rows, :columns]


@frozen(kw_only=True, eq=False)
class Hidden:
    """Which scores do not count: where `mask` is True, or what lies above a diagonal.

    `left_up` hides column j of row i when j > i; `right_down` when j > i + kv_length - q_length, batch by batch.
    """

    mask: torch.Tensor | None = None
    causal: Literal["left_up", "right_down"] | None = None


class Attended(NamedTuple):
    out: torch.Tensor
    """[B, N, Q_S, D], contiguous, in the accuracy of the computation (at least float32)."""
    lse: torch.Tensor
    """log(sum(exp(score))) of each row, [B, N, Q_S, 1]; of shape [0] when nobody asked."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    hidden: Hidden,
    pse: torch.Tensor | None,
    q_lengths: Sequence[int] | None,
    kv_lengths: Sequence[int] | None,
    want_lse: bool,
) -> Attended:
    """softmax(scale · q kᵀ + pse, hidden scores at -inf) v, computed in float32; head h reads k and v of h // group.

    A row with no score left (all masked, a length of 0, or at or behind its q_length) is zero, and its lse is -inf.
    The document promises zeros for an empty key and says of inner_precise 2 and 3 that they correct such rows; what a
    device puts there without that, and its lse, is not stated. Keys at and behind kv_length are never read, so they may
    hold NaN. On a length that all batches share, k and v are cut instead of masked: the decode step of one batch.
    """
    batch, heads, rows, _ = q.shape
    kv_heads, depth = k.shape[1], v.shape[3]
    q_valid, kv_valid = list(q_lengths or [rows] * batch), list(kv_lengths or [k.shape[2]] * batch)
    columns = max(kv_valid, default=0)
    if columns == 0 or q.numel() == 0:
        out = q.new_zeros((batch, heads, rows, depth), dtype=torch.float32)
        lse = q.new_full((batch, heads, rows, 1), float("-inf"), dtype=torch.float32)
        return Attended(out, lse if want_lse else lse.new_empty(0))
    k, v = k[:, :, :columns].float(), v[:, :, :columns].float()
    masks = _masks(hidden, q.device, rows, columns, q_valid, kv_valid)
    if min(kv_valid) < columns:
        behind = _behind(kv_valid, columns, q.device)
        v = v.masked_fill(behind[:, None, :, None], 0.0)  # 0 · NaN is NaN
        masks.append(behind[:, None, None, :])
    if min(q_valid) < rows:
        masks.append(_behind(q_valid, rows, q.device)[:, None, :, None])
    # The queries of one group are rows of one product, so k and v are not repeated.
    grouped = (q.float() * scale).reshape(batch, kv_heads, -1, q.shape[3])
    scores = torch.matmul(grouped, k.transpose(2, 3)).view(batch, heads, rows, columns)
    if pse is not None:
        scores += pse[..., :columns]
    weights = _weights(scores, masks)
    out = torch.matmul(weights.view(batch, kv_heads, -1, columns), v).view(batch, heads, rows, depth)
    return Attended(out, torch.logsumexp(scores, -1, keepdim=True) if want_lse else scores.new_empty(0))


def _weights(scores: torch.Tensor, masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """softmax over each row; zeros where nothing of it is left. What is masked becomes -inf in `scores` itself."""
    if not masks:
        return torch.softmax(scores, -1)
    mask = reduce(or_, masks)
    scores.masked_fill_(mask, float("-inf"))
    return torch.softmax(scores, -1).masked_fill_(mask.all(-1, keepdim=True), 0.0)


def _masks(
    hidden: Hidden, device: torch.device, rows: int, columns: int, q_valid: list[int], kv_valid: list[int]
) -> list[torch.Tensor]:
    if hidden.mask is not None:
        return [hidden.mask[..., :columns]]
    if hidden.causal is None:
        return []
    row = torch.arange(rows, device=device)[:, None]
    column = torch.arange(columns, device=device)[None, :]
    if hidden.causal == "left_up":
        return [(column > row)[None, None]]
    ahead = torch.tensor([kv - q for q, kv in zip(q_valid, kv_valid, strict=True)], device=device)
    return [(column > row + ahead[:, None, None])[:, None]]


def _behind(lengths: list[int], size: int, device: torch.device) -> torch.Tensor:
    """[B, size]: True at and behind each batch's length."""
    return torch.arange(size, device=device)[None, :] >= torch.tensor(lengths, device=device)[:, None]


# Layouts of the attention operators: what each letter's size is, to [B, N, S, D] and back, and pages out of a cache.
# `BSND_NBSD` is BSND for the query and NBSD for the result; H is N · D in one dimension, T the tokens of all sequences
# in one. Sizes may be symbols in `sizes`, `depth_of_values` and `shape`.

LAYOUTS = (
    "BSH", "BSND", "BNSD", "TND", "NTD", "NSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BSH_NBSD",
    "BSND_NBSD", "BNSD_NBSD", "TND_NTD",
)  # fmt: skip
"""Those that the meta function of npu_fused_infer_attention_score takes (torch_npu 2.13.0)."""
Sizes = Mapping[str, Any]


def parts(layout: str) -> tuple[str, str]:
    """(of query, key and value; of the result): `parts("TND_NTD")` is ("TND", "NTD")."""
    inner, _, outer = layout.partition("_")
    return inner, outer or inner


def sizes(tensor: torch.Tensor, layout: str, heads: int) -> Sizes:
    """{letter: its size} of a tensor in a layout without a second part."""
    found: dict[str, Any] = {"B": 1, **dict(zip(layout, tensor.shape, strict=True))}
    return {**found, "N": heads, "D": found["H"] // heads} if "H" in found else found


def depth_of_values(value: torch.Tensor, layout: str, kv_heads: int, paged: bool) -> Any:
    """The width of a head of the values, in pages too: (pages, tokens, H), (pages, N, tokens, D) and
    (pages, N, D / 16, tokens, 16)."""
    if paged:
        layout = {3: "BSH", 4: "BNSD"}.get(value.dim(), "BNDS_")
    if layout == "BNDS_":
        return value.shape[2] * value.shape[4]
    return sizes(value, layout, kv_heads)["D"]


def shape(layout: str, of_query: Sizes, depth: Any) -> list[Any]:
    """Of a result in a layout without a second part, from the query's sizes and the values' depth."""
    if any(isinstance(size, int) and size == 0 for size in (depth, of_query["D"])):
        depth = of_query["D"]  # an empty tensor
    known = {**of_query, "D": depth, "H": of_query["N"] * depth}
    return [known[letter] for letter in layout]


def to_bnsd(tensor: torch.Tensor, layout: str, heads: int, ends: Sequence[int] | None) -> torch.Tensor:
    """`ends`: where each sequence ends among the tokens of a layout with T; what is behind a shorter one is zero."""
    if layout == "BSH":
        tensor, layout = tensor.unflatten(2, (heads, tensor.shape[2] // heads)), "BSND"
    if "T" in layout:
        rows = tensor.transpose(0, layout.index("T"))  # T, N, D
        cut = [rows[start:end] for start, end in pairwise((0, *(ends or ())))]
        return torch.nn.utils.rnn.pad_sequence(cut, batch_first=True).transpose(1, 2)
    if layout == "NSD":
        return tensor[None]
    return tensor.transpose(1, 2) if layout == "BSND" else tensor


def from_bnsd(out: torch.Tensor, layout: str, ends: Sequence[int] | None) -> torch.Tensor:
    """Contiguous, in the strides that the meta function promises."""
    if "T" in layout:
        lengths = (end - start for start, end in pairwise((0, *(ends or ()))))
        tokens = torch.cat([one[:, :length].transpose(0, 1) for one, length in zip(out, lengths, strict=True)])
        return tokens if layout == "TND" else tokens.transpose(0, 1).contiguous()
    order = {"BSH": (0, 2, 1, 3), "BSND": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3)}.get(layout, (0, 1, 2, 3))
    moved = out.permute(order)
    # By way of one dimension: reshape() alone may return strides other than those the meta function promises.
    dense = moved.reshape(-1).view(moved.shape)
    return dense.flatten(2) if layout == "BSH" else dense[0] if layout == "NSD" else dense


@frozen(kw_only=True, eq=False)
class Pages:
    """A cache of keys or values in pages of `size` tokens, and which of them each sequence has, in order."""

    table: torch.Tensor
    """[B, pages of the longest]."""
    size: int

    def gathered(self, cache: torch.Tensor, heads: int, lengths: Sequence[int]) -> torch.Tensor:
        """[B, N, S, D] of the tokens that the longest sequence has; numbers behind a sequence's pages are not read."""
        count = -(-max(lengths, default=0) // self.size)
        wanted = [-(-length // self.size) for length in lengths]
        used = torch.arange(count, device=self.table.device) < torch.tensor(wanted, device=self.table.device)[:, None]
        numbers = self.table[:, :count].long().masked_fill(~used, 0)
        if cache.dim() == 5:
            cache = cache.transpose(2, 3).flatten(3)
        pages = cache.unflatten(2, (heads, -1)) if cache.dim() == 3 else cache.transpose(1, 2)  # pages, tokens, N, D
        return pages[numbers].flatten(1, 2).transpose(1, 2)
