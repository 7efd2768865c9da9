"""Which input of Dynamo's graph a placeholder of AOTAutograd's graph is."""

from __future__ import annotations

from types import SimpleNamespace

from torch import fx

from npucompose.graphs.describe import places


def graph(*names: str) -> list[fx.Node]:
    made = fx.Graph()
    return [made.placeholder(name) for name in names]


def test_what_is_written_down_counts():
    nodes = graph("arg0_1", "arg1_1", "arg2_1")
    for node, desc in zip(nodes, ({"target": "weight"}, {"idx": 1}, {"idx": 0}), strict=True):
        node.meta["desc"] = SimpleNamespace(**desc)
    assert list(places(nodes, 2)) == [None, 1, 0]


def test_torch_before_2_9_puts_what_the_module_holds_first():
    assert list(places(graph("arg0_1", "arg1_1", "arg2_1"), 2)) == [None, 0, 1]
    assert list(places(graph("primals_1", "primals_2"), 2)) == [0, 1]


def test_a_backward_graph_and_seeds_say_nothing():
    assert list(places(graph("primals_1", "mm", "tangents_1"), 2)) == [None, None, None]
    assert list(places(graph("primals_1", "fwd_seed_1"), 1)) == [None, None]


def test_fewer_placeholders_than_inputs_say_nothing():
    assert list(places(graph("arg0_1"), 2)) == [None]
