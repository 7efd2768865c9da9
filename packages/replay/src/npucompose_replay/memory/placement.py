"""Which values of a plan may share memory: lifetimes on every timing, and groups that lie in one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from npucompose.placement import Interferes, interference
from npucompose_replay.operands import traits_of
from npucompose_replay.plan import Plan, PlanSlot, Root, Step, Threads

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


def _result(step: Step) -> PlanSlot | None:
    """Where a pointwise kernel with one `out` argument writes; None for every other kernel."""
    out = traits_of(step.op).out
    result = None if out is None else step.args[out]
    return result if isinstance(result, PlanSlot) else None


def _dying_alike(step: Step, number: int, result: PlanSlot, is_last: IsLast) -> Root | None:
    """An operand in the pool that is read for the last time and lies exactly as the result will; the first of them."""
    for slot in step.operands:
        if not isinstance(slot, PlanSlot) or slot is result:
            continue
        root = slot.root
        if root.last != number or root.kind != "pool" or root.nbytes != result.root.nbytes:
            continue
        seen_as = (s.layout for s in step.operands if isinstance(s, PlanSlot) and s is not result and s.root is root)
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
                for operand in (*step.operands, *step.made):
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
        return interference(ends, begins)
