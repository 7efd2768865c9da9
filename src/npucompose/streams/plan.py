"""The act of planning: choose streams, order the kernels, derive the events, write them into the graph, check them."""

from __future__ import annotations

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence, Edge, is_planned
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM, Event, Plan, Streams
from npucompose.streams import assign
from npucompose.streams.emit import emit
from npucompose.streams.order import fewest_events, in_runs
from npucompose.streams.validate import plan_of, validate


def plan(graph: fx.Graph, wanted: Streams, can: Capabilities) -> Plan:
    """The plan for a graph that has none; changes nothing.

    For `mm = x @ x; a = x.abs(); s = a - x; return mm + s`: mm and the sum on the default stream, abs and sub on
    "stream1", one event from sub to the sum.
    """
    return _plan(Dependence.of(graph), wanted, can)


def apply(graph: fx.Graph, wanted: Streams, can: Capabilities) -> int:
    """Write the plan into the graph and say how many kernels left the default stream (or, without streams, moved).

    A graph that has scopes, its own or a model's, stays as it is: its streams are checked where the mode needs explicit
    events, and 0 returned. A plan that cannot be made safe is a PlanError, and so is an explicit plan for a graph that
    is planned otherwise.
    """
    if wanted.kind == "none":
        return 0
    dependence = Dependence.of(graph)
    if is_planned(graph):
        _keep(graph, _with_asked(dependence, wanted), wanted, can)
        return 0
    found = _plan(dependence, wanted, can)
    aside = sum(stream != DEFAULT_STREAM for stream in found.nodes.values())
    moved = sum(node.name != name for node, name in zip(dependence.kernels, found.nodes, strict=True))
    if not aside and not (wanted.edges and moved):
        return 0
    emit(graph, found, dependence, can)
    validate(graph, _with_asked(dependence, wanted))
    return aside or moved


def _with_asked(dependence: Dependence, wanted: Streams) -> Dependence:
    asked = [
        Edge(dependence.kernels[first], dependence.kernels[then], "asked for")
        for first, then in assign.extra_edges(dependence, wanted)
    ]
    return Dependence(
        kernels=dependence.kernels,
        edges=(*dependence.edges, *asked),
        origins=dependence.origins,
        aliases=dependence.aliases,
    )


def _keep(graph: fx.Graph, needed: Dependence, wanted: Streams, can: Capabilities) -> None:
    """Refuse a planned graph whose plan is unsafe in this mode, or another one than was asked for."""
    if can.explicit_events or wanted.edges:
        validate(graph, needed)
    if not wanted.plan:
        return
    there = plan_of(graph, needed)
    for node, stream in zip(needed.kernels, assign.explicit(needed, wanted), strict=True):
        if there.nodes[node.name] != stream:
            raise PlanError(
                "already_planned",
                f"The graph has stream scopes already, and they differ from streams.plan: '{node.name}' is on "
                f"'{there.nodes[node.name]}', the plan says '{stream}'. Remove one of the two.",
            )


def _plan(dependence: Dependence, wanted: Streams, can: Capabilities) -> Plan:
    numbers = {node: index for index, node in enumerate(dependence.kernels)}
    names = [node.name for node in dependence.kernels]
    edges = [(numbers[edge.first], numbers[edge.then]) for edge in dependence.edges]
    extra = assign.extra_edges(dependence, wanted)
    limit = min(wanted.max_streams, can.max_streams)
    if wanted.kind == "none":
        streams = [DEFAULT_STREAM] * len(names)
    elif wanted.kind == "explicit" or wanted.plan:
        streams = assign.explicit(dependence, wanted)
        _check_count(streams, wanted, can)
    else:
        streams = assign.auto(dependence, edges, limit)
    edges += extra
    order = in_runs(streams, edges, names)
    events = fewest_events(order, streams, edges)
    return Plan(
        nodes={names[index]: streams[index] for index in order},
        events=tuple(Event(recorder=names[first], waiter=names[then]) for first, then in events),
        priorities={s: p for s, p in assign.priorities(wanted).items() if s in streams},
    )


def _check_count(streams: list[str], wanted: Streams, can: Capabilities) -> None:
    used = sorted({DEFAULT_STREAM, *streams})
    if len(used) > wanted.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The plan uses {len(used)} streams ({', '.join(used)}), streams.max_streams is {wanted.max_streams}: "
            "raise it or name fewer.",
        )
    if len(used) > can.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The plan uses {len(used)} streams ({', '.join(used)}); target={can.target} mode={can.mode} has "
            f"{can.max_streams}.",
        )
