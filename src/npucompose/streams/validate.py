"""Reading a planned graph back (Plan) and proving it: every order that the kernels need is kept on every timing."""

from __future__ import annotations

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence, Edge
from npucompose.graphs.effects import is_collective
from npucompose.graphs.scopes import priorities, stream_labels
from npucompose.results.streams import Event, Plan
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.streams.issue import issued_before
from npucompose.streams.lifetime import check_lifetimes
from npucompose.streams.limits import check_budget, check_gangs, check_operators
from npucompose.streams.timing import Timing


def plan_of(graph: fx.Graph, dependence: Dependence | None = None) -> Plan:
    """The plan that stands in a graph, safe or not: streams (innermost scopes) and events; by default one stream."""
    kernels = (dependence or Dependence.from_graph(graph)).kernels
    labels = stream_labels(graph)
    before = issued_before(graph, kernels)
    streams = {kernel: labels.get(kernel, DEFAULT_STREAM) for kernel in before}
    return Plan(
        nodes={kernel.name: stream for kernel, stream in streams.items()},
        events=tuple(
            Event(recorder=first.name, waiter=kernel.name)
            for kernel, firsts in before.items()
            for first in firsts
            if streams[first] != streams[kernel]
        ),
        priorities=priorities(graph),
    )


def validate(graph: fx.Graph, dependence: Dependence | None = None, can: Capabilities | None = None) -> None:
    """Raise PlanError unless the graph is safe however long each kernel takes; a hand-written graph may be given too.

    The codes: `scope_unpaired`, `scope_nested`, `scope_label` (the label must be the first key), `record_nothing` (no
    kernel before it on its stream), `deadlock` (a wait for what is recorded only after it; the circle is printed),
    `race`, `collective_order`, `random_order`, `effect_order`, `order` (an edge of `dependence` that neither stream
    order nor events keep; `dependence` is that of the graph before it was planned, by default of the graph itself).
    With `can` also `mode` (operators that the mode does not know), `too_many_streams`, `too_many_events`, `gang`
    (kernels that take all their cores at once, any number of them together more than there are) and `lifetime` (memory
    that a stream may reuse while another one still reads it).
    """
    needed = dependence or Dependence.from_graph(graph)
    if can is not None:
        check_operators(graph, can)
    timing = Timing.of(graph, needed)
    for edge in needed.edges:
        if not timing.orders(edge.first, edge.then):
            raise PlanError(
                _code(edge),
                f"'{edge.first.name}' on stream '{timing.streams[edge.first.name]}' must be done before "
                f"'{edge.then.name}' on stream '{timing.streams[edge.then.name]}' ({edge.why}), but neither stream "
                "order nor an event says so.",
            )
    if can is not None:
        check_budget(timing, can)
        check_gangs(graph, timing, needed, can)
        if can.frees_early:
            check_lifetimes(graph, timing, needed)


def _code(edge: Edge) -> str:
    if edge.why == "effect order" and is_collective(edge.first) and is_collective(edge.then):
        return "collective_order"
    return {"random order": "random_order", "effect order": "effect_order", "asked for": "order"}.get(edge.why, "race")
