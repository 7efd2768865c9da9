"""What each strategy of `streams/assignment.py` is worth: in how many families of graphs a plan is slower without it.

A strategy keeps its place where the best plan of all others takes at least 2 % longer in at least 5 % of the families,
for `makespan` or for `time`. The list schedule and the chains are always there: they bound the events of `makespan`.
Plans are compared as the strategies give them, before the local search.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, inf, log
from statistics import mean

from attrs import frozen

from benchmarks.streams.goals import Goal, Part, say, table_of
from benchmarks.streams.plans import MODEL
from npucompose.streams.assignment import MORE_EVENTS, ON_TWO, STRATEGIES, candidates
from npucompose.streams.strategies.instance import Instance, TimedPlan
from tests.streams import named, small

STREAMS = (2, 4, 8)
SLOWER, FAMILIES = 0.02, 0.05
SIZES, SEEDS = (9, 60, 300), range(3)
"""Kernels of the random families, and how many graphs of each."""
NAMES = (
    "dispatch, feeding 10",
    "the streams of fewest events, dispatch, feeding 10",
    "dispatch, booked at most 1.34 times",
    "on two streams, dispatch, feeding 3",
)
"""Of `(*STRATEGIES, ON_TWO)`."""
Plans = Mapping[str, TimedPlan]


@frozen(kw_only=True)
class Planned:
    """A graph with the plan of each strategy, and the better one of those that look at no cores."""

    basic: TimedPlan
    plans: Plans

    def best(self, names: Iterable[str], *, bounded: bool) -> float:
        """Simulated µs of the best of these plans, with the events of `makespan` where `bounded`."""
        most = MORE_EVENTS * len(self.basic.events) if bounded and any(self.basic.streams) else inf
        found = (self.plans[name] for name in names)
        return min([self.basic.makespan, *(plan.makespan for plan in found if len(plan.events) <= most)])


def families() -> Iterator[tuple[str, Sequence[Instance]]]:
    """The named graphs, and random ones of four shapes and three sizes, each for 2, 4 and 8 streams."""
    graphs = {name: [(named.graph(name).then, named.graph(name).work)] for name in named.NAMES}
    for name, drawn in small.FAMILIES.items():
        for size in SIZES:
            chances = [random.Random(f"{name} {size} {seed}") for seed in SEEDS]
            graphs[f"{name} of {size}"] = [(drawn(one, size), named.costed(size, one)) for one in chances]
    for name, pairs in graphs.items():
        for streams in STREAMS:
            yield (
                f"{name} on {streams}",
                [Instance(then=then, work=work, streams=streams, model=MODEL) for then, work in pairs],
            )


def planned(instance: Instance) -> Planned:
    known = [instance.timed(one) for one in candidates("makespan", instance)]
    fewest = min(known, key=lambda plan: len(plan.events))
    every = zip(NAMES, (*STRATEGIES, ON_TWO), strict=True)
    return Planned(
        basic=min(known, key=lambda plan: plan.rank),
        plans={name: instance.timed(strategy(instance, fewest)) for name, strategy in every},
    )


def strategies() -> Part:
    found: list[list[Planned]] = []
    for name, instances in families():
        say(name)
        found.append([planned(one) for one in instances])
    columns = (
        "strategy",
        "makespan: families slower without it",
        "on average",
        "time: families",
        "on average",
    )
    table = table_of(f"{len(found)} families of graphs", *columns)
    goals: list[Goal] = []
    for name in NAMES:
        shares: list[float] = []
        cells: list[str] = []
        for bounded in (True, False):
            ratios = [_without(name, family, bounded=bounded) for family in found]
            shares.append(mean(ratio >= 1 + SLOWER for ratio in ratios))
            cells += [f"{shares[-1]:.1%}", f"{exp(mean(map(log, ratios))) - 1:.2%}"]
        table.add_row(name, *cells)
        what = f"{name}: plans are {SLOWER:.0%} slower without it in {FAMILIES:.0%} of the families"
        goals.append(Goal(what, max(shares) >= FAMILIES, f"{max(shares):.1%}"))
    return Part(tables=[table], goals=goals)


def _without(name: str, family: Sequence[Planned], *, bounded: bool) -> float:
    others = [other for other in NAMES if other != name]
    without = mean(one.best(others, bounded=bounded) for one in family)
    return without / mean(one.best(NAMES, bounded=bounded) for one in family)
