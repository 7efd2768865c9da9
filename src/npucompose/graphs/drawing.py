"""From a snapshot of a graph to the table that is drawn in report.html. One walk, linear in nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import fx

from npucompose.graphs.dependence import storage_of
from npucompose.graphs.describe import NodeLine, Snapshot, op_name, value_text
from npucompose.graphs.effects import control, nodes_in, tensors_in
from npucompose.graphs.matching import model_line
from npucompose.results.graphs import MOST_CHARACTERS, MOST_EDGES, MOST_NODES, GraphDrawing, NodeTable
from npucompose.results.streams import StreamAssignment

_KINDS = {"placeholder": "input", "get_attr": "constant", "output": "output"}
FOLDERS = 3
"""Parts of a file's path that are kept."""
NO_PLAN = StreamAssignment()


def drawing(before: Snapshot, after: Snapshot | None, plan: StreamAssignment = NO_PLAN) -> GraphDrawing:
    """`plan` are the streams and events of the graph as it is now."""
    if after is None or after is before:
        return GraphDrawing(before=node_table(before, plan))
    return GraphDrawing(before=node_table(before), after=node_table(after, plan))


def node_table(snapshot: Snapshot, plan: StreamAssignment = NO_PLAN) -> NodeTable:
    """The nodes of a snapshot in running order; a node that nothing plans has the stream of its scope, if any."""
    lines = [line for line in snapshot.lines if control(line.node) is None]
    drawn, number = lines[:MOST_NODES], {line.node: place for place, line in enumerate(lines[:MOST_NODES])}
    texts, models = _Texts(), _ModelLines()
    places = {line.name: place for place, line in enumerate(drawn)}
    events = ((places.get(event.recorder), places.get(event.waiter)) for event in plan.events)
    return NodeTable(
        names=tuple(_cut(line.name) for line in drawn),
        operators=texts.of(_KINDS.get(line.op) or op_name(line.node) for line in drawn),
        values=texts.of(value_text(line.value) for line in drawn),
        sources=texts.of(models.of(line) for line in drawn),
        streams=texts.of(plan.nodes.get(line.name, line.stream or "") for line in drawn),
        inputs=tuple(_inputs(drawn, number)),
        events=tuple((one, other) for one, other in events if one is not None and other is not None),
        alive=tuple(_alive(lines)[:MOST_NODES]),
        texts=texts.known,
        left_out=len(lines) - len(drawn),
    )


def _inputs(lines: Iterable[NodeLine], number: Mapping[fx.Node, int]) -> Iterator[tuple[int, ...]]:
    left = MOST_EDGES
    for line in lines:
        found = dict.fromkeys(number[node] for node in nodes_in((line.args, line.kwargs)) if node in number)
        read = tuple(found)[:left]
        left -= len(read)
        yield read


def _alive(lines: Sequence[NodeLine]) -> list[int]:
    """Of memory that a node makes: from there to the last node that reads a tensor in it."""
    made: dict[int, tuple[int, int]] = {}  # storage: (the place of its maker, bytes)
    last: dict[int, int] = {}
    held: dict[fx.Node, list[int]] = {}
    given: set[int] = set()
    for place, line in enumerate(lines):
        for storage in (storage for node in nodes_in((line.args, line.kwargs)) for storage in held.get(node, ())):
            last[storage] = place
            if line.op == "output":
                given.add(storage)
        tensors = {storage_of(tensor): tensor for tensor in tensors_in(line.value)}
        held[line.node] = [storage for storage in tensors if storage is not None]
        for storage, tensor in tensors.items():
            if line.op in ("placeholder", "get_attr") and storage is not None:
                given.add(storage)
            elif storage is not None:
                made.setdefault(storage, (place, _hint(tensor.untyped_storage().nbytes())))
    changes = [0] * (len(lines) + 1)
    for storage, (place, nbytes) in made.items():
        if storage not in given:
            changes[place] += nbytes
            changes[last.get(storage, place) + 1] -= nbytes
    return list(accumulate(changes[:-1]))


def _hint(size: Any) -> int:
    """A size as a number without a guard on it; 0 where nothing is known."""
    if type(size) is int:
        return size
    return int(size.node.hint) if size.node.has_hint() else 0


class _Texts:
    """Each text once, the empty one first."""

    def __init__(self) -> None:
        self._places = {"": 0}

    def of(self, texts: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._places.setdefault(_cut(text), len(self._places)) for text in texts)

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self._places)


class _ModelLines:
    """The line of the model that each node comes from; many nodes share a stack, which is read once."""

    def __init__(self) -> None:
        self._read: dict[str, str] = {}

    def of(self, line: NodeLine) -> str:
        stack = line.node.meta.get("stack_trace") or ""
        if stack not in self._read:
            self._read[stack] = _without_folders(model_line(line.node))
        return self._read[stack]


def _without_folders(line: str) -> str:
    """`torch/nn/linear.py:12: return x` of a longer path: reports are sent to others, who need not know the rest."""
    place, colon, code = line.partition(": ")
    return "/".join(place.replace("\\", "/").split("/")[-FOLDERS:]) + colon + code


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
