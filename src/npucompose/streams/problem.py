"""A graph's kernels as numbers in a legal order: what the algorithms plan, and the way back to names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from attrs import field, frozen
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence, Edge
from npucompose.schema.capabilities import Capabilities, Clocked
from npucompose.schema.streams import Streams
from npucompose.streams import dag, explicit
from npucompose.streams.cost import Sizes, roofline
from npucompose.streams.profile import clocked, measured, work_of
from npucompose.streams.work import Work
from npucompose.vendor.device_model import DeviceModel

Pair = tuple[fx.Node, fx.Node]
"""(first, then)."""


@frozen(kw_only=True, eq=False, slots=False)
class Problem:
    """What is to be planned; every edge goes from a lower to a higher number."""

    graph: fx.Graph
    wanted: Streams
    model: DeviceModel
    profiles: bool
    needed: Dependence
    """With the edges that were asked for; `kernels` in a legal order."""
    clocked: Clocked | None = None
    """The kernels' measured times, where they were asked for and the device has a clock."""
    sizes: Sizes = field(factory=Sizes)

    @classmethod
    def of(cls, graph: fx.Graph, wanted: Streams, can: Capabilities, asked: Sequence[Pair] = ()) -> Problem:
        """`asked` is order beside that of `wanted.edges`.

        Raises PlanError("cycle", …) with the path when what was asked for contradicts what the data need.
        """
        found = Dependence.from_graph(graph)
        asked = (*asked, *explicit.extra_edges(found, wanted))
        times = clocked(graph, can.clock) if wanted.cost == "measured" and can.clock is not None else None
        return cls(
            graph=graph,
            wanted=wanted,
            model=wanted.device.onto(can.device_model if times is None else times.onto(can.device_model)),
            clocked=times,
            profiles=can.profiles,
            needed=_with_asked(found, asked) if asked else found,
        )

    @property
    def kernels(self) -> tuple[fx.Node, ...]:
        return self.needed.kernels

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        number = {kernel: index for index, kernel in enumerate(self.kernels)}
        return [(number[edge.first], number[edge.then]) for edge in self.needed.edges]

    @cached_property
    def then(self) -> list[list[int]]:
        return dag.successors(len(self.kernels), self.edges)

    @cached_property
    def names(self) -> list[str]:
        return [kernel.name for kernel in self.kernels]

    @cached_property
    def original(self) -> list[int]:
        """The place of each kernel among the graph's kernels as they stand there now."""
        number = {kernel: index for index, kernel in enumerate(self.kernels)}
        places = [0] * len(number)
        found = (number[node] for node in self.graph.nodes if node in number)
        for place, index in enumerate(found):
            places[index] = place
        return places

    @cached_property
    def factories(self) -> list[int]:
        return [index for index, kernel in enumerate(self.kernels) if not kernel.all_input_nodes]

    @cached_property
    def work(self) -> list[Work]:
        """By shapes, as measured, or a microsecond each where nothing is to be known."""
        if self.wanted.cost == "roofline":
            return roofline(self.kernels, self.model, self.sizes)
        if self.wanted.cost == "none":
            return [Work(us=1.0)] * len(self.kernels)
        if not self.profiles:
            raise PlanError(
                "no_profile",
                "streams.cost=measured times every kernel of the graph, which this target cannot do while it compiles; "
                "choices: roofline, none. target=cpu can.",
            )
        return measured(self.graph, self.needed) if self.clocked is None else work_of(self.clocked, self.needed)

    @cached_property
    def serial_us(self) -> float:
        """All kernels one after the other."""
        return sum(item.us if item.in_a_row_us is None else item.in_a_row_us for item in self.work)


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
    )
