from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npucompose.graphs import Snapshot, fingerprint, op_counts, printed, symbols
from tests.sample_graphs import node, programs, traced
from tests.searches import examples

X = torch.randn(4, 4)


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x).relu() * 2.0 + x.split(2)[0].sum()


OTHERS = {
    "argument": lambda x: torch.mm(x, x).relu() * 3.0 + x.split(2)[0].sum(),
    "type": lambda x: torch.mm(x, x).relu() * 2 + x.split(2)[0].sum(),
    "operator": lambda x: torch.mm(x, x).abs() * 2.0 + x.split(2)[0].sum(),
    "wiring": lambda x: torch.mm(x, x).relu() * 2.0 + x.split(2)[1].sum(),
    "constant": lambda x: torch.mm(x, torch.ones(4, 4)).relu() * 2.0 + x.split(2)[0].sum(),
}


def test_the_fingerprint_does_not_know_names() -> None:
    one, two = traced(chain, X).graph, traced(chain, X).graph
    for found in list(two.nodes):
        if found.op == "call_function":
            found._rename(f"other_{found.name}")
    assert printed(one) != printed(two)
    assert fingerprint(one) == fingerprint(two)


@pytest.mark.parametrize("what", OTHERS)
def test_the_fingerprint_differs_by(what: str) -> None:
    assert fingerprint(traced(chain, X).graph) != fingerprint(traced(OTHERS[what], X).graph)


@pytest.mark.parametrize("other", [torch.randn(4, 4).double(), torch.randn(4, 4).t(), torch.randn(6, 6)[:4, :4]])
def test_the_fingerprint_differs_by_dtype_and_strides(other: torch.Tensor) -> None:
    assert fingerprint(traced(chain, X).graph) != fingerprint(traced(chain, other).graph)


def test_the_fingerprint_knows_the_content_of_constants() -> None:
    def with_constant(value: float) -> str:
        return fingerprint(traced(lambda x: x + torch.tensor([value, 1.0, 2.0, 3.0]), X).graph)

    assert with_constant(1.0) == with_constant(1.0)
    assert with_constant(1.0) != with_constant(2.0)


def test_symbols_are_named_and_their_names_do_not_matter() -> None:
    static, dynamic = traced(chain, X).graph, traced(chain, X, mode="symbolic").graph
    assert symbols(static) == ()
    assert len(symbols(dynamic)) >= 1
    assert fingerprint(static) != fingerprint(dynamic)
    assert fingerprint(dynamic) == fingerprint(traced(chain, X, mode="symbolic").graph)


def test_operators_are_counted_the_most_frequent_first() -> None:
    counts = op_counts(traced(lambda x: x.neg().abs().neg().split(2)[0], X).graph)
    assert list(counts.items()) == [
        ("aten.neg.default", 2),
        ("operator.getitem", 2),
        ("aten.abs.default", 1),
        ("aten.split.Tensor", 1),
    ]


def test_the_listing_is_the_golden_text(golden: Any) -> None:
    golden("graphs/listing.txt", printed(traced(chain, X).graph))


@given(programs(in_place=False))
@settings(max_examples=examples(30), deadline=None)
def test_a_changed_argument_changes_the_fingerprint(module: Any) -> None:
    before = fingerprint(module.graph)
    output = node(module.graph, "output")
    assert fingerprint(module.graph) == before
    output.args = ((*output.args[0], output.args[0][0]),)
    assert fingerprint(module.graph) != before


def test_a_snapshot_tells_of_the_graph_as_it_was(golden: Any) -> None:
    module = traced(chain, X)
    taken, known = Snapshot.from_graph(module.graph), fingerprint(module.graph)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    for n in nodes:
        n.replace_all_uses_with(module.graph.find_nodes(op="placeholder")[0])
        n.name = f"other_{n.name}"
        n.meta["val"] = None
    for n in reversed(nodes):
        module.graph.erase_node(n)
    golden("graphs/listing.txt", taken.text)
    assert taken.fingerprint == known
    assert fingerprint(module.graph) != known


def sizes(*order: int, dtype: torch.dtype = torch.float32) -> fx.Graph:
    """A graph of numbers that are symbols, which of them by `order`, beside a tensor."""
    env = ShapeEnv()
    born = [env.create_unbacked_symint() for _ in range(3)]
    graph = fx.Graph()
    for place, which in enumerate(order):
        graph.placeholder(f"x{place}").meta["val"] = born[which]
    graph.placeholder("t").meta["val"] = torch.empty(2, dtype=dtype, device="meta")
    graph.output(())
    return graph


def test_of_symbols_only_which_is_which_counts() -> None:
    assert fingerprint(sizes(0, 1, 0)) == fingerprint(sizes(1, 2, 1)) == fingerprint(sizes(2, 0, 2))
    assert len({fingerprint(sizes(*order)) for order in ((0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 0), (0, 1, 2))}) == 5


def test_beside_symbols_types_still_count() -> None:
    """`f32` is written like a symbol and is none."""
    found = [fingerprint(sizes(0, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.int32, torch.int8)]
    assert len(set(found)) == 4
