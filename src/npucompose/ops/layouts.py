"""Layouts of the attention operators: what each letter's size is, to [B, N, S, D] and back, and pages out of a cache.

`BSND_NBSD` is BSND for the query and NBSD for the result; H is N · D in one dimension, T the tokens of all sequences in
one. Sizes may be symbols in `sizes`, `depth_of_values` and `shape`. Knows no operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import frozen

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
