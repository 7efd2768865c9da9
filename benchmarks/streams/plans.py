"""A plan of a graph with its simulated time: ours, and any that a stream and an order for each kernel make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from attrs import frozen

from npucompose.schema.streams import Objective
from npucompose.streams import assignment
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.simulate import simulate
from npucompose.streams.strategies.instance import Instance
from npucompose.vendor.devices import ATLAS_A2, DeviceModel
from tests.streams import dags
from tests.streams.named import NamedGraph

MODEL = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0)
"""What every plan is simulated on."""


@frozen(kw_only=True)
class Plan:
    """Kernels on streams in a legal order, the events that the graph's edges need, and the simulated time."""

    order: Sequence[int]
    streams: Sequence[int]
    events: Sequence[tuple[int, int]]
    makespan: float

    @property
    def rank(self) -> tuple[float, int, int]:
        """As the product ranks plans: time, then events, then streams."""
        return self.makespan, len(self.events), len(set(self.streams))


Ranked = tuple[Sequence[int], Sequence[int]]
"""(stream of each kernel, the kernels in the order in which each stream takes its own, a legal one)."""
Planner = Callable[[NamedGraph, int], Sequence[Ranked]]
"""What plans a graph on at most so many streams; of several answers the fastest counts."""


def realised(graph: NamedGraph, streams: Sequence[int], ranked: Sequence[int], model: DeviceModel = MODEL) -> Plan:
    """With the fewest events for that order, whoever found it: a rival's plan loses nothing to its own events."""
    order = in_runs(streams, graph.then, ranked)
    events = fewest_events(order, streams, sorted(dags.pairs(graph.then)))
    makespan = simulate(order, streams, events, graph.work, model).makespan
    return Plan(order=order, streams=streams, events=events, makespan=makespan)


def best(graph: NamedGraph, found: Sequence[Ranked]) -> Plan:
    return min((realised(graph, *one) for one in found), key=lambda plan: plan.rank)


def ours(graph: NamedGraph, streams: int, objective: Objective = "makespan", model: DeviceModel = MODEL) -> Plan:
    """What the product chooses for this graph."""
    instance = Instance(then=graph.then, work=graph.work, streams=streams, model=model)
    found = min(assignment.plans(objective, instance), key=lambda plan: plan.rank)
    return Plan(order=found.order, streams=found.streams, events=found.events, makespan=found.simulation.makespan)
