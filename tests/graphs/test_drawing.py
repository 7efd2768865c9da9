"""The table that a graph is drawn from: every node and edge of it, and no more bytes than are said."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.graphs import Snapshot, drawing
from npucompose.graphs.describe import op_name
from npucompose.graphs.drawing import node_table
from npucompose.graphs.matching import packet_of
from npucompose.results.graphs import GraphDrawing
from npucompose.results.streams import StreamAssignment, StreamEvent
from npucompose.table.structure import facts_of, of_facts
from tests.sample_graphs import Program, programs

aten = torch.ops.aten
NODES = 5000


def long_graph(nodes: int) -> Snapshot:
    """Of so many nodes and some, each with a stack of its own."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(nodes // 2):
        x = graph.call_function(aten.add.Tensor, (graph.call_function(aten.relu.default, (x,)), x))
    graph.output(x)
    for number, node in enumerate(graph.nodes):
        node.meta["stack_trace"] = f'  File "/home/me/project/model.py", line {number}, in forward\n    x = relu(x) + x'
    return Snapshot.from_graph(graph)


@given(programs())
@settings(max_examples=30, deadline=None)
def test_every_node_and_every_edge_is_there(program: Any) -> None:
    graph = program.graph
    table, nodes = node_table(Snapshot.from_graph(graph)), list(graph.nodes)
    assert list(table.names) == [node.name for node in nodes]
    kinds = {"placeholder": "input", "get_attr": "constant", "output": "output"}
    assert [table.text(table.operators, n) for n in range(len(nodes))] == [
        kinds.get(node.op) or op_name(node) for node in nodes
    ]
    assert [{nodes[n] for n in read} for read in table.inputs] == [set(node.all_input_nodes) for node in nodes]
    assert all(other < number for number, read in enumerate(table.inputs) for other in read)
    assert len(set(table.texts)) == len(table.texts)
    assert (
        of_facts(GraphDrawing, json.loads(json.dumps(facts_of(GraphDrawing(before=table)))), where="x").before == table
    )


def test_a_node_has_the_line_of_the_model() -> None:
    table = node_table(long_graph(4))
    assert table.text(table.sources, 1) == "me/project/model.py:1: x = relu(x) + x"
    bare = node_table(Snapshot.from_graph(fx.Graph().placeholder("x").graph))
    assert bare.text(bare.sources, 0) == ""


def test_a_plan_gives_streams_and_events_by_place() -> None:
    snapshot = long_graph(4)
    names = [line.name for line in snapshot.lines]
    plan = StreamAssignment(nodes={names[1]: "s1"}, events=(StreamEvent(recorder=names[1], waiter=names[2]),))
    table = node_table(snapshot, plan)
    assert [table.text(table.streams, n) for n in range(3)] == ["", "s1", ""]
    assert table.events == ((1, 2),)


def test_a_graph_that_nothing_changed_is_there_once() -> None:
    one, other = long_graph(2), long_graph(2)
    assert drawing.drawing(one, one).after is None
    assert drawing.drawing(one, None).after is None
    assert drawing.drawing(one, other).after is not None


def test_a_graph_of_5000_nodes_takes_less_than_100_bytes_a_node() -> None:
    text = json.dumps(facts_of(GraphDrawing(before=node_table(long_graph(NODES)))), separators=(",", ":"))
    assert len(text) < 100 * NODES


def test_what_is_beyond_the_bounds_is_counted_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in {"MOST_NODES": 5, "MOST_EDGES": 3, "MOST_CHARACTERS": 4}.items():
        monkeypatch.setattr(drawing, name, most)
    table = node_table(long_graph(10))
    assert (len(table.names), table.left_out) == (5, 7)
    assert sum(map(len, table.inputs)) == 3
    assert max(map(len, (*table.texts, *table.names))) == 4


def test_bytes_are_alive_from_their_maker_to_their_last_reader() -> None:
    program = Program(1)
    (x,) = program.values
    big = program.call(aten.cat.default, [x, x])  # 128 bytes
    view = program.call(aten.view.default, big, [32])
    total = program.call(aten.sum.default, view)  # 4 bytes
    unread = program.call(aten.neg.default, x)  # 64 bytes, given back at once
    module = program.finish([program.call(aten.add.Tensor, x, total)])
    table = node_table(Snapshot.from_graph(module.graph))
    assert unread.name == table.names[4]
    assert table.alive == (0, 128, 128, 132, 68, 4, 0)


def test_sizes_that_are_symbols_count_with_their_hints() -> None:
    graph = make_fx(lambda x: (x * 2).relu().sum(), tracing_mode="symbolic")(torch.ones(6, 4)).graph
    alive = node_table(Snapshot.from_graph(graph)).alive
    assert max(alive) == 2 * 6 * 4 * 4


def test_a_size_that_nothing_is_known_of_counts_as_nothing() -> None:
    def symbol(hint: int | None) -> Any:
        return SimpleNamespace(node=SimpleNamespace(has_hint=lambda: hint is not None, hint=hint))

    assert [drawing._hint(size) for size in (8, symbol(16), symbol(None))] == [8, 16, 0]


def test_only_operators_have_a_packet() -> None:
    assert packet_of("aten.relu") is torch.ops.aten.relu
    assert [packet_of(name) for name in ("aten.name", "aten.no_such_operator", "loaded_libraries.add")] == [None] * 3
