"""Reading a planned graph back (Plan) and proving it: every order that the kernels need is kept on every timing, and
the device and the mode put up with its streams, events, operators, and kernels that want all cores at once.

Memory that another stream still uses while its own stream may use it again is kept alive. A captured graph of TorchAir
runs generated Python that drops a tensor where the list mentions it last; the allocator gives the block to the next
kernel of the stream that it came from, whatever another stream still does with it. `record_stream` would delay every
such block to the end of the capture. A tensor that is mentioned once more, where its own stream knows that the reader
is done, lives until then and no longer. Blocks, not values, have lives: see `graphs/dependence.py`, Note [Alias sets].
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Allocation, Dependence, Edge, allocations
from npucompose.graphs.effects import (
    NAMESPACES,
    control,
    core_limits,
    is_collective,
    priorities,
    stream_labels,
    written_by,
)
from npucompose.results.streams import StreamAssignment, StreamEvent
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.streams.gangs import check_gangs
from npucompose.streams.timing import Timing, issued_before

_Hazard = tuple[Allocation, list[fx.Node]]
"""Memory whose own stream may use it again while these kernels of other streams, in the graph's order, are not known to
be done with it."""


def keep_alive(graph: fx.Graph, needed: Dependence) -> None:
    """Mention each piece of memory that another stream uses before the kernel by which its own stream knows that done.

    before:  wait([record]);  neg = neg(abs)         after:  wait([record]);  check(exp);  neg = neg(abs)
    where the recorder read `exp`. Where its stream never learns it, the mention stands before the output. The mention
    is `aten._assert_tensor_metadata` without a claim: it starts no kernel, and no one may remove it. A tensor in a wait
    would not do: TorchAir replaces it by a record of its own.
    """
    timing = Timing.from_graph(graph, needed)
    place = {node: number for number, node in enumerate(graph.nodes)}
    kernels = sorted(needed.kernels, key=place.__getitem__)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    for memory, users in _hazards(graph, timing, needed):
        stream = timing.streams[memory.maker.name]
        knows = (
            kernel
            for kernel in kernels
            if timing.streams[kernel.name] == stream and all(timing.orders(user, kernel) for user in users)
        )
        with graph.inserting_before(next(knows, output)):
            _mention(graph, memory)


def _mention(graph: fx.Graph, memory: Allocation) -> None:
    holder = next((node for node in memory.holders if not isinstance(node.meta.get("val"), (list, tuple))), None)
    if holder is None:  # only a list of tensors holds it
        parts = memory.holders[0].meta["val"]
        number = next(i for i, part in enumerate(parts) if part.untyped_storage()._cdata == memory.storage)
        holder = graph.call_function(operator.getitem, (memory.holders[0], number))
        holder.meta["val"] = parts[number]
    graph.call_function(torch.ops.aten._assert_tensor_metadata.default, (holder,)).meta["val"] = None


def check_lifetimes(graph: fx.Graph, timing: Timing, needed: Dependence) -> None:
    """Raise PlanError("lifetime", …) for the first kernel whose memory may be used again too early."""
    for memory, (user, *_) in _hazards(graph, timing, needed):
        maker = memory.maker
        does = "written" if set(written_by(user)).intersection(memory.holders) else "read"
        raise PlanError(
            "lifetime",
            f"'{maker.name}' of stream '{timing.streams[maker.name]}' is {does} by '{user.name}' on stream "
            f"'{timing.streams[user.name]}', and its memory may be used again before that is done: the list "
            "mentions it no more.",
        )


def _hazards(graph: fx.Graph, timing: Timing, needed: Dependence) -> Iterator[_Hazard]:
    """Where the next kernel of its own stream after the last mention of some memory knows not of all its users."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    own: dict[str, list[fx.Node]] = {}
    for kernel in sorted(needed.kernels, key=place.__getitem__):
        own.setdefault(timing.streams[kernel.name], []).append(kernel)
    places = {stream: [place[kernel] for kernel in kernels] for stream, kernels in own.items()}
    for memory in allocations(graph, needed):
        stream = timing.streams[memory.maker.name]
        aside = [user for user in memory.touched_by if timing.streams[user.name] != stream]
        if not aside or memory.returned:
            continue
        at = bisect_right(places[stream], place[memory.mentioned])
        reuser = own[stream][at] if at < len(own[stream]) else None
        if reuser is not None and not all(timing.orders(user, reuser) for user in aside):
            yield memory, aside


_TAGGED = ("tagged_event_record", "tagged_event_wait", "tagged_event_on_stream", "record_tagged_stream")


def check_operators(graph: fx.Graph, can: Capabilities) -> None:
    """Tagged events exist in captured graphs only; scopes must be those of the mode's package."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in NAMESPACES:
            continue
        name = node.target.name().partition("::")[2].partition(".")[0]
        if name in _TAGGED and not can.explicit_events:
            raise PlanError(
                "mode", f"'{node.name}': {name} has no meaning in mode={can.mode}, whose compiler syncs data by itself."
            )
        if control(node) in ("scope_enter", "scope_exit") and node.target.namespace != can.scope_namespace:
            raise PlanError(
                "mode",
                f"'{node.name}' is of torch.ops.{node.target.namespace}; mode={can.mode} reads scopes of "
                f"torch.ops.{can.scope_namespace}.",
            )


def check_streams(what: str, labels: Iterable[str], can: Capabilities) -> None:
    used = sorted(set(labels))
    if len(used) > can.max_streams:
        raise PlanError(
            "too_many_streams",
            f"The {what} uses {len(used)} streams ({', '.join(used)}); target={can.target} mode={can.mode} has "
            f"{can.max_streams}.",
        )


def check_budget(timing: Timing, can: Capabilities) -> None:
    check_streams("graph", timing.streams.values(), can)
    if can.max_events is not None and len(timing.events) > can.max_events:
        last = timing.events[can.max_events]
        raise PlanError(
            "too_many_events",
            f"The graph has {len(timing.events)} events; target={can.target} mode={can.mode} has {can.max_events}. The "
            f"first beyond is recorded after '{last.recorder}' for '{last.waiter}'.",
        )


def check_cores(graph: fx.Graph, can: Capabilities) -> None:
    """No limit asks for cores that are not there, whoever wrote it."""
    for node, limit in core_limits(graph).items():
        if lacking := can.device_model.lacks(limit.aicore, limit.vectorcore):
            raise PlanError(
                "cores",
                f"'{node.name}' is limited to {limit.aicore} cube and {limit.vectorcore} vector cores; {lacking}.",
            )


def plan_of(graph: fx.Graph, dependence: Dependence | None = None) -> StreamAssignment:
    """The plan that stands in a graph, safe or not: streams (innermost scopes) and events; by default one stream."""
    kernels = (dependence or Dependence.from_graph(graph)).kernels
    labels = stream_labels(graph)
    before = issued_before(graph, kernels)
    streams = {kernel: labels.get(kernel, DEFAULT_STREAM) for kernel in before}
    return StreamAssignment(
        nodes={kernel.name: stream for kernel, stream in streams.items()},
        events=tuple(
            StreamEvent(recorder=first.name, waiter=kernel.name)
            for kernel, firsts in before.items()
            for first in firsts
            if streams[first] != streams[kernel]
        ),
        priorities=priorities(graph),
        cores={kernel.name: limit for kernel, limit in core_limits(graph).items() if kernel in streams},
    )


def validate(graph: fx.Graph, dependence: Dependence | None = None, can: Capabilities | None = None) -> None:
    """Raise PlanError unless the graph is safe however long each kernel takes; a hand-written graph may be given too.

    The codes: `scope_unpaired`, `scope_nested`, `scope_label` (the label must be the first key), `record_nothing` (no
    kernel before it on its stream), `deadlock` (a wait for what is recorded only after it; the circle is printed),
    `race`, `collective_order`, `random_order`, `effect_order`, `order` (an edge of `dependence` that neither stream
    order nor events keep; `dependence` is that of the graph before it was planned, by default of the graph itself).
    With `can` also `mode` (operators that the mode does not know), `too_many_streams`, `too_many_events`, `cores` (a
    limit beyond the device's cores), `gang` (kernels that take all their cores at once, any number of them together
    more than there are) and `lifetime` (memory that a stream may reuse while another one still reads it).
    """
    needed = dependence or Dependence.from_graph(graph)
    if can is not None:
        check_operators(graph, can)
    timing = Timing.from_graph(graph, needed)
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
        if can.core_limits:
            check_cores(graph, can)
        check_gangs(graph, timing, needed, can.device_model)
        if can.frees_early:
            check_lifetimes(graph, timing, needed)


def _code(edge: Edge) -> str:
    if edge.why == "effect order" and is_collective(edge.first) and is_collective(edge.then):
        return "collective_order"
    return {"random order": "random_order", "effect order": "effect_order", "asked for": "order"}.get(edge.why, "race")
