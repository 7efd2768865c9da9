"""What one capture of an FX graph takes of a device, foretold from the graph with its stream plan. Nothing runs.

# Note [Events that TorchAir adds]
TorchAir closes a graph that has side streams: the capture's own stream records an event first, each side stream waits
for it and records one that the capture's own stream waits for in the end. The package `torchair` does so for each scope
that names a stream, `npugraph_ex` once for each stream (`apply_event_closure_with_multi_stream` of both, 2.13.0).

# Note [Copies that TorchAir removes]
`copy_(input, op(input, …))` becomes `op_(input, …)` where nobody reads the input in between
(`_reinplace_input_mutated_ops`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from attrs import frozen
from torch import fx
from torch.fx.passes.reinplace import _maybe_get_inplace_op

from npucompose.graphs import Dependence
from npucompose.graphs.effects import Scope, control, is_host, nodes_in, op_facts, tag_of

ClosedBy = Literal["scope", "stream"]
"""What gets an event of its own: see Note [Events that TorchAir adds]."""
BARE = ("empty", "new_empty")
"""Operators whose names begin so give memory and start no kernel."""


@frozen(kw_only=True)
class CaptureCounts:
    """`counts_of(graph)` of a graph without a plan: `CaptureCounts(streams=1, kernels=4, records=0, waits=0)`."""

    streams: int
    """The capture's own among them."""
    kernels: int
    records: int = 0
    """Events: each is recorded once."""
    waits: int = 0

    @property
    def tasks(self) -> int:
        """Places that it takes in the queues of its streams: an event's record and each wait take one too."""
        return self.kernels + self.records + self.waits


@frozen(kw_only=True)
class CaptureWay:
    """What TorchAir does with a graph between our passes and its capture, as far as it changes counts."""

    closed_by: ClosedBy = "scope"
    in_place: bool = True
    """It removes copies to inputs."""


def counts_of(graph: fx.Graph, way: CaptureWay = CaptureWay()) -> CaptureCounts:
    """Of a graph as the passes leave it, with its stream plan.

    `mm = x @ x; return relu(mm)` on two streams with one event between them: 2 streams, 2 kernels, 3 records, 3 waits.
    """
    kernels = [node for node in Dependence.from_graph(graph).kernels if not _is_bare(node)]
    removed = sum(map(_is_removed, kernels)) if way.in_place else 0
    scopes = [
        scope for node in graph.nodes if control(node) == "scope_enter" and (scope := Scope.from_node(node)).stream
    ]
    streams = {scope.stream_id or scope.stream for scope in scopes}
    closings = len(scopes) if way.closed_by == "scope" else len(streams)
    records, waits = _events(graph)
    return CaptureCounts(
        streams=1 + len(streams),
        kernels=len(kernels) - removed,
        records=records + closings + bool(closings),
        waits=waits + 2 * closings,
    )


def _events(graph: fx.Graph) -> tuple[int, int]:
    """(records, waits) that stand in the graph. A wait for a value that is no record makes one, once for each."""
    records = waits = 0
    unrecorded: set[fx.Node] = set()
    for node in graph.nodes:
        kind = control(node)
        if kind == "record":
            records += 1
        elif kind == "wait":
            awaited = list(nodes_in(node.args)) if tag_of(node) is None else [node]
            waits += len(awaited)
            unrecorded.update(one for one in awaited if control(one) is None)
    return records + len(unrecorded), waits


def _is_bare(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not None and packet.__name__.startswith(BARE)


def _is_removed(copy: fx.Node) -> bool:
    """It writes an input with what an operator made of that input: see Note [Copies that TorchAir removes]."""
    if copy.target is not torch.ops.aten.copy_.default:
        return False
    target, source = copy.args[:2]
    if not isinstance(target, fx.Node) or target.op not in ("placeholder", "get_attr"):
        return False
    if not isinstance(source, fx.Node) or source.op != "call_function" or source.args[:1] != (target,):
        return False
    if _maybe_get_inplace_op(source.target) is None:
        return False
    return not any(source < user < copy for user in _readers(target) if not is_host(user))


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Who uses a value, or a view of it."""
    for user in node.users:
        yield user
        if op_facts(user).view:
            yield from _readers(user)
