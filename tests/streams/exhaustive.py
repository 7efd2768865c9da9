"""The best plan of a graph of a few kernels, by trying every one: as they are, or without those that cannot be it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import inf

from npucompose.streams import dag
from npucompose.streams.events import fewest_events
from npucompose.streams.simulate import Simulation, Work, rates, simulate
from npucompose.vendor.devices import DeviceModel
from tests.streams import dags


def makespan_of(
    then: dag.Successors, work: Sequence[Work], on: Sequence[int], order: Sequence[int], model: DeviceModel
) -> float:
    """Microseconds of the kernels in a legal order on their streams."""
    events = fewest_events(order, on, sorted(dags.pairs(then)))
    return simulate(order, on, events, work, model).makespan


def best_makespan(then: dag.Successors, work: Sequence[Work], streams: int, model: DeviceModel) -> float:
    """The shortest of every order on every choice of at most `streams` streams; side streams are alike."""
    found = {
        tuple(tuple(index for index in order if on[index] == stream) for stream in range(streams)): (on, order)
        for on in _assignments(len(then), streams)
        for order in _orders(then)
    }
    return min((makespan_of(then, work, on, order, model) for on, order in found.values()), default=0.0)


def least_makespan(
    then: dag.Successors, work: Sequence[Work], streams: int, model: DeviceModel, known: float = inf
) -> float:
    """The same for graphs of up to nine kernels: plans that cannot be better than `known` (some plan's) are left out.

    A plan is listed in the order in which its kernels start. Whatever is added to the first part of such a list starts
    no earlier than its last kernel, so that a simulation of that part says when each kernel in it starts. From then on
    a path takes at least its kernels' time, and streams, cores and bandwidth at least what is left for each.
    """
    return min(_Listed(then, work, streams, model, known).makespans(), default=known)


class _Listed:
    def __init__(
        self, then: dag.Successors, work: Sequence[Work], streams: int, model: DeviceModel, known: float
    ) -> None:
        self.then, self.work, self.streams, self.model, self.best = then, work, streams, model, known
        self.before, self.edges = dag.predecessors(then), sorted(dags.pairs(then))
        self.tail = dag.longest_paths([item.us for item in work], then)
        self.seen: set[tuple[tuple[int, ...], ...]] = set()

    def makespans(self, order: tuple[int, ...] = (), on: tuple[int, ...] = ()) -> Iterator[float]:
        """Of every plan that begins so and is better than all before; `on` are the streams of `order`."""
        for index in range(len(self.work)):
            if index in order or not set(self.before[index]) <= set(order):
                continue
            for stream in range(min(self.streams, max(0, *on, 0) + 2)):  # side streams are alike
                yield from self._with((*order, index), (*on, stream))

    def _with(self, order: tuple[int, ...], on: tuple[int, ...]) -> Iterator[float]:
        queues = tuple(
            tuple(index for index, other in zip(order, on, strict=True) if other == stream)
            for stream in range(self.streams)
        )
        where = dict(zip(order, on, strict=True))
        events = [(a, b) for a, b in self.edges if a in where and b in where and where[a] != where[b]]
        found = simulate(order, [where.get(index, 0) for index in range(len(self.work))], events, self.work, self.model)
        now = found.start[order[-1]]
        if now < max(found.start[index] for index in order) - 1e-9 or queues in self.seen:
            return  # another list of the same plan
        self.seen.add(queues)
        if len(order) == len(self.work) and found.makespan < self.best:
            self.best = found.makespan
            yield found.makespan
        elif self._least(now, queues, found) < self.best:
            yield from self.makespans(order, on)

    def _least(self, now: float, queues: Sequence[Sequence[int]], found: Simulation) -> float:
        """A time that no plan with these beginnings of streams beats, the last of which begins now."""
        left = self._left(now, [index for queue in queues for index in queue], found)
        begun = [index for queue in queues for index in queue]
        end = [now + (left[index] if index in begun else 0.0) for index in range(len(left))]
        for index in range(len(left)):
            if index not in begun:
                end[index] = max([now, *[end[source] for source in self.before[index]]]) + left[index]
        behind = [tail - item.us for tail, item in zip(self.tail, self.work, strict=True)]
        paths = [at + after for at, after, us in zip(end, behind, left, strict=True) if us]
        pairs = list(zip(self.work, left, strict=True))
        loads = (
            sum(item.cube * us for item, us in pairs) / max(1, self.model.cube),
            sum(item.vector * us for item, us in pairs) / self.model.vector,
            sum(item.bandwidth * us for item, us in pairs),
            sum(left) / self.streams,
        )
        return now + max(0.0, *loads, *[path - now for path in paths])

    def _left(self, now: float, begun: Sequence[int], found: Simulation) -> list[float]:
        """Microseconds of each kernel that are not done by now: between two times at which a kernel starts or ends
        all go at one rate."""
        left = [item.us for item in self.work]
        times = sorted({time for index in begun for time in (found.start[index], found.end[index]) if time <= now})
        for time, until in pairwise(times):
            running = [index for index in begun if found.start[index] <= time < found.end[index]]
            for index, rate in zip(running, rates([self.work[one] for one in running], self.model), strict=True):
                left[index] -= rate * (until - time)
        return [us if us > 1e-9 else 0.0 for us in left]


def _assignments(count: int, streams: int) -> Iterator[tuple[int, ...]]:
    """Side streams are numbered as they come into use."""
    for on in product(range(streams), repeat=count):
        used = list(dict.fromkeys(stream for stream in on if stream))
        if used == sorted(used) and used == list(range(1, len(used) + 1)):
            yield on


def _orders(then: dag.Successors) -> Iterator[list[int]]:
    missing = dag.missing_predecessors(then)
    order: list[int] = []

    def extend() -> Iterator[list[int]]:
        if len(order) == len(then):
            yield list(order)
        for index in range(len(then)):
            if index in order or missing[index]:
                continue
            order.append(index)
            missing.subtract(then[index])
            yield from extend()
            missing.update(then[index])
            order.pop()

    return extend()
