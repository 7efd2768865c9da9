"""What may be removed, and what arguments hold."""

from __future__ import annotations

import torch
from torch import fx

from npucompose.graphs.effects import is_removable, leaves_in, nodes_in
from tests.sample_graphs import aten, traced


def test_leaves_of_lists_mappings_and_slices_are_found_in_order() -> None:
    assert list(leaves_in([1, (2, {"a": 3, "b": [4]}), slice(5, 6, 7)])) == [1, 2, 3, 4, 5, 6, 7]


def test_a_node_may_stand_in_each_place_of_a_slice() -> None:
    graph = fx.Graph()
    begin, end, step = (graph.placeholder(name) for name in ("begin", "end", "step"))
    assert list(nodes_in((slice(begin, end, step),))) == [begin, end, step]


def test_what_a_symbol_is_born_in_stays() -> None:
    """`nonzero` has no reader but a size, and sizes are written in its symbol, not as its readers."""
    graph = traced(lambda x: x.new_zeros(x.nonzero().shape[0]), torch.ones(4), mode="symbolic").graph
    [born] = [node for node in graph.nodes if node.target is aten.nonzero.default]
    assert born.meta["unbacked_bindings"]
    assert not is_removable(born)
    del born.meta["unbacked_bindings"]
    assert is_removable(born)
