"""A graph before and after the passes as it can be drawn: nodes, who reads whom, streams, events, lines of the model.

Stored beside report.json as `graphs/graph_N.json`: a report stays small however large the graph. Knows no torch.
"""

from __future__ import annotations

from attrs import frozen

MOST_NODES = 10_000
"""Nodes of a table; those that come later in running order are counted and left out."""
MOST_EDGES = 50_000
"""Inputs of all nodes of a table together."""
MOST_CHARACTERS = 200
"""Of a text."""


@frozen(kw_only=True)
class NodeTable:
    """The nodes in running order: parallel tuples, in which a number names a node by its place, or a text of `texts`.

    What only orders (scopes, records, waits) is no node: it is `streams` and `events`. A table has at most MOST_NODES
    nodes, MOST_EDGES inputs and texts of MOST_CHARACTERS, which bounds its JSON: 60 bytes a node as measured.
    """

    names: tuple[str, ...]
    operators: tuple[int, ...]
    """Texts: `aten.mm.default`; `input`, `constant` or `output`."""
    values: tuple[int, ...]
    """Texts: `f32[16, 4]`; '' where nothing is known."""
    sources: tuple[int, ...]
    """Texts: `model.py:12: y = x @ w`, the line of the model; '' where torch kept none."""
    streams: tuple[int, ...]
    """Texts: the stream's name; '' of what runs on none."""
    inputs: tuple[tuple[int, ...], ...]
    """Nodes that each one reads, each once; all come before it."""
    events: tuple[tuple[int, int], ...] = ()
    """(recorder, waiter): nodes on two streams."""
    alive: tuple[int, ...] = ()
    """Bytes of intermediate results alive while each node runs, one node after the other in this order; what the graph
    reads and returns is not counted. Symbols count with their hints."""
    texts: tuple[str, ...] = ("",)
    """Each text once."""
    left_out: int = 0
    """Nodes beyond MOST_NODES."""

    def text(self, column: tuple[int, ...], node: int) -> str:
        """`table.text(table.operators, 3)` is `aten.mm.default`."""
        return self.texts[column[node]]


@frozen(kw_only=True)
class GraphDrawing:
    """One graph."""

    before: NodeTable
    after: NodeTable | None = None
    """None where the passes left the graph as it was."""
