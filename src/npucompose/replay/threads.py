"""A plan's steps on several threads: who runs what, who waits for whom, and what is known to be done when.

Streams come from the graph; the order between steps is derived here from the memory that they really touch, so that
whatever the recorder did (values in place, constants made anew, outputs copied out) is covered. Every step waits only
for earlier ones of the list, so no two threads can wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, field, frozen

from npucompose.machine import usable_cores
from npucompose.replay.plan import Layout, Plan, Register, Root
from npucompose.streams.assignment import fewest_events


@frozen(kw_only=True)
class Workers:
    """The threads that streams may run on."""

    count: int = field(factory=usable_cores)
    """At most so many, the calling one included."""
    spin_us: float = 100.0
    """How long a thread looks for what it waits for before it sleeps."""
    cores: tuple[int, ...] = ()
    """Cores that all threads but the calling one are bound to, in order; the others run on any but the caller's."""


@frozen(kw_only=True, eq=False)
class Threads:
    """`of(plan, count)` puts the plan's streams on at most `count` threads, the default stream on the first."""

    count: int
    thread: Sequence[int]
    """Of each step."""
    waits: Sequence[Sequence[int]]
    """For each step, those of other threads that must be done before and that nothing else implies."""
    known: Sequence[Sequence[int]]
    """known[step][thread]: the last step of that thread that is done when this one starts; -1 for none."""

    @classmethod
    def of(cls, plan: Plan, count: int, sharing: frozenset[int] = frozenset()) -> Threads:
        """`sharing` are inputs that overlap other inputs: they count as one piece of memory."""
        number = {stream: place % count for place, stream in enumerate(plan.streams)}
        thread = [number[step.stream] for step in plan.steps]
        place = {id(step): position for position, step in enumerate(plan.steps)}
        asked = [(place[id(first)], then) for then, step in enumerate(plan.steps) for first in step.after]
        edges = sorted({*asked, *_hazards(plan, sharing)})
        waits: list[list[int]] = [[] for _ in thread]
        for first, then in fewest_events(range(len(thread)), thread, edges):
            waits[then].append(first)
        width = max(number.values()) + 1
        return cls(count=width, thread=thread, waits=waits, known=_known(thread, waits, width))

    @property
    def events(self) -> int:
        """Steps that another thread waits for."""
        return len({first for waits in self.waits for first in waits})

    def turns(self) -> list[list[int]]:
        """The steps of each thread, in order."""
        turns: list[list[int]] = [[] for _ in range(self.count)]
        for step, thread in enumerate(self.thread):
            turns[thread].append(step)
        return turns

    def orders(self, first: int, then: int) -> bool:
        """Whether `first` is done when `then` starts, however long each step takes."""
        return self.known[then][self.thread[first]] >= first

    def dying(self, plan: Plan) -> tuple[list[list[int]], list[int]]:
        """(for each step the registers that nobody needs after it, the registers that are needed to the end)."""
        uses: dict[int, list[int]] = {}
        for position, step in enumerate(plan.steps):
            for operand, _ in step.touched():
                if isinstance(operand, Register):
                    uses.setdefault(operand.number, []).append(position)
        dying: list[list[int]] = [[] for _ in plan.steps]
        kept: list[int] = []
        for number, steps in uses.items():
            if all(step == steps[-1] or self.orders(step, steps[-1]) for step in steps):
                dying[steps[-1]].append(number)
            else:
                kept.append(number)
        return dying, kept


def _known(thread: Sequence[int], waits: Sequence[Sequence[int]], width: int) -> list[tuple[int, ...]]:
    now = [[-1] * width for _ in range(width)]
    after: list[tuple[int, ...]] = []
    known: list[tuple[int, ...]] = []
    for step, own in enumerate(thread):
        clock = now[own]
        for first in waits[step]:
            clock = [max(mine, theirs) for mine, theirs in zip(clock, after[first], strict=True)]
        known.append(tuple(clock))
        now[own] = [*clock[:own], step, *clock[own + 1 :]]
        after.append(tuple(now[own]))
    return known


@define
class _Use:
    """A piece of memory while the steps are walked."""

    written: int = -1
    read: list[int] = field(factory=list)


def _hazards(plan: Plan, sharing: frozenset[int]) -> Iterator[tuple[int, int]]:
    """(first, then) of every two steps that touch the same memory, one of them writing, and stand next in line."""
    piece = _pieces(plan.roots, sharing)
    uses: dict[int, _Use] = {}
    for position, step in enumerate(plan.steps):
        touched: dict[int, bool] = {}
        for operand, writes in step.touched():
            key = piece.get(root := id(plan.root_of(operand)), root)
            touched[key] = touched.get(key, False) or writes
        for key, writes in touched.items():
            use = uses.setdefault(key, _Use())
            if use.written >= 0:
                yield use.written, position
            if writes:
                yield from ((reader, position) for reader in use.read)
                use.written, use.read = position, []
            else:
                use.read.append(position)


def _pieces(roots: Sequence[Root], sharing: frozenset[int]) -> dict[int, int]:
    """{id(root): id of the root that stands for all that lie in the same memory}, for memory that is not the plan's."""
    overlapping = [root for root in roots if root.kind == "input" and root.index in sharing]
    outside = [root for root in roots if root.kind in ("input", "attribute") and root not in overlapping]
    piece = {id(root): id(overlapping[0]) for root in overlapping}
    end, first = 0, 0
    for begin, stop, root in sorted(_spans(outside), key=lambda span: span[:2]):
        if begin >= end:
            first = id(root)
        piece[id(root)], end = first, max(end, stop)
    return piece


def _spans(roots: Sequence[Root]) -> Iterator[tuple[int, int, Root]]:
    for root in roots:
        assert root.tensor is not None
        low, high = Layout.of(root.tensor).span()
        base = root.tensor.untyped_storage().data_ptr() if high > low else 0
        yield base + low, base + high, root
