"""Random graphs of a few kernels whose best plan can be found by trying all, and how far a plan is from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import attrs
from attrs import frozen

from npucompose.streams import dag
from npucompose.streams.assignment import plans
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.instance import Instance
from npucompose.vendor.devices import ATLAS_A2
from tests.streams.dags import Dag
from tests.streams.exhaustive import least_makespan

MODEL = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=1.0, stream_us=1.0)
FREE = attrs.evolve(MODEL, event_us=0.0, stream_us=0.0)
MOST = 9
CUBES = ((24, 0, 0.0), (12, 0, 0.0), (20, 0, 0.3), (30, 0, 0.0))
VECTORS = ((0, 48, 0.0), (0, 20, 0.0), (0, 30, 0.8), (0, 1, 0.0))
MIXED = ((24, 48, 0.0), (12, 24, 0.4))
"""(cube cores, vector cores, share of the bandwidth) of kernels."""
KINDS = (*CUBES, *VECTORS, *MIXED)


@frozen(kw_only=True)
class SmallGraph:
    """`family` is the shape that it is drawn from."""

    family: str
    instance: Instance

    @property
    def beyond_the_best(self) -> float:
        """By what share our plan for time takes longer than the best of all."""
        given = self.instance
        found = min(plan.makespan for plan in plans("time", given))
        # What is better by rounding only is not searched for.
        known = found * (1 - 1e-9)
        least = least_makespan(given.then, given.work, given.streams, given.model, known)
        return found / least - 1 if least < known else 0.0


def small_graph(seed: int, most: int = MOST) -> SmallGraph:
    """Of 2 to `most` kernels, on two or three streams; on every second device events and streams take time."""
    chance = random.Random(seed)
    family = list(FAMILIES)[seed % len(FAMILIES)]
    then = FAMILIES[family](chance, chance.randint(2, most))
    work = _alternating(then, chance) if family == "chains" else [_one_of(KINDS, chance) for _ in then]
    streams, model = chance.choice([2, 3]), chance.choice([MODEL, FREE])
    return SmallGraph(family=family, instance=Instance(then=then, work=work, streams=streams, model=model))


def _random(chance: random.Random, count: int) -> Dag:
    likely = chance.choice([0.15, 0.3, 0.5])
    return dag.successors(count, [(a, b) for b in range(count) for a in range(b) if chance.random() < likely])


def _chains(chance: random.Random, count: int) -> Dag:
    """Two or three in a row each, without an edge between them."""
    chains = chance.choice([2, 3])
    return dag.successors(count, [(index - chains, index) for index in range(chains, count)])


def _forks(chance: random.Random, count: int) -> Dag:
    """A tree: every kernel but the first reads one before it."""
    return dag.successors(count, [(chance.randrange(index), index) for index in range(1, count)])


def _joins(chance: random.Random, count: int) -> Dag:
    """A tree turned round: every kernel but the last has one reader."""
    return dag.successors(count, [(index, chance.randrange(index + 1, count)) for index in range(count - 1)])


FAMILIES: Mapping[str, Callable[[random.Random, int], Dag]] = {
    "random": _random,
    "chains": _chains,
    "forks": _forks,
    "joins": _joins,
}


def _one_of(kinds: Sequence[tuple[int, int, float]], chance: random.Random) -> Work:
    cube, vector, bandwidth = chance.choice(kinds)
    us = chance.choice([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0])
    return Work(us=us, cube=cube, vector=vector, bandwidth=bandwidth)


def _alternating(then: Dag, chance: random.Random) -> list[Work]:
    """Along each chain cube and vector kernels in turn."""
    depth = [0] * len(then)
    for index, targets in enumerate(then):
        for target in targets:
            depth[target] = depth[index] + 1
    first = chance.randrange(2)
    return [_one_of((CUBES, VECTORS)[(first + at) % 2], chance) for at in depth]
