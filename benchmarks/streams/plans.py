"""A plan of a graph with its simulated time: ours, and any that a stream and an order for each kernel make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from npucompose.schema.streams import Objective
from npucompose.streams import assignment
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.simulate import simulate
from npucompose.streams.strategies.instance import Instance, TimedPlan
from npucompose.vendor.devices import ATLAS_A2
from tests.streams import dags
from tests.streams.named import NamedGraph

MODEL = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0)
"""What every plan is simulated on."""


Ranked = tuple[Sequence[int], Sequence[int]]
"""(stream of each kernel, the kernels in the order in which each stream takes its own, a legal one)."""
Planner = Callable[[NamedGraph, int], Sequence[Ranked]]
"""What plans a graph on at most so many streams; of several answers the fastest counts."""


def realised(graph: NamedGraph, streams: Sequence[int], ranked: Sequence[int]) -> TimedPlan:
    """With the fewest events for that order, whoever found it: a rival's plan loses nothing to its own events."""
    order = in_runs(streams, graph.then, ranked)
    events = fewest_events(order, streams, sorted(dags.pairs(graph.then)))
    simulation = simulate(order, streams, events, graph.work, MODEL)
    return TimedPlan(order=order, streams=streams, events=events, simulation=simulation)


def best(graph: NamedGraph, found: Sequence[Ranked]) -> TimedPlan:
    return min((realised(graph, *one) for one in found), key=lambda plan: plan.rank)


def ours(graph: NamedGraph, streams: int, objective: Objective = "makespan") -> TimedPlan:
    """What the product chooses for this graph."""
    instance = Instance(then=graph.then, work=graph.work, streams=streams, model=MODEL)
    return min(assignment.plans(objective, instance), key=lambda plan: plan.rank)
