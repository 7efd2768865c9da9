"""The bytes that the intermediate results of a plan need, and order that makes them fewer. Knows only numbers.

Counted is what may be alive at once however long each kernel takes: a result counts until stream order and events say
that all its readers are done, because only then may its memory be used again. So overlap costs bytes wherever two
streams do not know of each other, and an event gives them back: a kernel that waits for the readers of an older result
may take its memory. What the graph reads and what it returns is not counted: it has memory of its own.

# Note [Whose memory may be used again]
Where one pool serves all streams (the replayers of target=cpu; GE, which places memory after streams), any kernel may
take what it knows to be dead. Where each stream has a pool of its own (`Capabilities.frees_early`: torch's allocator
while a graph is captured), a block goes back to the stream that it came from, and the pools add up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import ceil, inf

from attrs import frozen

from npucompose.placement import Interferes, MemoryBlock, aligned, interference, place
from npucompose.streams import dag

Pair = tuple[int, int]
"""(recorder, waiter)."""


@frozen(slots=True)
class Life:
    """A kernel's results: how many bytes, and the kernels that read them; None for what the graph returns."""

    made_by: int
    nbytes: float
    readers: Sequence[int] | None


@frozen(kw_only=True)
class Footprint:
    """What a plan's intermediate results need."""

    nbytes: int
    """The most that may be alive at once, all pools together."""
    added: Sequence[Pair] = ()
    """Order beside that of the events, which brought it down to the budget."""
    ends: Sequence[Sequence[int]] = ()
    """For each life and stream the place of the last kernel that touches it, -1 for none."""
    begins: Sequence[Sequence[int]] = ()
    """For each life and stream the place of the last kernel that is known to be done when its maker starts."""


def footprint(
    order: Sequence[int], streams: Sequence[int], events: Iterable[Pair], lives: Sequence[Life], *, apart: bool
) -> Footprint:
    """Of the kernels on `streams` in the legal `order`, with `events`; `apart` where each stream has its own pool.

    Three kernels in a row that make 64 bytes each, on one stream: 128. Two on two streams, read by a third: 128.
    """
    found = _MemoryWalk(order, streams, events, lives, apart, [inf]).run()
    assert found is not None, "without a budget nothing is over it"
    return found


def serialised(
    order: Sequence[int],
    streams: Sequence[int],
    events: Iterable[Pair],
    lives: Sequence[Life],
    *,
    apart: bool,
    budget: float,
) -> Footprint | None:
    """The same within `budget` bytes: kernels wait (`added`) until results whose readers come earlier in `order` are
    dead. None where even one kernel after the other takes more.

    Waiting goes forward in `order`, so that no circle can come of it. The readers that come first are waited for
    first: they are done first.
    """
    if not apart:
        return _MemoryWalk(order, streams, events, lives, apart, [budget]).run()
    pools = _MemoryWalk(order, streams, events, lives, apart, [inf])
    whole = pools.run()
    assert whole is not None, "without a budget nothing is over it"
    share = budget / whole.nbytes if whole.nbytes else inf
    return _MemoryWalk(order, streams, events, lives, apart, [peak * share for peak in pools.peaks]).run()


class _MemoryWalk:
    """Once through the kernels in order; each stream knows how far every other one is, and what may be alive."""

    def __init__(
        self,
        order: Sequence[int],
        streams: Sequence[int],
        events: Iterable[Pair],
        lives: Sequence[Life],
        apart: bool,
        budgets: Sequence[float],
    ) -> None:
        """`budgets` of each stream's pool, or one that holds for every stream."""
        self.order, self.streams, self.apart = order, streams, apart
        width = max(streams, default=0) + 1
        self.budgets = budgets if len(budgets) > 1 else [*budgets] * width
        self.place = {index: position for position, index in enumerate(order)}
        self.needs: dict[int, list[int]] = {}
        for first, then in events:
            self.needs.setdefault(then, []).append(first)
        self.sizes = [aligned(ceil(life.nbytes)) for life in lives]
        self.owner = [streams[life.made_by] for life in lives]
        self.made: dict[int, list[int]] = {}
        for number, life in enumerate(lives):
            if life.readers is not None:
                self.made.setdefault(life.made_by, []).append(number)
        self.ends = [self._end(life, width) for life in lives]
        # For each stream: (place of the last kernel there that touches a life, the life), by place.
        self.ending: list[list[tuple[int, int]]] = [[] for _ in range(width)]
        for number in (number for numbers in self.made.values() for number in numbers):
            for stream, position in enumerate(self.ends[number]):
                if position >= 0:
                    self.ending[stream].append((position, number))
        for one in self.ending:
            one.sort()
        self.begins = [[-1] * width for _ in lives]
        # By stream: how far it knows each other one to be; how many of `ending` it has seen; on how many streams a
        # life may still be touched; the bytes that may be alive in its pool; the most that ever were.
        self.clocks = [[-1] * width for _ in range(width)]
        self.seen = [[0] * width for _ in range(width)]
        touched = [sum(position >= 0 for position in end) for end in self.ends]
        self.left = [list(touched) for _ in range(width)]
        self.alive = [0] * width
        self.peaks = [0] * width
        self.after: list[list[int]] = []
        self.added: list[Pair] = []

    def _end(self, life: Life, width: int) -> list[int]:
        end = [-1] * width
        for user in (life.made_by, *(life.readers or ())):
            stream = self.streams[user]
            end[stream] = max(end[stream], self.place[user])
        return end

    def run(self) -> Footprint | None:
        for position, index in enumerate(self.order):
            own = self.streams[index]
            for first in self.needs.get(index, ()):
                self._learn(own, self.place[first])
            makes = self.made.get(index, ())
            size = sum(self.sizes[number] for number in makes)
            if size:  # of results that may be alive together one is made last: when that one is made says it all
                if not self._fits(own, position, size):
                    return None
                self.peaks[own] = max(self.peaks[own], self.alive[own] + size)
            for stream in (own,) if self.apart else range(len(self.alive)):
                self.alive[stream] += size
            for number in makes:
                self.begins[number] = list(self.clocks[own])
            self._known(own, own, position)
            self.after.append(list(self.clocks[own]))
        total = sum(self.peaks) if self.apart else max(self.peaks, default=0)
        return Footprint(nbytes=total, added=self.added, ends=self.ends, begins=self.begins)

    def _fits(self, own: int, position: int, size: int) -> bool:
        """Whether `size` more bytes do, once the kernel at `position` waits for what is over before it in the list."""
        while self.alive[own] + size > self.budgets[own]:
            over = [at for at in map(self._next_over, [own] * len(self.alive), range(len(self.alive))) if at >= 0]
            first = min(over, default=position)
            if first >= position:
                return False
            self.added.append((self.order[first], self.order[position]))
            self._learn(own, first)
        return True

    def _next_over(self, own: int, other: int) -> int:
        """The place of the next kernel of the stream `other` with which a life in our pool may end; -1 for none."""
        ending = self.ending[other]
        for at in range(self.seen[own][other], len(ending)):
            position, number = ending[at]
            if not self.apart or self.owner[number] == own:
                return position
        return -1

    def _learn(self, own: int, position: int) -> None:
        """All that is done when the kernel at `position` is."""
        for stream, known in enumerate(self.after[position]):
            if known > self.clocks[own][stream]:
                self._known(own, stream, known)

    def _known(self, own: int, other: int, position: int) -> None:
        """`own` knows that `other` is done with its kernel at `position` and with all before it."""
        self.clocks[own][other] = position
        ending, left = self.ending[other], self.left[own]
        at = self.seen[own][other]
        while at < len(ending) and ending[at][0] <= position:
            number = ending[at][1]
            left[number] -= 1
            if not left[number] and (not self.apart or self.owner[number] == own):
                self.alive[own] -= self.sizes[number]
            at += 1
        self.seen[own][other] = at


def placed(order: Sequence[int], streams: Sequence[int], lives: Sequence[Life], found: Footprint) -> int:
    """The bytes of one pool in which the results are placed, gaps among them, where `found` says who lives when."""
    place_of = {index: position for position, index in enumerate(order)}
    kept = [number for number, life in enumerate(lives) if life.readers is not None]
    blocks = [
        MemoryBlock(
            nbytes=ceil(lives[number].nbytes), first=place_of[lives[number].made_by], last=max(found.ends[number])
        )
        for number in kept
    ]
    beside: Interferes | None = None
    if blocks and len(set(streams)) > 1:
        beside = interference([found.ends[n] for n in kept], [found.begins[n] for n in kept])
    return place(blocks, interferes=beside).pool_bytes


def least_memory(then: dag.Successors, lives: Sequence[Life]) -> list[int]:
    """A legal order that keeps few bytes alive: of the kernels that may start, the one that adds the fewest.

    A greedy rule after R. Sethi and J. Ullman's (1970) for trees; for graphs the best order is hard to find.
    `[[1], [], [3], []]`, where 0 and 2 make 64 bytes for 1 and 3, which return theirs: [0, 1, 2, 3].
    """
    missing = [len(sources) for sources in dag.predecessors(then)]
    growth = [0.0] * len(missing)
    users = [{life.made_by, *(life.readers or ())} for life in lives]
    touches: dict[int, list[int]] = {}
    for number, life in enumerate(lives):
        if life.readers is not None:
            growth[life.made_by] += life.nbytes
            for user in users[number]:
                touches.setdefault(user, []).append(number)
    ready: list[tuple[float, int]] = []
    done = [False] * len(missing)

    def frees(number: int) -> None:
        """The last user of a result takes its bytes away."""
        (last,) = users[number]
        growth[last] -= lives[number].nbytes
        if not missing[last] and not done[last]:
            heapq.heappush(ready, (growth[last], last))

    for number, life in enumerate(lives):
        if life.readers is not None and len(users[number]) == 1:
            frees(number)
    for index, count in enumerate(missing):
        if not count:
            heapq.heappush(ready, (growth[index], index))
    order: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        if done[index]:
            continue
        done[index] = True
        order.append(index)
        for number in touches.get(index, ()):
            users[number].discard(index)
            if len(users[number]) == 1:
                frees(number)
        for target in then[index]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, (growth[target], target))
    return order
