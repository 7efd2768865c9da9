from __future__ import annotations

import operator
from typing import Any

import torch
from hypothesis import given, settings
from torch import fx

from npucompose import ops
from npucompose.graphs import Aliases, Dependence
from npucompose.graphs.dependence import storage_of
from tests.sample_graphs import Program, aten, node, programs, traced
from tests.searches import examples

X, Y = torch.randn(4, 4), torch.randn(4, 4)


def edges(graph: fx.Graph) -> list[tuple[str, str, str]]:
    return [(edge.first.name, edge.then.name, edge.why) for edge in Dependence.from_graph(graph).edges]


def kernels(graph: fx.Graph) -> list[str]:
    return [found.name for found in Dependence.from_graph(graph).kernels]


def test_views_and_getitem_belong_to_what_they_are_made_of() -> None:
    graph = traced(lambda x: x.relu().t().split(2)[1].neg(), X).graph
    assert kernels(graph) == ["relu", "neg"]
    assert edges(graph) == [("relu", "neg", "data")]


def test_arithmetic_on_sizes_starts_no_kernel() -> None:
    graph = traced(lambda x: x.new_zeros(x.shape[0] * 2 + 1) + 1, X, mode="symbolic").graph
    targets = [str(found.target) for found in Dependence.from_graph(graph).kernels]
    assert targets == ["aten.new_zeros.default", "aten.add.Tensor"]
    assert len([found for found in graph.nodes if found.op == "call_function"]) > 2


def test_a_write_waits_for_readers_and_later_readers_wait_for_it() -> None:
    building = Program(inputs=2)
    x, y = building.values
    read = building.call(aten.relu.default, building.call(aten.t.default, x))
    building.call(aten.copy_.default, x, y)
    again = building.call(aten.abs.default, x)
    building.call(aten.copy_.default, x, building.call(aten.neg.default, y))
    module = building.finish([read, again])
    assert [edge for edge in edges(module.graph) if edge[2] != "data"] == [
        ("relu_default", "copy__default", "write after read"),
        ("copy__default", "abs_default", "read after write"),
        ("copy__default", "copy__default_1", "write after write"),
        ("abs_default", "copy__default_1", "write after read"),
    ]


def test_random_numbers_and_effects_keep_their_order() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        a, b, c = torch.rand_like(x), torch.rand_like(x), torch.rand_like(x)
        torch.ops.aten._assert_async.msg(x.any(), "first")
        torch.ops.aten._assert_async.msg(x.all(), "second")
        torch.ops.aten._assert_async.msg(x.any(), "third")
        return a + b + c

    found = edges(traced(forward, X).graph)
    for name, why in (("rand_like", "random order"), ("_assert_async", "effect order")):
        assert [edge[:2] for edge in found if edge[2] == why] == [(name, f"{name}_1"), (f"{name}_1", f"{name}_2")]


def test_the_unknown_is_feared() -> None:
    def strange(x: torch.Tensor) -> torch.Tensor:
        return x

    graph = fx.Graph()
    x = graph.placeholder("x")
    read = graph.call_function(aten.relu.default, (x,))
    odd = graph.call_function(strange, (x,))
    graph.output((read, odd))
    assert edges(graph) == [("relu_default", "strange", "write after read")]


def test_without_fake_values_the_schemas_still_tell_memory() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    part = graph.call_function(operator.getitem, (graph.call_function(aten.split.Tensor, (x, 2)), 0))
    read = graph.call_function(aten.relu.default, (part,))
    graph.call_function(aten.add_.Tensor, (x, 1))
    graph.output((read,))
    assert kernels(graph) == ["relu_default", "add__tensor"]
    assert edges(graph) == [("relu_default", "add__tensor", "write after read")]


def test_a_reshape_that_copies_is_a_kernel_and_one_that_does_not_is_a_view() -> None:
    building = Program(inputs=1)
    x = building.values[0]
    view = building.call(aten.reshape.default, x, [16])
    copy = building.call(aten.reshape.default, building.call(aten.t.default, x), [16])
    module = building.finish([view, copy])
    assert kernels(module.graph) == ["reshape_default_1"]


def test_what_two_results_of_one_call_own_is_told_apart() -> None:
    building = Program(inputs=1)
    both = building.call(aten.max.dim, building.values[0], 0)
    first, second = building.call(operator.getitem, both, 0), building.call(operator.getitem, both, 1)
    aliases = Aliases.from_graph(building.finish([first, second]).graph)
    graph = next(iter(aliases.keys)).graph
    assert not aliases.shares(node(graph, "getitem"), node(graph, "getitem_1"))


@given(programs())
@settings(max_examples=examples(40), deadline=None)
def test_edges_go_forward_between_kernels_and_cover_the_data(module: Any) -> None:
    found = Dependence.from_graph(module.graph)
    number = {kernel: index for index, kernel in enumerate(found.kernels)}
    pairs = {(edge.first, edge.then) for edge in found.edges}
    assert len(pairs) == len(found.edges)
    assert all(number[first] < number[then] for first, then in pairs)
    for kernel in found.kernels:
        for source in kernel.all_input_nodes:
            assert all((origin, kernel) in pairs for origin in found.origins[source])


def test_a_sparse_tensor_has_no_storage_and_a_key_of_its_own() -> None:
    building = Program(inputs=1)
    made = [building.graph.call_function(aten._to_sparse.default, (building.values[0],)) for _ in range(2)]
    for sparse in made:
        sparse.meta["val"] = torch.zeros(2, 2).to_sparse()
        assert storage_of(sparse.meta["val"]) is None
    building.graph.call_function(aten.add_.Tensor, (made[0], 1))
    building.graph.output(())
    aliases = Aliases.from_graph(building.graph)
    assert [aliases.keys[sparse] for sparse in made] == [{-2}, {-3}]
    assert aliases.written == {-2}
    assert not aliases.shares(*made)
    feared = [building.graph.call_function(id, (sparse,)) for sparse in made]
    for unknown in feared:
        unknown.meta["val"] = torch.zeros(2, 2).to_sparse()
    assert not Aliases.from_graph(building.graph).shares(*feared)


def test_memory_is_known_by_storage_and_by_schema() -> None:
    building = Program(inputs=2)
    x, y = building.values
    view = building.call(aten.t.default, x)
    stale = building.call(aten.t.default, y)
    with building.mode:
        stale.meta["val"] = torch.empty(4, 4)  # as a pass leaves it
    size = building.graph.call_function(aten.sym_size.int, (x, 0))
    size.meta["val"] = 4
    unknown, other = (building.graph.call_function(aten.abs.default, (given,)) for given in (x, y))
    both, made = building.call(aten.max.dim, x, 0), building.call(aten.clone.default, x)
    written = building.call(aten.add_.Tensor, stale, 1)
    building.graph.output(())
    aliases = Aliases.from_graph(building.graph)
    keys, at = aliases.keys, list(building.graph.nodes).index
    assert keys[view] == keys[x] == {storage_of(x.meta["val"])}
    assert keys[made] == {storage_of(made.meta["val"])}
    assert keys[stale] == keys[y] | {storage_of(stale.meta["val"])}
    assert keys[size] == frozenset()
    assert (keys[unknown], keys[other]) == ({-1 - at(unknown)}, {-1 - at(other)})
    assert len(keys[both]) == 2
    assert keys[written] == aliases.written == keys[stale]
    assert aliases.of_all([view, size, stale]) == keys[x] | keys[stale]
    assert [found for found in (x, view, stale, size, unknown, written) if aliases.is_view(found)] == [view, stale]


def test_every_reader_comes_before_the_next_write_and_each_pair_has_one_edge() -> None:
    building = Program(inputs=1)
    x = building.values[0]
    first, second = building.call(aten.relu.default, x), building.call(aten.abs.default, x)
    building.call(aten.copy_.default, x, first)
    building.call(aten.add_.Tensor, x, 1)
    building.call(aten.neg.default, x)
    building.graph.output((second,))
    assert set(edges(building.graph)) == {
        ("relu_default", "copy__default", "data"),
        ("abs_default", "copy__default", "write after read"),
        ("copy__default", "add__tensor", "write after write"),
        ("add__tensor", "neg_default", "read after write"),
    }


def test_a_view_belongs_to_the_kernel_that_made_its_memory() -> None:
    building = Program(inputs=1)
    x = building.values[0]
    made = building.call(aten.neg.default, x)
    view = building.call(aten.t.default, made)
    both = building.call(aten.max.dim, view, 0)
    part = building.call(operator.getitem, both, 1)
    other = building.call(aten.mul.Tensor, x, made)
    number = building.graph.call_function(aten._local_scalar_dense.default, (other,))
    number.meta["val"] = 2
    shaped = building.graph.call_function(aten.view.default, (made, [number, 8]))
    shaped.meta["val"] = made.meta["val"].view(2, 8)
    again = building.call(aten.t.default, shaped)
    count = building.graph.call_function(operator.getitem, (both, 2))
    count.meta["val"] = 3  # a number lies nowhere
    building.graph.output(())
    found = Dependence.from_graph(building.graph)
    assert found.home(count) is both
    assert found.origins[shaped] == (made, number)
    assert found.home(again) is made
    homes = {name: found.home(node) for name, node in (("x", x), ("view", view), ("part", part), ("other", other))}
    assert homes == {"x": None, "view": made, "part": both, "other": None}
    assert found.home(building.call(aten.t.default, x)) is None
    assert found.origins[view] == found.origins[made] == (made,)
    assert found.origins[x] == ()


def test_scopes_and_events_start_nothing() -> None:
    ops.define()
    building = Program(inputs=1)
    made = building.call(aten.neg.default, building.values[0])
    record = building.graph.call_function(torch.ops.air.record.default, ())
    wait = building.graph.call_function(torch.ops.air.wait.default, ([record],))
    building.call(aten._assert_async.msg, made, "words")
    building.graph.output(())
    found = Dependence.from_graph(building.graph)
    assert [kernel.name for kernel in found.kernels] == ["neg_default", "_assert_async_msg"]
    assert (found.origins[record], found.origins[wait]) == ((), ())
    assert edges(building.graph) == [("neg_default", "_assert_async_msg", "data")]


def test_a_view_may_be_of_one_of_several_inputs() -> None:
    """`reshape_as` reads the shape of the other."""
    program = Program(inputs=2)
    made = program.call(aten.reshape_as.default, *program.values)
    copied = program.call(aten.reshape_as.default, program.call(aten.t.default, program.values[0]), program.values[1])
    assert kernels(program.finish([made, copied]).graph) == []  # of a square matrix, turned, nothing is copied
    turned = Program(inputs=1)
    value = turned.call(aten.t.default, turned.call(aten.neg.default, turned.values[0]))
    flat = turned.call(aten.reshape_as.default, value, turned.call(aten.view.default, turned.values[0], [16]))
    assert kernels(turned.finish([flat]).graph) == ["neg_default", "reshape_as_default"]


def test_a_view_with_a_stale_value_is_a_view_of_both() -> None:
    """A pass that replaces a value leaves the fake values of its views on the old storage."""
    program = Program(inputs=1)
    made = program.call(aten.neg.default, program.values[0])
    view = program.call(aten.t.default, made)
    graph = program.finish([view]).graph
    view = next(found for found in graph.nodes if found.name == "t_default")
    with program.mode:
        view.meta["val"] = torch.empty(4, 4).t()
    assert kernels(graph) == ["neg_default"]
    found = Aliases.from_graph(graph)
    assert found.shares(view, view.args[0])  # type: ignore[arg-type]
    assert storage_of(view.meta["val"]) in found.keys[view]


def test_views_of_a_view_with_a_stale_value_wait_for_a_write_to_both() -> None:
    """What an operator in place becomes: its buffer has a storage of its own, and every view behind it the old one."""
    building = Program(inputs=1)
    (x,) = building.values
    buffer = building.call(aten.empty_like.default, x)
    building.call(aten.copy_.default, buffer, x)
    first = building.call(aten.view.default, buffer, [-1])
    second = building.call(aten.view.default, first, [4, -1])
    third = building.call(aten.view.default, second, [2, -1])
    module = building.finish([building.call(aten.relu.default, third)])
    with building.mode:
        stale = torch.empty(4, 4)
        for view in (first, second, third):
            view.meta["val"] = stale.view(view.meta["val"].shape)
    assert ("copy__default", "relu_default", "read after write") in edges(module.graph)
