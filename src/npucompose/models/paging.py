"""Inputs of models whose cache lies in pages: which pages a sequence has, where a token is written, angles of rope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor


def pages_of(batch: int, longest: int, page: int) -> int:
    """Pages that so many sequences of so many tokens need in all."""
    return batch * -(-longest // page)


def block_table(batch: int, longest: int, page: int, chance: Generator) -> Tensor:
    """[batch, pages of a sequence] int32: every page once, in an order of chance."""
    import torch

    return torch.randperm(pages_of(batch, longest, page), generator=chance).int().view(batch, -1)


def slots(table: Tensor, tokens: Sequence[tuple[int, int]], page: int) -> Tensor:
    """int32, page · size + place, for each (sequence, its token's number)."""
    import torch

    places = [int(table[sequence, token // page]) * page + token % page for sequence, token in tokens]
    return torch.tensor(places, dtype=torch.int32)


def angles(positions: Sequence[int], width: int, dtype: str) -> tuple[Tensor, Tensor]:
    """(cos, sin) [tokens, width], the second half as the first, as npu_rotary_mul takes them."""
    import torch

    steps = torch.tensor(positions)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    steps = torch.cat([steps, steps], -1)
    return steps.cos().to(getattr(torch, dtype)), steps.sin().to(getattr(torch, dtype))
