"""Where the intermediates of a plan lie: lifetimes, groups that share memory, blocks reused when dead."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import torch
from attrs import define, field, frozen

from npucompose.replay.operands import traits_of
from npucompose.replay.plan import Plan, Root, Slot, Step, Threads

ALIGNMENT = 64
"""Bytes; what torch's CPU allocator gives too, so that kernels take the same vector paths as in eager."""
_WINDOW = 64
"""Steps. Blocks are looked up by the windows they live in: most live for a few steps of thousands."""
_FEW = 4
"""Windows that are put together; a block that lives longer is compared with every other one."""

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
    """
    sizes = [aligned(block.nbytes) for block in blocks]
    offsets = [0] * len(blocks)
    placed, pool_bytes = _Placed(), 0
    numbered: list[tuple[int, int, int]] = []
    """(first byte, the one after the last, block) by where they begin; filled where `interferes` decides."""
    for index in sorted(range(len(blocks)), key=lambda i: (-sizes[i], blocks[i].first)):
        size, first, last = sizes[index], blocks[index].first, blocks[index].last
        if not size:
            continue
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
    return Placement(
        offsets=tuple(offsets),
        pool_bytes=pool_bytes,
        unplanned_bytes=sum(sizes) if unplanned is None else sum(map(aligned, unplanned)),
        live_bytes=_most_live(blocks, sizes),
    )


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


IsLast = Callable[[Root, int], bool]
"""Whether a step is the last one that touches a root, on every timing."""


def groups_of(plan: Plan, is_last: IsLast) -> list[list[Root]]:
    """Roots of kind pool and output, those that can share one piece of memory together, in the order of their birth.

    A result takes the memory of an operand that is read for the last time by the same call, when the kernel is
    pointwise and has an in-place form (so that it reads each element before it writes it) and both lie alike. Bits
    stay as they are. Fewer bytes touched is fewer cache lines fetched: eager reuses what it has just freed, too.
    """
    group: dict[int, list[Root]] = {id(r): [r] for r in plan.roots if r.kind in ("pool", "output")}
    for number, step in enumerate(plan.steps):
        result = _result(step)
        if result is None or result.root.first != number or id(result.root) not in group:
            continue
        operand = _dying_alike(step, number, result, is_last)
        if operand is not None:  # the result is born here: nobody lies with it yet
            together = group[id(result.root)] = group[id(operand)]
            together.append(result.root)
    return list({id(members): members for members in group.values()}.values())


def parted(groups: Sequence[list[Root]]) -> list[list[Root]]:
    """The same groups with the last of each on its own.

    What a chain ends in often lives much longer than its beginnings. With a place of its own it can return to where the
    value before it lay, which is free by then; and nothing else is in the way for as long as the whole chain took.
    """
    return [part for group in groups for part in (group[:-1], group[-1:]) if part]


def _result(step: Step) -> Slot | None:
    """Where a pointwise kernel with one `out` argument writes; None for every other kernel."""
    out = traits_of(step.op).out
    result = None if out is None else step.args[out]
    return result if isinstance(result, Slot) else None


def _dying_alike(step: Step, number: int, result: Slot, is_last: IsLast) -> Root | None:
    """An operand in the pool that is read for the last time and lies exactly as the result will; the first of them."""
    for slot in step.operands:
        if not isinstance(slot, Slot) or slot is result:
            continue
        root = slot.root
        if root.last != number or root.kind != "pool" or root.nbytes != result.root.nbytes:
            continue
        seen_as = (s.layout for s in step.operands if isinstance(s, Slot) and s is not result and s.root is root)
        if all(layout == result.layout for layout in seen_as) and is_last(root, number):
            return root
    return None


@frozen(kw_only=True, eq=False)
class Lifetimes:
    threads: Threads | None
    """None: the steps run one after the other, and a root's first and last step say it all."""
    uses: Mapping[int, Sequence[int]]
    """By id(root): the steps that touch it; filled where there are threads."""

    @classmethod
    def from_plan(cls, plan: Plan, threads: Threads | None) -> Lifetimes:
        uses: dict[int, list[int]] = {}
        if threads is not None:
            for position, step in enumerate(plan.steps):
                for operand, _ in step.touched():
                    uses.setdefault(id(plan.root_of(operand)), []).append(position)
        return cls(threads=threads, uses=uses)

    def is_last(self, root: Root, step: int) -> bool:
        """Whether everything else that touches `root` is done when `step` starts."""
        if self.threads is None:
            return root.last == step
        return all(use == step or self.threads.orders(use, step) for use in self.uses[id(root)])

    def interferes(self, groups: Sequence[Sequence[Root]]) -> Interferes | None:
        """For blocks that hold a group of roots each; None where first and last steps say it all.

        One is before the other when the last step that touches it, on every thread, is known to be done by the first
        ones that touch the other.
        """
        if self.threads is None or not groups:
            return None
        ends, begins = [], []
        for group in groups:
            steps = sorted({use for root in group for use in self.uses[id(root)]})
            end, firsts = [-1] * self.threads.count, dict[int, int]()
            for step in steps:
                end[self.threads.thread[step]] = step
                firsts.setdefault(self.threads.thread[step], step)
            ends.append(end)
            begins.append([min(at) for at in zip(*(self.threads.known[s] for s in firsts.values()), strict=True)])
        before = (torch.tensor(ends)[:, None] <= torch.tensor(begins)[None]).all(-1)
        beside = ~(before | before.T)
        return lambda block: beside[block].tolist()
