"""A graph's kernels as numbers in a legal order, a plan for them in numbers, and what is predicted of that plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import attrs
import torch
from attrs import field, frozen
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Allocation, Dependence, Edge, allocations
from npucompose.graphs.dependence import storage_of
from npucompose.graphs.effects import core_limits, has_only_limits, is_collective, is_planned, tensors_in
from npucompose.schema.capabilities import Capabilities, Clocked
from npucompose.schema.cost_table import CostTable
from npucompose.schema.profile_table import ProfileTable
from npucompose.schema.streams import Cores, CostSource, Streams
from npucompose.streams import dag, explicit, gangs
from npucompose.streams.calibrated import Tabled, calibrated, profiled
from npucompose.streams.cost import ResultSizes, clocked, elements_of, measured, on_link, roofline, work_of
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.memory import Footprint, Life, footprint
from npucompose.streams.simulate import Work, simulate
from npucompose.streams.strategies.instance import Instance, TimedPlan
from npucompose.vendor.devices import DeviceModel

Pair = tuple[fx.Node, fx.Node]
"""(first, then)."""


@frozen(kw_only=True, eq=False, slots=False)
class Problem:
    """What is to be planned; every edge goes from a lower to a higher number."""

    graph: fx.Graph
    wanted: Streams
    model: DeviceModel
    profiles: bool
    pools_apart: bool = False
    """Each stream has a pool of its own: Note [Whose memory may be used again]."""
    needed: Dependence
    """With the edges that were asked for; `kernels` in a legal order."""
    clocked: Clocked | None = None
    """The kernels' measured times, where they were asked for and the device has a clock."""
    table: CostTable | None = None
    """The times of kernels on this machine, where they are asked for and there is such a table."""
    profile: ProfileTable | None = None
    """The times of an NPU's kernels, where they are asked for."""
    threads: int = field(factory=torch.get_num_threads)
    """That torch gives to a kernel where no other one runs beside it."""
    sizes: ResultSizes = field(factory=ResultSizes)
    limits: Mapping[fx.Node, Cores] = field(factory=dict[fx.Node, Cores])
    """On how many cores kernels run at most, as the graph's own scopes say."""

    @classmethod
    def from_graph(
        cls,
        graph: fx.Graph,
        wanted: Streams,
        can: Capabilities,
        asked: Sequence[Pair] = (),
        limits: Mapping[fx.Node, Cores] | None = None,
    ) -> Problem:
        """`asked` is order beside that of `wanted.edges`, `limits` are those of scopes that the graph has no more.

        Kernels that take their cores all at once take turns, unless a person said where streams or cores go.

        Raises PlanError("cycle", …) with the path when what was asked for contradicts what the data need.
        """
        found = Dependence.from_graph(graph)
        asked = (*asked, *explicit.extra_edges(found, wanted))
        needed = _with_asked(found, asked) if asked else found
        kept = limits if limits is not None else core_limits(graph) if can.core_limits else {}
        model = wanted.device.onto(can.device_model)
        has_streams = is_planned(graph) and not has_only_limits(graph)
        if not has_streams and not any(entry.cores for entry in wanted.plan):
            in_turn = gangs.turns(needed, model, kept)
            needed = _with_asked(needed, in_turn) if in_turn else needed
        asks_clock = wanted.cost == "measured" and not any(map(is_collective, found.kernels))
        times = clocked(graph, can.clock) if asks_clock and can.clock is not None else None
        table = can.cost_table() if wanted.cost == "calibrated" and can.cost_table is not None else None
        known = times or table
        return cls(
            graph=graph,
            wanted=wanted,
            model=model if known is None else wanted.device.onto(known.onto(can.device_model)),
            clocked=times,
            table=table,
            profile=_profile_of(wanted, model),
            profiles=can.profiles,
            pools_apart=can.frees_early,
            needed=needed,
            limits=kept,
        )

    def on_its_model(self, can: Capabilities) -> Capabilities:
        """The same abilities on the device that the configuration's figures say."""
        return attrs.evolve(can, device_model=self.model)

    @property
    def kernels(self) -> tuple[fx.Node, ...]:
        return self.needed.kernels

    @cached_property
    def number(self) -> dict[fx.Node, int]:
        return {kernel: index for index, kernel in enumerate(self.kernels)}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        number = self.number
        return [(number[edge.first], number[edge.then]) for edge in self.needed.edges]

    @cached_property
    def then(self) -> list[list[int]]:
        return dag.successors(len(self.kernels), self.edges)

    @cached_property
    def names(self) -> list[str]:
        return [kernel.name for kernel in self.kernels]

    @cached_property
    def original(self) -> list[int]:
        """The kernels in the order in which they stand in the graph now."""
        return [self.number[node] for node in self.graph.nodes if node in self.number]

    @cached_property
    def factories(self) -> list[int]:
        return [index for index, kernel in enumerate(self.kernels) if not kernel.all_input_nodes]

    @cached_property
    def work(self) -> list[Work]:
        """By shapes, as measured, or a microsecond each where nothing is to be known; collectives on the link.

        Each on the cores that the graph's own limits leave it.
        """
        limits = {self.number[kernel]: cores for kernel, cores in self.limits.items() if kernel in self.number}
        return limited(on_link(self._alone, self.needed, self.model, self.sizes), limits)

    @cached_property
    def work_in_a_row(self) -> list[Work]:
        """The same on one stream, where a kernel may take all threads."""
        return [item if item.in_a_row_us is None else attrs.evolve(item, us=item.in_a_row_us) for item in self.work]

    @property
    def communicates(self) -> bool:
        return any(map(is_collective, self.kernels))

    @property
    def _alone(self) -> list[Work]:
        if self.tabled is not None:
            return list(self.tabled.work)
        if self.cost == "roofline":
            return roofline(self.kernels, self.model, self.sizes)
        if self.wanted.cost == "none":
            return [Work(us=1.0)] * len(self.kernels)
        if self.communicates:
            raise PlanError(
                "no_profile",
                "streams.cost=measured would run the graph on this rank as often as it likes, and its collectives need "
                "all ranks at once; choices: roofline, none.",
            )
        if not self.profiles:
            raise PlanError(
                "no_profile",
                "streams.cost=measured times every kernel of the graph, which this target cannot do while it compiles; "
                "choices: roofline, none. target=cpu can.",
            )
        return measured(self.graph, self.needed) if self.clocked is None else work_of(self.clocked, self.needed)

    @property
    def cost(self) -> CostSource:
        """How long kernels take, by what: a machine without a table falls back on their shapes."""
        if self.profile is not None:
            return "profile"
        return "roofline" if self.wanted.cost == "calibrated" and self.table is None else self.wanted.cost

    @cached_property
    def tabled(self) -> Tabled | None:
        """Where the kernels' times come from a table of this machine, or from a profile."""
        if self.table is not None:
            return calibrated(self.kernels, self.table, self.sizes)
        return None if self.profile is None else profiled(self.kernels, self.profile, self.model, self.sizes)

    @property
    def spread(self) -> float | None:
        """By which share the kernels' times may be longer than `work` has them; None where nobody knows."""
        known = self.clocked or self.tabled
        return None if known is None else known.spread

    def instance(self, streams: int) -> Instance:
        """In numbers alone, for plans on at most so many streams; on one, kernels may use threads of their own."""
        work = self.work if streams > 1 else self.work_in_a_row
        return Instance(then=self.then, work=work, streams=streams, model=self.model, factories=tuple(self.factories))

    @cached_property
    def lives(self) -> list[Life]:
        """What its kernels make; read off the graph as it is now."""
        return lives_of(self)

    @cached_property
    def one_stream(self) -> Footprint:
        """What the intermediate results need when one kernel follows the other."""
        count = len(self.kernels)
        return footprint(range(count), [0] * count, (), self.lives, apart=self.pools_apart)

    @cached_property
    def serial_us(self) -> float:
        """All kernels one after the other."""
        return sum(item.us if item.in_a_row_us is None else item.in_a_row_us for item in self.work)


def _profile_of(wanted: Streams, model: DeviceModel) -> ProfileTable | None:
    if wanted.profile is None:
        return None
    table = ProfileTable.from_file(Path(wanted.profile))
    if not model.cube:
        raise PlanError(
            "no_profile",
            f"streams.profile has times of {table.soc}, and plans here are for {model.name}, which is no NPU; "
            "leave it out there.",
        )
    return table


def _with_asked(found: Dependence, asked: Sequence[Pair]) -> Dependence:
    number = {kernel: index for index, kernel in enumerate(found.kernels)}
    needed = [(number[edge.first], number[edge.then]) for edge in found.edges]
    extra = [(number[first], number[then]) for first, then in asked]
    order, circle = dag.topological(dag.successors(len(number), [*needed, *extra]))
    if circle:
        path = " -> ".join(found.kernels[index].name for index in circle)
        raise PlanError("cycle", f"The order asked for goes in a circle: {path}.")
    return Dependence(
        kernels=tuple(found.kernels[index] for index in order),
        edges=(*found.edges, *(Edge(first, then, "asked for") for first, then in asked)),
        origins=found.origins,
        aliases=found.aliases,
        awaited=found.awaited,
    )


def limited(work: list[Work], limits: Mapping[int, Cores]) -> list[Work]:
    """The same kernels, those of `limits` on no more cores than these."""
    if not limits:
        return work
    return [
        item.on(limits[index].aicore, limits[index].vectorcore) if index in limits else item
        for index, item in enumerate(work)
    ]


Pairs = Sequence[tuple[int, int]]


@frozen(kw_only=True, eq=False, slots=False)
class ScheduledPlan(TimedPlan):
    """A plan in numbers: streams chosen, kernels ordered, events derived, time simulated."""

    problem: Problem
    limits: Mapping[int, Cores] = field(factory=dict[int, Cores])
    """Of the kernels that the plan gives a part of the cores."""
    added: Pairs = ()
    """(first, then) of kernels that no data orders: one waits for cores or for memory."""

    @cached_property
    def work(self) -> list[Work]:
        """Of each kernel on the cores that it has."""
        return limited(self.problem.work, self.limits)

    def limit(self, index: int) -> Cores | None:
        """On how many cores the kernel runs at most: what the graph says and what the plan says hold both."""
        given = (self.problem.limits.get(self.problem.kernels[index]), self.limits.get(index))
        found = [cores for cores in given if cores is not None]
        if not found:
            return None
        return Cores(aicore=min(cores.aicore for cores in found), vectorcore=min(cores.vectorcore for cores in found))

    @classmethod
    def from_timed(cls, problem: Problem, plan: TimedPlan) -> ScheduledPlan:
        return cls(
            problem=problem, streams=plan.streams, order=plan.order, events=plan.events, simulation=plan.simulation
        )

    @cached_property
    def footprint(self) -> Footprint:
        """What the intermediate results need, however long each kernel takes."""
        problem = self.problem
        return footprint(self.order, self.streams, self.events, problem.lives, apart=problem.pools_apart)


def schedule(
    problem: Problem,
    streams: Sequence[int],
    ranked: Sequence[int],
    added: Pairs = (),
    limits: Mapping[int, Cores] | None = None,
) -> ScheduledPlan:
    """Kernels on `streams`, on each in the order of `ranked`; `added` is order that no data asks for.

    `limits` are the cores of those kernels that get a part of them.
    """
    limits = limits or {}
    order = in_runs(streams, problem.then, ranked)
    edges = [*problem.edges, *added]
    place = {index: position for position, index in enumerate(order)}
    if any(place[first] > place[then] for first, then in added):
        order = in_runs(streams, dag.successors(len(order), edges), ranked)
    events = fewest_events(order, streams, edges)
    work = problem.work if any(streams) or not problem.communicates else problem.work_in_a_row
    simulation = simulate(order, streams, events, limited(work, limits), problem.model)
    return ScheduledPlan(
        problem=problem, streams=streams, order=order, events=events, simulation=simulation, limits=limits, added=added
    )


def lives_of(problem: Problem) -> list[Life]:
    """Of every piece of memory that a kernel makes; whoever uses it under another name (in place, a view) counts."""
    number, pieces = problem.number, allocations(problem.graph, problem.needed)
    together = Counter(memory.maker for memory in pieces)
    return [
        Life(
            number[memory.maker],
            problem.sizes[memory.maker][1] if together[memory.maker] == 1 else _nbytes(memory),
            None if memory.returned else list(dict.fromkeys(number[user] for user in memory.touched_by)),
        )
        for memory in sorted(pieces, key=lambda memory: number[memory.maker])
    ]


def _nbytes(memory: Allocation) -> float:
    """Of one of several results of a kernel."""
    parts = tensors_in(memory.maker.meta["val"])
    return max(elements_of(part) * part.dtype.itemsize for part in parts if storage_of(part) == memory.storage)
