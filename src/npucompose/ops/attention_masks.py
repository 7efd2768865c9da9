"""Masks and biases as the attention operators take them, in the one form that `attend` knows."""

from __future__ import annotations

import torch

from npucompose.ops.definitions import unsupported


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
