"""What the page's script draws of the graphs: their tables with a place for each node. Pure values; knows no markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npucompose.report.layout import NODE_HEIGHT, NODE_WIDTH, layout
from npucompose.report.words import as_count
from npucompose.results.drawing import GraphDrawing, NodeTable
from npucompose.schema.streams import DEFAULT_STREAM
from npucompose.table.structure import facts_of

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
