"""Streams that stand in the graph already: written in the model's source, or by an earlier run of the pass."""

from __future__ import annotations

from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs.scopes import priorities, stream_labels
from npucompose.results.streams import Decision
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.streams import explicit
from npucompose.streams.emit import strip
from npucompose.streams.found import Found, named, write
from npucompose.streams.issue import issued_before
from npucompose.streams.problem import Problem
from npucompose.streams.validate import validate

REPAIRABLE = frozenset(("race", "scope_nested", "scope_label", "record_nothing", "lifetime"))
"""What writing the same streams anew puts right; scopes that do not pair leave nothing to go by."""


def keep(graph: fx.Graph, problem: Problem, can: Capabilities) -> tuple[int, Decision]:
    """(kernels whose place or events changed, what was decided) for a graph with streams.

    A plan of the configuration must be the one that is there. Streams that are safe stay as they are; others get the
    events that their data need, where `unsafe: fix` allows it. Where the device syncs data between streams by itself
    nothing is checked but an order that was asked for.
    """
    wanted = problem.wanted
    there = _there(graph, problem)
    if wanted.plan:
        _same(problem, there)
    if not (can.explicit_events or wanted.edges):
        why = "streams of the graph itself; the mode syncs their data"
        return 0, there.decision(applied=True, why=why, validated=False)
    try:
        validate(graph, problem.needed, can)
    except PlanError as error:
        if wanted.unsafe == "error" or error.code not in REPAIRABLE:
            raise
        return _repaired(graph, problem, can)
    return 0, there.decision(applied=True, why="streams of the graph itself")


def _there(graph: fx.Graph, problem: Problem) -> Found:
    labels = stream_labels(graph)
    return named(problem, [labels.get(kernel, DEFAULT_STREAM) for kernel in problem.kernels], priorities(graph))


def _same(problem: Problem, there: Found) -> None:
    for node, stream in zip(problem.kernels, explicit.assigned(problem.needed, problem.wanted), strict=True):
        if there.plan.nodes[node.name] != stream:
            raise PlanError(
                "already_planned",
                f"The graph has stream scopes already, and they differ from streams.plan: '{node.name}' is on "
                f"'{there.plan.nodes[node.name]}', the plan says '{stream}'. Remove one of the two, or say "
                "streams.override=true to replace those of the graph.",
            )


def _repaired(graph: fx.Graph, problem: Problem, can: Capabilities) -> tuple[int, Decision]:
    """The same streams, flat and with all events; what records and waits ordered before stays ordered."""
    labels = stream_labels(graph)
    asked = [
        (first, kernel)
        for kernel, firsts in issued_before(graph, problem.kernels).items()
        for first in firsts
        if labels.get(first) != labels.get(kernel)
    ]
    given = priorities(graph)
    chosen = {kernel: labels.get(kernel, DEFAULT_STREAM) for kernel in problem.kernels}
    strip(graph)
    again = Problem.of(graph, problem.wanted, can, asked)
    found = named(again, [chosen[kernel] for kernel in again.kernels], given)
    write(graph, found, can)
    return found.aside, found.decision(applied=True, why="streams of the graph itself, with the events they lacked")
