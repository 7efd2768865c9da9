"""The best plan of a graph of a few kernels, by trying every one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from npucompose.streams import dag
from npucompose.streams.events import fewest_events
from npucompose.streams.simulate import Work, simulate
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
