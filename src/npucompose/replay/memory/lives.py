"""Which values of a plan may live at the same time: in the order of the list, or on every timing of several threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from npucompose.replay.memory.pool import Meets
from npucompose.replay.plan import Plan, Root
from npucompose.replay.threads import Threads


@frozen(kw_only=True, eq=False)
class Lives:
    threads: Threads | None
    """None: the steps run one after the other, and a root's first and last step say it all."""
    uses: Mapping[int, Sequence[int]]
    """By id(root): the steps that touch it; filled where there are threads."""

    @classmethod
    def of(cls, plan: Plan, threads: Threads | None) -> Lives:
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

    def meets(self, groups: Sequence[Sequence[Root]]) -> Meets | None:
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
