"""What the page's script draws of the graphs: their tables with a place for each node. Pure values; knows no markup.

Nodes lie in layers from top to bottom, folded into columns. Layers by longest paths, inputs near their first reader,
and in each layer the places nearest to the middle of the neighbours: the first and the last step of K. Sugiyama,
S. Tagawa, M. Toda, "Methods for visual understanding of hierarchical system structures", 1981. The nearest places that
keep a distance are an isotonic regression (pool adjacent violators: Ayer et al., 1955). Sorting is the most that is
done: O((n + e) log n) for n nodes and e edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from npucompose.report.words import as_count
from npucompose.results.graphs import GraphDrawing, NodeTable
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.table.structure import facts_of

Inputs = Sequence[Sequence[int]]

NODE_WIDTH, NODE_HEIGHT = 150, 26
ACROSS, DOWN = 166, 54
"""From one node to the next one in its layer; from one layer to the next one."""
BETWEEN_COLUMNS = 90
WIDEST = 16
"""Nodes in a row; a layer of more takes several."""
ASPECT = 1.6
"""Width over height that columns are made for."""


@frozen(kw_only=True)
class GraphLayout:
    """The upper left corner of each node, in pixels at scale 1; nodes are NODE_WIDTH wide and NODE_HEIGHT high."""

    at: tuple[tuple[int, int], ...]
    width: int
    height: int


def layout(inputs: Inputs, events: Sequence[tuple[int, int]] = ()) -> GraphLayout:
    """`inputs[n]` are the nodes that n reads, all of them before n; an event puts its waiter below its recorder."""
    if not inputs:
        return GraphLayout(at=(), width=NODE_WIDTH, height=NODE_HEIGHT)
    rows = _rows(_layers(inputs, events))
    return _folded(rows, _across(rows, inputs))


def _layers(inputs: Inputs, events: Sequence[tuple[int, int]]) -> list[int]:
    """The longest path to each node; what only inputs lead to (a weight, its transpose) stands just above its first
    reader instead, so that it does not lie far from it."""
    above: list[list[int]] = [list(read) for read in inputs]
    for recorder, waiter in events:
        if recorder < waiter:
            above[waiter].append(recorder)
    layer = [0] * len(inputs)
    for node, before in enumerate(above):
        layer[node] = max((layer[other] + 1 for other in before), default=0)
    first: list[int | None] = [None] * len(inputs)
    moves = _may_sink(above)
    for node in reversed(range(len(inputs))):
        below = first[node]
        if moves[node] and below is not None:
            layer[node] = below - 1
        for other in above[node]:
            known = first[other]
            first[other] = layer[node] if known is None else min(known, layer[node])
    return layer


def _may_sink(above: Inputs) -> list[bool]:
    """Whether all that leads to a node are inputs, and nodes that nothing else reads: no edge grows where they move."""
    readers = [0] * len(above)
    for other in (other for before in above for other in before):
        readers[other] += 1
    found = [True] * len(above)
    for node, before in enumerate(above):
        found[node] = all(not above[other] or (found[other] and readers[other] == 1) for other in before)
    return found


def _rows(layers: Sequence[int]) -> list[list[int]]:
    """The nodes of each layer in running order, WIDEST in a row at most."""
    found: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for node, layer in enumerate(layers):
        found[layer].append(node)
    return [row[start : start + WIDEST] for row in found for start in range(0, len(row), WIDEST)]


def _across(rows: Sequence[Sequence[int]], inputs: Inputs) -> list[float]:
    """How far right each node stands, in nodes: near what it reads on the way down, near its readers on the way up,
    near both on the way down again."""
    readers: list[list[int]] = [[] for _ in inputs]
    for node, read in enumerate(inputs):
        for other in read:
            readers[other].append(node)
    both = [[*read, *reader] for read, reader in zip(inputs, readers, strict=True)]
    at = [0.0] * len(inputs)
    for ordered, near in ((rows, inputs), (rows[::-1], readers), (rows, both)):
        for row in ordered:
            wanted = [sum(at[n] for n in near[node]) / len(near[node]) if near[node] else at[node] for node in row]
            for node, place in zip(row, spread(wanted), strict=True):
                at[node] = place
    return at


def spread(wanted: Sequence[float]) -> list[float]:
    """Places at least 1 apart, in the order of `wanted`, with the least squared distance from it.

    `spread([0.0, 0.0])` is [-0.5, 0.5]; `spread([3.0, 0.0])` is [3.0, 0.0].
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    blocks: list[tuple[float, int]] = []  # mean of what its members want less their rank, how many they are
    for rank, node in enumerate(order):
        mean, count = wanted[node] - rank, 1
        while blocks and blocks[-1][0] >= mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    places = [0.0] * len(wanted)
    for rank, node in enumerate(order):
        places[node] = means[rank] + rank
    return places


def _folded(rows: Sequence[Sequence[int]], across: Sequence[float]) -> GraphLayout:
    """As the columns of a newspaper, so that a long graph is seen as a whole."""
    columns = max(1, round(math.sqrt(ASPECT * len(rows) * DOWN / (ACROSS + BETWEEN_COLUMNS))))
    made = _in_columns(rows, across, columns)
    fewer = math.sqrt(ASPECT * made.height / made.width)
    return made if fewer >= 1 or columns == 1 else _in_columns(rows, across, max(1, round(columns * fewer)))


def _in_columns(rows: Sequence[Sequence[int]], across: Sequence[float], columns: int) -> GraphLayout:
    tall = math.ceil(len(rows) / columns)
    at: list[tuple[int, int]] = [(0, 0)] * len(across)
    left = 0
    for start in range(0, len(rows), tall):
        column = rows[start : start + tall]
        lowest = min(across[node] for row in column for node in row)
        highest = max(across[node] for row in column for node in row)
        for place, row in enumerate(column):
            for node in row:
                at[node] = (left + round((across[node] - lowest) * ACROSS), place * DOWN)
        left += round((highest - lowest) * ACROSS) + NODE_WIDTH + BETWEEN_COLUMNS
    return GraphLayout(at=tuple(at), width=left - BETWEEN_COLUMNS, height=(tall - 1) * DOWN + NODE_HEIGHT)


MOST_ON_A_PAGE = 30_000
"""Nodes of all drawings of a page together, at about 70 bytes each; later graphs are named and not drawn."""

NOT_APPLIED = "The plan stands in the graph and was not applied: its recordings run on one stream."
View = dict[str, Any]


def graph_view(drawings: Mapping[str, GraphDrawing], *, applied: bool = True) -> View | None:
    """The data of the page's script, and sentences about what it does not show; None where there is no graph.

    Not `applied` is a plan that stands in the graph and that its recordings do not follow.
    """
    if not drawings:
        return None
    shown, left = dict[str, GraphDrawing](), MOST_ON_A_PAGE
    for name, drawing in drawings.items():
        left -= sum(len(table.names) for table in _tables(drawing).values())
        if left >= 0 or not shown:
            shown[name] = drawing
    graphs = [_graph(name, drawing) for name, drawing in shown.items()]
    planned = any(len(graph["streams"]) > 1 for graph in graphs)
    return {
        "data": {"node": [NODE_WIDTH, NODE_HEIGHT], "graphs": graphs},
        "notes": [*([NOT_APPLIED] if planned and not applied else []), *_left_out(drawings, shown)],
        "names": list(shown),
    }


def _left_out(drawings: Mapping[str, GraphDrawing], shown: Mapping[str, GraphDrawing]) -> Iterator[str]:
    missing = [name for name in drawings if name not in shown]
    if missing:
        yield f"Not drawn, as the page would be too large: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}."
    for name, drawing in shown.items():
        cut = max(table.left_out for table in _tables(drawing).values())
        if cut:
            yield f"{name}: the last {cut} nodes in running order are not drawn."


def _tables(drawing: GraphDrawing) -> dict[str, NodeTable]:
    if drawing.after is None:
        return {"as compiled": drawing.before}
    return {"before the passes": drawing.before, "after the passes": drawing.after}


def _graph(name: str, drawing: GraphDrawing) -> View:
    tables = _tables(drawing)
    return {
        "name": name,
        "streams": _streams(tables.values()),
        "states": [_state(label, table) for label, table in tables.items()],
    }


def _streams(tables: Any) -> Sequence[str]:
    """In order of appearance, the default one first: the order of the colours."""
    seen = dict.fromkeys(table.texts[stream] for table in tables for stream in table.streams)
    return sorted((name for name in seen if name), key=lambda name: name != DEFAULT_STREAM)


def _state(label: str, table: NodeTable) -> View:
    placed = layout(table.inputs, table.events)
    return {
        **{name: value for name, value in facts_of(table).items() if name != "alive"},
        "label": f"{label}: {as_count(len(table.names) + table.left_out, 'node')}",
        "at": placed.at,
        "width": placed.width,
        "height": placed.height,
    }
