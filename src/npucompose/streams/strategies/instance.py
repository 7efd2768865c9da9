"""What every strategy is given, what it answers with, and how an answer is judged. Knows only numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from attrs import frozen

from npucompose.streams import dag
from npucompose.streams.events import fewest_events, in_runs, merged_events
from npucompose.streams.simulate import Resource, Simulation, Work, is_longer, simulate
from npucompose.vendor.devices import DeviceModel

ROUNDING = 1e-9
"""Share of a time by which it may differ for being added up in another order."""


@frozen(kw_only=True)
class Assignment:
    """A stream for each kernel, and the order in which each stream takes its kernels (a legal order of all)."""

    streams: Sequence[int]
    ranked: Sequence[int]


@frozen(kw_only=True, eq=False)
class TimedPlan:
    """An assignment with its list of kernels, its events, and the times that the simulation gives it."""

    streams: Sequence[int]
    order: Sequence[int]
    events: Sequence[tuple[int, int]]
    simulation: Simulation

    @property
    def makespan(self) -> float:
        """Simulated microseconds of all kernels."""
        return self.simulation.makespan

    @property
    def rank(self) -> tuple[float, int, int]:
        """The faster plan is the better one; then the one with fewer events, then with fewer streams."""
        return self.makespan, len(self.events), len(set(self.streams))


@frozen(kw_only=True, eq=False, slots=False)
class Instance:
    """Kernels to be put on at most `streams` streams of a device; edges go forward.

    `factories` are kernels that read nothing (`zeros`, `arange`).
    """

    then: dag.Successors
    work: Sequence[Work]
    streams: int
    model: DeviceModel
    factories: Sequence[int] = ()

    @cached_property
    def before(self) -> list[list[int]]:
        return dag.predecessors(self.then)

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        return [(index, target) for index, targets in enumerate(self.then) for target in targets]

    @cached_property
    def us(self) -> list[float]:
        return [item.us for item in self.work]

    @cached_property
    def urgency(self) -> list[float]:
        """Of each kernel the heaviest path that begins with it: the upward rank of H. Topcuoglu et al., 2002 (HEFT)."""
        return dag.longest_paths(self.us, self.then)

    @cached_property
    def scarcest(self) -> Resource:
        """What all kernels together take longest of."""
        return max(self._taken, key=lambda resource: self._taken[resource])

    @cached_property
    def _taken(self) -> dict[Resource, float]:
        """Microseconds for which all kernels together keep the whole of each resource."""
        cube, vector = max(1, self.model.cube), max(1, self.model.vector)
        return {
            "cube": sum(item.us * item.cube for item in self.work) / cube,
            "vector": sum(item.us * item.vector for item in self.work) / vector,
            "bandwidth": sum(item.us * item.bandwidth for item in self.work),
        }

    @cached_property
    def until_scarcest(self) -> list[float]:
        """Of each kernel how long until it, or the first one behind it, asks for the scarcest resource.

        Where none does, as long as all kernels take.
        """
        scarcest, never = self.scarcest, sum(self.us)
        until = [never] * len(self.work)
        for index in reversed(range(len(self.work))):
            if getattr(self.work[index], scarcest):
                until[index] = 0.0
            elif targets := self.then[index]:
                until[index] = min(never, self.us[index] + min([until[target] for target in targets]))
        return until

    @cached_property
    def communicates(self) -> bool:
        return any(item.link for item in self.work)

    @cached_property
    def least(self) -> float:
        """A time that no plan beats: the heaviest path, the streams' even share, the scarcest resource; 0 for a graph
        that communicates, whose link takes no time of a stream."""
        if self.communicates:
            return 0.0
        path = max(self.urgency, default=0.0)
        return max(path, sum(self.us) / self.streams, *self._taken.values())

    def timed(self, found: Assignment) -> TimedPlan:
        """The plan of an assignment after `tidy`."""
        return self.realised(tidy(found, self))

    def realised(self, found: Assignment) -> TimedPlan:
        """The plan of an assignment: listed in long runs, with the fewest events that keep all edges, simulated."""
        order = in_runs(found.streams, self.then, found.ranked)
        events = fewest_events(order, found.streams, self.edges)
        simulation = simulate(order, found.streams, events, self.work, self.model)
        return TimedPlan(streams=found.streams, order=order, events=events, simulation=simulation)

    def realised_within(self, tidied: Assignment, most: float) -> TimedPlan | None:
        """As `realised`; None, sooner than that would be known otherwise, where the plan takes longer than `most`.

        For kernels that each keep their stream until they end: none on a link.
        """
        streams = tidied.streams
        by = most * (1 + ROUNDING)
        latest = self._latest(tidied, by)
        if any(latest[index] < (self.model.stream_us if streams[index] else 0.0) for index in tidied.ranked):
            return None
        events = [(first, then) for first, then in self.edges if streams[first] != streams[then]]
        if is_longer(tidied.ranked, streams, events, self.work, self.model, by, latest):
            return None
        plan = self.realised(tidied)
        return plan if plan.makespan <= most else None

    def _latest(self, found: Assignment, most: float) -> list[float]:
        """When each kernel starts at the latest so that all end by `most`, if none slows another one down."""
        latest = [most] * len(self.work)
        next_on: dict[int, float] = {}
        for index in reversed(found.ranked):
            stream = found.streams[index]
            ends = next_on.get(stream, most)
            for target in self.then[index]:
                by = latest[target] - (self.model.event_us if found.streams[target] != stream else 0.0)
                if by < ends:
                    ends = by
            latest[index] = next_on[stream] = ends - self.us[index]
        return latest

    def with_fewer_events(self, plan: TimedPlan) -> TimedPlan:
        """The same plan with events merged where that moves no kernel in time; itself where none can be.

        A graph that communicates keeps its own: its collectives start when the link is free, not when they are issued.
        """
        if self.communicates:
            return plan
        simulation = plan.simulation
        times = simulation.start, simulation.end
        merged = merged_events(plan.order, plan.streams, plan.events, times, self.model.event_us)
        then = dag.successors(len(self.work), [*self.edges, *merged])
        order = in_runs(plan.streams, then, plan.order)
        events = fewest_events(order, plan.streams, merged)
        again = simulate(order, plan.streams, events, self.work, self.model)
        other = TimedPlan(streams=plan.streams, order=order, events=events, simulation=again)
        return min(plan, other, key=lambda one: one.rank)


def tidy(found: Assignment, instance: Instance) -> Assignment:
    """Stream 0 is the one with the most work, the others are numbered as the kernels need them.

    Stream 0 becomes the default stream, which needs no waking and carries the graph's outputs. A factory goes where its
    first reader is, so that it needs no event.
    """
    streams = list(found.streams)
    for index in reversed(instance.factories):
        if instance.then[index]:
            streams[index] = streams[min(instance.then[index])]
    load: dict[int, float] = dict.fromkeys((streams[index] for index in found.ranked), 0.0)
    for index in found.ranked:
        load[streams[index]] += instance.us[index]
    first = max(load, key=lambda stream: load[stream], default=0)
    number = {stream: place for place, stream in enumerate(dict.fromkeys((first, *load)))}
    return Assignment(streams=[number[stream] for stream in streams], ranked=found.ranked)
