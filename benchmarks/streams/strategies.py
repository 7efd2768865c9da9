"""What each strategy is worth: in how many families of graphs no other one comes near it.

A strategy is worth its place where its plan takes 2 % less than that of every other one in at least 5 % of the
families. Variants of one strategy stand in for each other, so the least one is taken out and the others are counted
anew, until each is worth its place. A search makes the best plans better afterwards, which hides much: the second table
says what the product loses without those that were taken out, and without each of its searches. The same figures in
every process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import mean

from attrs import frozen

from benchmarks.streams.goals import say
from benchmarks.streams.plans import MODEL
from npucompose.streams import assignment
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.chains import Shape, fewest_paths, fewest_streams, fewest_syncs, laid_on
from npucompose.streams.strategies.ge import cube_and_vector, load_balance, main_stream
from npucompose.streams.strategies.instance import Assignment, Instance
from npucompose.streams.strategies.list_schedule import by_urgency
from tests.streams import named, small
from tests.streams.dags import Dag

STREAMS = (2, 4, 8)
BY, IN = 0.02, 0.05
SIZES, SEEDS = (9, 60, 300), range(3)
"""Kernels of the random families, and graphs of each."""
Planner = Callable[[Instance], Assignment]


@frozen(kw_only=True)
class Family:
    """Graphs of one shape and size, for so many streams."""

    name: str
    instances: Sequence[Instance]


def families() -> list[Family]:
    drawn = [(f"{name} of {size}", [_drawn(name, size, seed) for seed in SEEDS]) for name, size in _random()]
    published = [(name, [(named.graph(name).then, named.graph(name).work)]) for name in named.NAMES]
    return [
        Family(
            name=f"{name} on {streams}",
            instances=[Instance(then=then, work=work, streams=streams, model=MODEL) for then, work in graphs],
        )
        for name, graphs in (*published, *drawn)
        for streams in STREAMS
    ]


def _random() -> list[tuple[str, int]]:
    return [(name, size) for name in small.FAMILIES for size in SIZES]


def _drawn(name: str, size: int, seed: int) -> tuple[Dag, list[Work]]:
    chance = random.Random(f"{name} {size} {seed}")
    return small.FAMILIES[name](chance, size), named.costed(size, chance)


def _by_urgency(instance: Instance) -> Assignment:
    streams, ranked = by_urgency(instance.work, instance.then, instance.streams, instance.model)
    return Assignment(streams=streams, ranked=ranked)


def _fixed(streams: Callable[[Instance], Sequence[int]]) -> Planner:
    return lambda instance: Assignment(streams=streams(instance), ranked=range(len(instance.work)))


def _chains(choose: Callable[[Shape], list[list[int]]]) -> Planner:
    def laid(instance: Instance) -> Sequence[int]:
        shape = Shape.from_work(instance.then, instance.us)
        return laid_on(choose(shape), shape, instance.streams)

    return _fixed(laid)


def _asked(number: int) -> Planner:
    """That of `STRATEGIES` and `ON_FEWER`."""

    def plan(instance: Instance) -> Assignment:
        chains = instance.timed(STRATEGIES["chains, fewest events"](instance))
        fewest = min((instance.timed(_by_urgency(instance)), chains), key=lambda one: len(one.events))
        return (*assignment.STRATEGIES, *assignment.ON_FEWER)[number](instance, fewest)

    return plan


STRATEGIES: Mapping[str, Planner] = {
    "list schedule": _by_urgency,
    "chains, fewest events": _chains(fewest_syncs),
    "chains, fewest streams": _chains(fewest_streams),
    "chains, fewest paths": _chains(lambda shape: fewest_paths(shape.then)),
    "GE's LoadBalance": _fixed(lambda instance: load_balance(instance.then, instance.streams)),
    "GE's MainStream": _fixed(lambda instance: main_stream(instance.then, instance.streams)),
    "GE's cv": _fixed(lambda instance: cube_and_vector(instance.then, instance.work)),
    **{
        f"{number}: {name}": _asked(number)
        for number, name in enumerate(
            (
                "dispatch 0.5, feeding 3",
                "fewest events, dispatch 2, feeding 3",
                "dispatch 2, feeding 1",
                "dispatch 0.5, feeding 10",
                "fewest events, dispatch 2, feeding 10",
                "dispatch 2, feeding 3, event 3",
                "dispatch 0.5, event 3",
                "both ways 2",
                "dispatch 2, at most 1.34",
                "both ways 2, at most 1.34",
                "critical paths, dispatch 2, feeding 3",
                "on two streams: dispatch 0.5, feeding 3",
                "on half the streams: both ways 2",
            )
        )
    },
}


def times(planners: Mapping[str, Planner], given: Sequence[Family]) -> dict[str, list[float]]:
    """{strategy: mean time of each family, in µs}"""
    found: dict[str, list[float]] = {}
    for name, planner in planners.items():
        say(name)
        found[name] = [mean(one.timed(planner(one)).makespan for one in family.instances) for family in given]
    return found


def share_of(name: str, found: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """(share of the families in which it is the best by 2 %, what the best of the others takes longer on average)."""
    others = [min(column) for column in zip(*(each for other, each in found.items() if other != name), strict=True)]
    ratios = [max(1.0, other / own) for other, own in zip(others, found[name], strict=True)]
    return mean(ratio >= 1 + BY for ratio in ratios), exp(mean(map(log, ratios))) - 1
