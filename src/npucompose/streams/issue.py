"""What streams, records and waits of a planned graph really order, read off the list and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from npucompose.graphs.effects import nodes_in
from npucompose.graphs.scopes import control, stream_labels, tag_of, tagged_streams
from npucompose.schema.streams import DEFAULT_STREAM


def issued_before(graph: fx.Graph, kernels: Sequence[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """For each kernel those that must be done right before it: the last of its own stream and of the streams it
    waits for, by scopes, records and waits alone."""
    labels = stream_labels(graph) | tagged_streams(graph)
    known = frozenset(kernels)
    last: dict[str, fx.Node] = {}
    stands_for: dict[fx.Node, fx.Node | None] = {}
    tagged: dict[str, fx.Node] = {}
    waits: dict[str, list[fx.Node]] = {}
    before: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        stream = labels.get(node, DEFAULT_STREAM)
        kind = control(node)
        if kind == "record":
            stands_for[node] = last.get(stream)
            if tag := tag_of(node):
                tagged[tag] = node
        elif kind == "wait":
            tag = tag_of(node)
            for awaited in nodes_in(node.args[0] if tag is None else tagged.get(tag)):
                waits.setdefault(stream, []).extend(_makers(awaited, stands_for, known))
        elif node in known:
            queue = [last[stream]] if stream in last else []
            before[node] = list(dict.fromkeys([*queue, *waits.pop(stream, [])]))
            last[stream] = node
    return before


def _makers(node: fx.Node, stands_for: dict[fx.Node, fx.Node | None], known: frozenset[fx.Node]) -> Iterator[fx.Node]:
    """The kernels that a record or a tensor stands for; none for an input."""
    if node in known:
        yield node
    elif node in stands_for:
        kernel = stands_for[node]
        if kernel is not None:
            yield kernel
    else:
        for source in node.all_input_nodes:
            yield from _makers(source, stands_for, known)
