"""Where blocks of bytes lie in one pool: lifetimes that do not meet share memory. Knows no plan and no kernel."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from attrs import define, field, frozen

ALIGNMENT = 64
"""Bytes; what torch's CPU allocator gives too, so that kernels take the same vector paths as in eager."""
_WINDOW = 64
"""Steps. Blocks are looked up by the windows they live in: most live for a few steps of thousands."""
_FEW = 4
"""Windows that are put together; a block that lives longer is compared with every other one."""

_ORDERS = 15
"""In which blocks are placed after the first one; nearly all that help do within three."""
_MOST_LAID = 20_000
"""Blocks in all of these orders: some 0.2 s."""

_Span = tuple[int, int, int, int]
"""(first byte, the one after the last, first step, last step)."""


@frozen(kw_only=True)
class MemoryBlock:
    """`nbytes` that must stay untouched by others from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


@frozen(kw_only=True)
class Placement:
    offsets: tuple[int, ...]
    pool_bytes: int
    unplanned_bytes: int
    """What the blocks would take side by side, without reuse."""
    live_bytes: int
    """The most that is live at one step when one follows the other: no placement can be smaller."""


Interferes = Callable[[int], Sequence[bool]]
"""Of a block: for each block whether both may live at the same time."""


def place(
    blocks: Sequence[MemoryBlock], unplanned: Sequence[int] | None = None, interferes: Interferes | None = None
) -> Placement:
    """Largest first, each into the smallest gap between the blocks that live at the same time (greedy best fit).

    `place([MemoryBlock(nbytes=64, first=0, last=1), MemoryBlock(nbytes=64, first=2, last=3)])` puts both at offset 0.
    `unplanned` are the sizes before blocks were put together; without it those of the blocks. `interferes` is for
    steps that do not run one after the other; without it the blocks' first and last steps decide.

    Where this takes more than what is live at most, those that lie highest are placed first and the others as before,
    a few times over, and the smallest pool stays.
    """
    sizes = [aligned(block.nbytes) for block in blocks]
    live_bytes = _most_live(blocks, sizes)
    order = sorted((i for i in range(len(blocks)) if sizes[i]), key=lambda i: (-sizes[i], blocks[i].first))
    offsets, pool_bytes = _laid(order, blocks, sizes, interferes)
    offered = offsets, pool_bytes
    for _ in range(min(_ORDERS, _MOST_LAID // max(len(blocks), 1))):
        if pool_bytes == live_bytes:
            break
        highest = {i for i in order if offered[0][i] + sizes[i] == offered[1]}
        order.sort(key=lambda i, highest=highest: i not in highest)
        offered = _laid(order, blocks, sizes, interferes)
        if offered[1] < pool_bytes:
            offsets, pool_bytes = offered
    return Placement(
        offsets=tuple(offsets),
        pool_bytes=pool_bytes,
        unplanned_bytes=sum(sizes) if unplanned is None else sum(map(aligned, unplanned)),
        live_bytes=live_bytes,
    )


def _laid(
    order: Sequence[int], blocks: Sequence[MemoryBlock], sizes: Sequence[int], interferes: Interferes | None
) -> tuple[list[int], int]:
    """(where each block lies, the bytes of all) when they are placed in this order."""
    offsets = [0] * len(blocks)
    placed, pool_bytes = _Placed(), 0
    numbered: list[tuple[int, int, int]] = []
    """(first byte, the one after the last, block) by where they begin; filled where `interferes` decides."""
    for index in order:
        size, first, last = sizes[index], blocks[index].first, blocks[index].last
        if interferes is None:
            beside = placed.beside(first, last)
        else:
            may_meet = interferes(index)
            beside = [(low, high) for low, high, other in numbered if may_meet[other]]
        offset = offsets[index] = _best_gap(beside, size)
        if interferes is None:
            placed.add((offset, offset + size, first, last))
        else:
            insort(numbered, (offset, offset + size, index))
        pool_bytes = max(pool_bytes, offset + size)
    return offsets, pool_bytes


@define(eq=False)
class _Placed:
    """Where blocks lie, by when they live."""

    _all: list[_Span] = field(factory=list)
    _windows: defaultdict[int, list[_Span]] = field(factory=lambda: defaultdict(list))

    def add(self, span: _Span) -> None:
        insort(self._all, span)
        for window in range(span[2] // _WINDOW, span[3] // _WINDOW + 1):
            insort(self._windows[window], span)

    def beside(self, first: int, last: int) -> list[tuple[int, int]]:
        """(first byte, the one after the last) of each block that lives at some step of these, by where they begin."""
        windows = range(first // _WINDOW, last // _WINDOW + 1)
        if len(windows) == 1:
            spans = self._windows[windows[0]]
        elif len(windows) > _FEW:
            spans = self._all
        else:
            spans = sorted(set().union(*(self._windows[window] for window in windows)))
        return [(low, high) for low, high, born, died in spans if born <= last and first <= died]


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    best, waste, end = -1, 0, 0
    for low, high in taken:
        gap = low - end
        if gap >= size and (best < 0 or gap - size < waste):
            best, waste = end, gap - size
        if high > end:
            end = high
    return best if best >= 0 else end


def _most_live(blocks: Sequence[MemoryBlock], sizes: Sequence[int]) -> int:
    change: Counter[int] = Counter()
    for block, size in zip(blocks, sizes, strict=True):
        change[block.first] += size
        change[block.last + 1] -= size
    return max(accumulate(change[step] for step in sorted(change)), default=0)


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def interference(ends: Sequence[Sequence[int]], begins: Sequence[Sequence[int]]) -> Interferes:
    """Of blocks on several streams, whatever time each kernel takes.

    `ends[block][stream]` is the last kernel of that stream that touches the block (-1: none), `begins[block][stream]`
    the last one that is known to be done when the first kernel that touches it begins. One block is before another
    when all that touch the one are known to be done when the other begins.
    """
    before = (np.asarray(ends)[:, None] <= np.asarray(begins)[None]).all(-1)
    beside = ~(before | before.T)
    return lambda block: beside[block].tolist()
