"""What an operator does, read off its schema; what may be removed, and what arguments hold."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import fx

from npucompose import ops
from npucompose.graphs import effects
from npucompose.graphs.effects import OpFacts, facts, is_removable, leaves_in, nodes_in, tensors_in
from tests.sample_graphs import Program, aten, traced

ops.define()

PLAIN = OpFacts(
    view=False, may_copy=False, writes=(), random=False, effect=False, host=False, changes_metadata=False,
    collective=False, makes_only=True,
)  # fmt: skip
"""A kernel that reads its inputs and makes a new tensor."""
OTHER = evolve(PLAIN, makes_only=False)
FACTS: dict[str, OpFacts] = {
    "aten.mm.default": PLAIN,
    "aten.clone.default": PLAIN,
    "aten.max.dim": PLAIN,
    "aten.index_put.default": PLAIN,
    "aten.view.default": evolve(OTHER, view=True),
    "aten.t.default": evolve(OTHER, view=True),
    "aten.split.Tensor": evolve(OTHER, view=True),
    "aten._unsafe_view.default": evolve(OTHER, view=True),
    "aten.reshape.default": evolve(OTHER, view=True, may_copy=True),
    "aten.contiguous.default": evolve(OTHER, view=True, may_copy=True),
    "aten.add_.Tensor": evolve(OTHER, writes=((0, "self"),), in_place=True),
    "aten.add.out": evolve(OTHER, writes=((3, "out"),), in_place=True),
    "aten._foreach_add_.Scalar": evolve(OTHER, writes=((0, "self"),)),
    "aten._native_batch_norm_legit.default": evolve(OTHER, writes=((3, "running_mean"), (4, "running_var"))),
    "aten.t_.default": evolve(OTHER, writes=((0, "self"),), in_place=True, changes_metadata=True),
    "aten.rand.default": evolve(OTHER, random=True),
    "aten.bernoulli_.float": evolve(OTHER, writes=((0, "self"),), in_place=True, random=True),
    "aten._assert_async.msg": evolve(OTHER, effect=True),
    "aten._assert_async.default": evolve(OTHER, effect=True),
    "aten._assert_scalar.default": evolve(OTHER, effect=True, host=True),
    "aten._assert_tensor_metadata.default": evolve(OTHER, effect=True, host=True),
    "aten.sym_size.int": evolve(OTHER, host=True),
    "profiler._record_function_enter_new.default": evolve(OTHER, effect=True),
    "_c10d_functional.all_reduce.default": evolve(OTHER, effect=True, collective=True),
    "_c10d_functional.wait_tensor.default": evolve(OTHER, writes=((0, "tensor"),), in_place=True, waits=True),
    "air.record.default": evolve(OTHER, effect=True),
    "air.scope_enter.default": evolve(OTHER, effect=True),
}


def op(name: str) -> Any:
    return operator.attrgetter(name)(torch.ops)


@pytest.mark.parametrize("name", FACTS)
def test_a_schema_tells_what_its_operator_does(name: str) -> None:
    assert facts(op(name)) == FACTS[name]


def test_leaves_of_lists_mappings_and_slices_are_found_in_order() -> None:
    assert list(leaves_in([1, (2, {"a": 3, "b": [4]}), slice(5, 6, 7)])) == [1, 2, 3, 4, 5, 6, 7]


def test_a_node_may_stand_in_each_place_of_a_slice() -> None:
    graph = fx.Graph()
    begin, end, step = (graph.placeholder(name) for name in ("begin", "end", "step"))
    assert list(nodes_in((slice(begin, end, step),))) == [begin, end, step]
    assert list(nodes_in((begin, 3, [end, None]))) == [begin, end]


def test_tensors_are_found_among_numbers() -> None:
    one, two = torch.ones(2), torch.zeros(1)
    assert [id(found) for found in tensors_in((one, 3, [None, two]))] == [id(one), id(two)]


def strange(x: Any) -> Any:
    return x


def functional(version: int) -> Any:
    from torch._higher_order_ops import auto_functionalize

    return getattr(auto_functionalize, "auto_functionalized" + ("_v2" if version == 2 else ""))


KINDS = ("host", "opaque", "random", "effect", "removable", "collective", "getitem")


def told(node: fx.Node) -> set[str]:
    asked = {
        "host": effects.is_host, "effect": effects.has_effect, "removable": effects.is_removable,
        "collective": effects.is_collective, "getitem": effects.is_getitem,
    }  # fmt: skip
    answers = {kind: ask(node) for kind, ask in asked.items()}
    known = effects.op_facts(node)
    answers |= {"opaque": known is effects.OPAQUE, "random": known.random}
    assert set(answers.values()) <= {True, False}
    return {kind for kind, answer in answers.items() if answer}


def test_each_node_of_a_graph_is_known_for_what_it_does() -> None:
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["val"], n.meta["val"] = torch.empty(4, 4), 3

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return graph.call_function(target, args, kwargs)

    unknown = {"opaque", "random", "effect"}
    expected: list[tuple[fx.Node, set[str], tuple[fx.Node, ...]]] = [
        (x, {"host"}, ()),
        (graph.get_attr("held"), {"host", "removable"}, ()),
        (call(aten.relu.default, x), {"removable"}, ()),
        (call(aten.t.default, x), {"removable"}, ()),
        (call(operator.getitem, call(aten.split.Tensor, x, 2), 0), {"getitem", "removable"}, ()),
        (call(operator.add, n, 1), {"host", "removable"}, ()),
        (call(math.floor, n), {"host", "removable"}, ()),
        (call(operator.add, x, 1), unknown, (x,)),
        (call(math.floor, graph.placeholder("nobody_knows")), unknown, (list(graph.nodes)[-2],)),
        (call(strange, n), unknown, (n,)),
        (call(torch.ops.higher_order.cond, n), unknown, (n,)),
        (call(functional(1), aten.add_.Tensor, self=x, other=x), {"random", "effect"}, ()),
        (call(functional(2), aten.add_.Tensor, other=x, _self_base_index=0, _all_bases=[x]), {"random", "effect"}, ()),
        (graph.call_module("layer", (x,)), unknown, (x,)),
        (graph.call_method("relu", (n,)), unknown, (n,)),
        (call(aten.rand.default, [4, 4]), {"random"}, ()),
        (call(aten.add_.Tensor, x, 1), set(), (x,)),
        (call(aten.add.out, x, x, out=n), set(), (n,)),
        (call(aten._foreach_add_.Scalar, [x, n, x], 1), set(), (x, n)),
        (call(aten._assert_async.msg, x, "words"), {"effect"}, ()),
        (call(aten.sym_size.int, x, 0), {"host", "removable"}, ()),
        (call(op("_c10d_functional.all_reduce.default"), x, "sum", "0"), {"effect", "collective"}, ()),
        (call(op("air.record.default")), {"effect"}, ()),
        (graph.output((x,)), {"host"}, ()),
    ]
    for node, kinds, written in expected:
        assert (told(node), effects.written_by(node)) == (kinds, written), node.format_node()


def test_a_collective_names_its_group_by_place_or_by_name() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    reduce = torch.ops._c10d_functional.all_reduce.default

    def group(target: Any, *args: Any, **named: Any) -> str | None:
        return effects.group_of(graph.call_function(target, args, named))

    assert group(reduce, x, "sum", "tp") == "tp"
    assert group(reduce, x, "sum", group_name="ep") == "ep"
    assert group(reduce, x, "sum", x) is None
    assert group(torch.ops._c10d_functional.all_gather_into_tensor.default, x, 2, "tp") == "tp"
    assert group(aten.add.Tensor, x, x) is None
    assert group(operator.add, x, "tp") is None


def test_arithmetic_that_gives_a_tensor_is_no_host_work() -> None:
    building = Program(inputs=1)
    made = building.graph.call_function(operator.add, (1, 2))
    made.meta["val"] = building.values[0].meta["val"]
    assert not effects.is_host(made)


def test_what_a_symbol_is_born_in_stays() -> None:
    """`nonzero` has no reader but a size, and sizes are written in its symbol, not as its readers."""
    graph = traced(lambda x: x.new_zeros(x.nonzero().shape[0]), torch.ones(4), mode="symbolic").graph
    [born] = [node for node in graph.nodes if node.target is aten.nonzero.default]
    assert born.meta["unbacked_bindings"]
    assert not is_removable(born)
    del born.meta["unbacked_bindings"]
    assert is_removable(born)


def test_what_is_no_operator_is_host_work_only_as_arithmetic_on_numbers() -> None:
    graph = fx.Graph()
    numbers, tensor = graph.placeholder("numbers"), graph.placeholder("tensor")
    numbers.meta["val"], tensor.meta["val"] = [1, 2], torch.ones(1)
    number = graph.call_function(operator.getitem, (numbers, 0))
    calls = {
        "getitem": number,
        "sum": graph.call_function(operator.add, (number, 1)),
        "root": graph.call_function(math.sqrt, (number,)),
        "larger": graph.call_function(max, (number, 2)),
        "of a tensor": graph.call_function(operator.add, (tensor, number)),
        "giving a tensor": graph.call_function(operator.add, (number, 1)),
        "method": graph.call_method("add", (number, 1)),
        "module": graph.call_module("add", (number,)),
        "of higher order": graph.call_function(torch.ops.higher_order.cond, (number,)),
        "one's own": graph.call_function(
            test_what_is_no_operator_is_host_work_only_as_arithmetic_on_numbers, (number,)
        ),
    }
    for name, call in calls.items():
        call.meta["val"] = torch.ones(1) if name == "giving a tensor" else 1
    assert [name for name, call in calls.items() if effects.is_host(call)] == ["sum", "root", "larger"]
    assert [name for name, call in calls.items() if effects.is_getitem(call)] == ["getitem"]
    opaque = ["of a tensor", "giving a tensor", "method", "module", "of higher order", "one's own"]
    assert [name for name, call in calls.items() if effects.op_facts(call) is effects.OPAQUE] == opaque


def test_what_orders_streams_has_an_effect_though_nothing_marks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The genuine TorchAir marks neither a record nor what is tagged."""
    monkeypatch.setattr(effects, "_side_effectful_functions", frozenset())
    facts.cache_clear()
    try:
        recorded = fx.Graph().call_function(torch.ops.air.record.default)
        assert not effects.op_facts(recorded).effect
        assert effects.has_effect(recorded)
    finally:
        facts.cache_clear()
