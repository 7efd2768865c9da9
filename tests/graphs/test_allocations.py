"""Who made a piece of memory, who holds it, who touches it, and where it is named for the last time."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from npucompose import ops
from npucompose.graphs import Dependence, allocations
from npucompose.graphs.dependence import storage_of
from tests.sample_graphs import Program, aten

ops.define()


def strange(*given: Any) -> Any:
    return given


def told(graph: fx.Graph) -> list[tuple[str, list[str], list[str], str, bool]]:
    """(maker, holders, touched by, mentioned, returned) of each piece."""

    def named(nodes: Sequence[fx.Node]) -> list[str]:
        return [node.name for node in nodes]

    return [
        (one.maker.name, named(one.holders), named(one.touched_by), one.mentioned.name, one.returned)
        for one in allocations(graph, Dependence.from_graph(graph))
    ]


@pytest.fixture
def program() -> Program:
    return Program(inputs=1)


def test_a_piece_has_the_storage_of_its_maker_s_value(program: Program) -> None:
    made = program.call(aten.clone.default, program.values[0])
    program.graph.output((made,))
    (piece,) = allocations(program.graph, Dependence.from_graph(program.graph))
    assert piece.storage == storage_of(made.meta["val"])


def test_inputs_own_their_memory_and_views_of_them_too(program: Program) -> None:
    program.graph.output((program.call(aten.t.default, program.values[0]),))
    assert told(program.graph) == []


def test_each_result_of_a_kernel_is_a_piece_and_who_takes_it_out_holds_that_one(program: Program) -> None:
    both = program.call(aten.max.dim, program.values[0], 0)
    first, second = program.call(operator.getitem, both, 0), program.call(operator.getitem, both, 1)
    program.graph.output((program.call(aten.neg.default, first), second))
    assert sorted(told(program.graph)) == [
        ("max_dim", ["max_dim", "getitem"], ["neg_default"], "neg_default", False),
        ("max_dim", ["max_dim", "getitem_1"], [], "output", True),
        ("neg_default", ["neg_default"], [], "output", True),
    ]


def test_what_is_written_in_place_is_the_same_piece_even_with_a_stale_value(program: Program) -> None:
    """A pass that replaces a value leaves the fake values behind it on the old storage."""
    made = program.call(aten.clone.default, program.values[0])
    written = program.call(aten.relu_.default, made)
    view = program.call(aten.t.default, written)
    program.graph.output((program.call(aten.neg.default, view),))
    expected = [
        ("clone_default", ["clone_default", "relu__default", "t_default"], ["relu__default", "neg_default"],
         "neg_default", False),
        ("neg_default", ["neg_default"], [], "output", True),
    ]  # fmt: skip
    assert told(program.graph) == expected
    with program.mode:
        written.meta["val"], view.meta["val"] = torch.empty(4, 4), torch.empty(4, 4).t()
    assert told(program.graph) == expected


def test_a_reshape_that_copies_makes_a_piece_and_may_lie_in_the_old_one(program: Program) -> None:
    turned = program.call(aten.t.default, program.call(aten.neg.default, program.values[0]))
    copy = program.call(aten.reshape.default, turned, [16])
    program.graph.output((program.call(aten.abs.default, copy),))
    assert told(program.graph)[:2] == [
        ("neg_default", ["neg_default", "t_default"], ["reshape_default", "abs_default"], "reshape_default", False),
        ("reshape_default", ["reshape_default"], ["abs_default"], "abs_default", False),
    ]


def test_what_an_unknown_function_gives_may_lie_anywhere_it_was_given(program: Program) -> None:
    a, b = (program.call(aten.clone.default, program.values[0]) for _ in range(2))
    unknown = program.graph.call_function(strange, (a, b))
    part = program.graph.call_function(operator.getitem, (unknown, 0))
    written = program.graph.call_function(aten.add_.Tensor, (part, 1))
    written.meta["val"] = a.meta["val"]
    last = program.call(aten.neg.default, written)
    program.graph.output((last,))
    touching = ["strange", "add__tensor", "neg_default"]
    assert told(program.graph)[:3] == [
        ("clone_default", ["clone_default", "add__tensor"], touching, "neg_default", False),
        ("clone_default_1", ["clone_default_1"], touching, "strange", False),
        ("strange", ["strange"], touching[1:], "getitem", False),
    ]


@pytest.fixture
def fills() -> Iterator[Any]:
    """Writes its argument and makes a tensor that is not it."""
    with torch.library._scoped_library("npucompose_allocations", "FRAGMENT") as library:
        library.define("fills(Tensor(a!) x) -> Tensor")
        yield torch.ops.npucompose_allocations.fills.default


def test_an_operator_may_write_and_make(program: Program, fills: Any) -> None:
    made = program.call(aten.clone.default, program.values[0])
    new = program.graph.call_function(fills, (made,))
    with program.mode:
        new.meta["val"] = torch.empty(4)
    program.graph.call_function(aten._foreach_add_.Scalar, ([made, new], 1))
    program.graph.output((new,))
    assert told(program.graph)[:2] == [
        ("clone_default", ["clone_default"], ["fills_default", "_foreach_add__scalar"], "_foreach_add__scalar", False),
        ("fills_default", ["fills_default"], ["_foreach_add__scalar"], "output", True),
    ]


def test_a_value_without_a_storage_is_a_piece_and_a_number_is_none(program: Program) -> None:
    sparse = program.graph.call_function(aten._to_sparse.default, (program.values[0],))
    sparse.meta["val"] = torch.zeros(2, 2).to_sparse()
    unknown = program.graph.call_function(strange, (sparse,))
    unknown.meta["val"] = torch.zeros(2, 2).to_sparse()
    number = program.graph.call_function(aten._local_scalar_dense.default, (unknown,))
    number.meta["val"] = 1.5
    program.graph.output((number,))
    assert told(program.graph) == [
        ("_to_sparse_default", ["_to_sparse_default"], ["strange", "_local_scalar_dense_default"], "strange", False),
        ("strange", ["strange"], ["_local_scalar_dense_default"], "_local_scalar_dense_default", False),
    ]  # fmt: skip
    assert allocations(program.graph, Dependence.from_graph(program.graph))[0].storage is None


def test_who_returns_what_it_was_given_makes_nothing(program: Program) -> None:
    made = program.call(aten.clone.default, program.values[0])
    for given in (program.values[0], made):
        same = program.graph.call_function(strange, (given,))
        same.meta["val"] = given.meta["val"]
    program.graph.output(())
    assert told(program.graph) == [("clone_default", ["clone_default", "strange_1"], ["strange_1"], "strange_1", False)]


def test_who_shares_nothing_with_what_it_reads_does_not_hand_it_on(program: Program) -> None:
    """Random numbers of the shape of a value: whoever reads them touches nothing of the value."""
    made = program.call(aten.clone.default, program.values[0])
    drawn = program.call(aten.rand_like.default, made)
    program.graph.output((program.call(aten.neg.default, drawn),))
    assert told(program.graph)[:2] == [
        ("clone_default", ["clone_default"], ["rand_like_default"], "rand_like_default", False),
        ("rand_like_default", ["rand_like_default"], ["neg_default"], "neg_default", False),
    ]


def test_a_wait_for_a_tensor_neither_holds_nor_touches_it(program: Program) -> None:
    made = program.call(aten.clone.default, program.values[0])
    last = program.call(aten.neg.default, made)
    needed = Dependence.from_graph(program.graph)
    air = torch.ops.air
    program.graph.call_function(air.wait.default, ([made],))
    program.graph.output((last,))
    piece = allocations(program.graph, needed)[0]
    assert (piece.mentioned, piece.touched_by) == (last, [last])
