"""Calls that AOTAutograd made functional write in place again; copies where somebody needs the old value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose.graphs.effects import is_functional_call
from npucompose_replay.capture import updates
from npucompose_replay.capture.updates import write_in_place

aten = torch.ops.aten
LIBRARY = torch.library.Library("npucompose_mutating", "FRAGMENT")
for schema in (
    "bump(Tensor(a!) x) -> ()",
    "both(Tensor(a!) x, Tensor y) -> Tensor",
    "pair(Tensor(a!) x) -> (Tensor, Tensor)",
    "all(Tensor(a!)[] xs) -> ()",
    "one_and_all(Tensor(a!) x, Tensor(b!)[] ys) -> ()",
    "two(Tensor(a!) x, Tensor(b!) y) -> ()",
    "perhaps(Tensor(a!) x, Tensor(b!)? y) -> ()",
    "into(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
):
    LIBRARY.define(schema)
mine = torch.ops.npucompose_mutating
FAKE = FakeTensorMode()


def value(*shape: int) -> Any:
    with FAKE:
        return torch.empty(shape or (4, 4))


def named(target: Any) -> str:
    return getattr(target, "_name", getattr(target, "__name__", "")).rpartition("::")[2]


class Made:
    """A graph written by hand, with fake values."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def given(self, name: str, val: Any = None) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value() if val is None else val
        return node

    def call(self, op: Any, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(op, args, kwargs)
        node.meta["val"] = val if val is not None else op(*fx.map_arg(args, lambda n: n.meta["val"]))
        return node

    def functional(self, op: Any, val: Any, **kwargs: Any) -> fx.Node:
        target = auto_functionalized_v2 if "_all_bases" in kwargs else auto_functionalized
        return self.call(target, op, val=val, **kwargs)

    def item(self, node: fx.Node, index: int) -> fx.Node:
        return self.call(operator.getitem, node, index, val=node.meta["val"][index])

    def done(self, *returned: Any) -> tuple[int, list[str]]:
        """How many calls were taken apart, and the graph then."""
        self.graph.output(returned)
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        count = write_in_place(module)
        lines = [
            f"{node.name} = {named(node.target)}{(*node.args, *node.kwargs.items())}"
            for node in module.graph.nodes
            if node.op == "call_function"
        ]
        output = next(node for node in module.graph.nodes if node.op == "output")
        return count, [*lines, f"return {output.args[0]}"]


def one_base(made: Made, base: fx.Node, op: Any = mine.bump.default, **more: Any) -> fx.Node:
    returns = len(op._schema.returns) or 1
    return made.functional(op, (*[value()] * returns, value()), _x_base_index=0, _all_bases=[base], **more)


def written_back(made: Made) -> Any:
    x = made.given("x")
    new = made.item(one_base(made, x), 1)
    made.call(aten.copy_.default, x, new)
    return made.done(made.call(aten.relu.default, new))


def old_value_is_read(made: Made) -> Any:
    x = made.given("x")
    new = made.item(one_base(made, x), 1)
    old = made.call(aten.relu.default, x)
    made.call(aten.copy_.default, x, new)
    return made.done(new, old)


def never_written_back(made: Made) -> Any:
    x = made.given("x")
    return made.done(made.item(one_base(made, x), 1))


def of_its_own(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    return made.done(made.item(one_base(made, y), 1))


def read_by_the_call_too(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = one_base(made, y, mine.both.default, y=made.call(aten.t.default, y))
    return made.done(made.item(called, 0), made.item(called, 1))


def with_a_result(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = one_base(made, y, mine.both.default, y=made.given("z"))
    return made.done(made.item(called, 0), made.item(called, 1))


def with_two_results(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = one_base(made, y, mine.pair.default)
    return made.done(made.item(called, 0), made.item(called, 1), made.item(called, 2))


def a_slice(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    view = {"_x_base_index": 0, "_x_slice_dim": 0, "_x_slice_start": 1, "_x_slice_end": 3}
    called = made.functional(mine.bump.default, (None, value()), **view, _all_bases=[y])
    return made.done(made.item(called, 1))


def strided(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    view = {"_x_base_index": 0, "_x_size": (2,), "_x_stride": (4,), "_x_storage_offset": 1}
    called = made.functional(mine.bump.default, (None, value()), **view, _all_bases=[y])
    return made.done(made.item(called, 1))


def an_alias(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(mine.bump.default, (None, value()), _x_base_index=0, _x_alias=True, _all_bases=[y])
    return made.done(made.item(called, 1))


def a_list(made: Made) -> Any:
    x = made.given("x")
    a, b = made.call(aten.relu.default, x), made.call(aten.neg.default, x)
    which = {"_xs_length": 2, "_xs_0_base_index": 1, "_xs_1_base_index": 0}
    called = made.functional(mine.all.default, (None, value(), value()), **which, _all_bases=[a, b])
    return made.done(made.item(called, 1), made.item(called, 2))


def bases_that_share_memory(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    row = made.call(aten.select.int, y, 0, 0)
    called = made.functional(
        mine.two.default, (None, value(), value(4)), _x_base_index=0, _y_base_index=1, _all_bases=[y, row]
    )
    return made.done(made.item(called, 1), made.item(called, 2))


def the_older_form(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(mine.both.default, (value(), value()), x=y, y=made.given("z"))
    return made.done(made.item(called, 0), made.item(called, 1))


def the_older_form_of_a_list(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(mine.all.default, (None, [value()]), xs=[y])
    return made.done(made.call(operator.getitem, called, 1, val=value()))


def the_older_form_of_a_tensor_and_a_list(made: Made) -> Any:
    y, z = (made.call(op, made.given(name)) for op, name in ((aten.relu.default, "x"), (aten.neg.default, "w")))
    called = made.functional(mine.one_and_all.default, (None, value(), [value()]), x=y, ys=[z])
    return made.done(made.item(called, 1))


def used_as_a_whole(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    return made.done(one_base(made, y))


def with_an_out(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(
        mine.into.default, (value(), value()), x=made.given("z"), _out_base_index=0, _all_bases=[y]
    )
    return made.done(made.item(called, 1))


def written_twice(made: Made) -> Any:
    x = made.given("x")
    first = made.item(one_base(made, x), 1)
    second = made.item(one_base(made, first), 1)
    made.call(aten.copy_.default, x, second)
    return made.done(made.call(aten.relu.default, second))


def written_twice_and_read_between(made: Made) -> Any:
    x = made.given("x")
    first = made.item(one_base(made, x), 1)
    between = made.call(aten.relu.default, first)
    second = made.item(one_base(made, first), 1)
    made.call(aten.copy_.default, x, second)
    return made.done(between, made.call(aten.relu.default, first))


def returned_too(made: Made) -> Any:
    x = made.given("x")
    new = made.item(one_base(made, x), 1)
    made.call(aten.copy_.default, x, new)
    return made.done(made.call(aten.t.default, new))


def something_else_is_written_back(made: Made) -> Any:
    x = made.given("x")
    new = made.item(one_base(made, x), 1)
    made.call(aten.copy_.default, x, made.call(aten.relu.default, new))
    return made.done(made.call(aten.neg.default, new))


def one_value_twice(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(
        mine.two.default, (None, value(), value()), _x_base_index=0, _y_base_index=1, _all_bases=[y, y]
    )
    return made.done(made.item(called, 1), made.item(called, 2))


def not_even_given(made: Made) -> Any:
    y = made.call(aten.relu.default, made.given("x"))
    called = made.functional(
        mine.perhaps.default, (None, value(), None), _x_base_index=0, _y_base_index=None, _all_bases=[y]
    )
    return made.done(made.item(called, 1))


def further_in_its_storage(made: Made) -> Any:
    with FAKE:
        x = made.given("x", torch.empty(5, 4)[1:])
    return made.done(made.item(one_base(made, x), 1))


CASES = (
    written_back,
    old_value_is_read,
    never_written_back,
    of_its_own,
    read_by_the_call_too,
    with_a_result,
    with_two_results,
    a_slice,
    strided,
    an_alias,
    a_list,
    bases_that_share_memory,
    the_older_form,
    the_older_form_of_a_list,
    the_older_form_of_a_tensor_and_a_list,
    used_as_a_whole,
    with_an_out,
    written_twice,
    written_twice_and_read_between,
    returned_too,
    something_else_is_written_back,
    one_value_twice,
    not_even_given,
    further_in_its_storage,
)


def test_a_call_is_taken_apart_where_it_can_be_and_copies_where_it_must(golden: Callable[[str, str], None]) -> None:
    texts = []
    for make in CASES:
        count, lines = make(Made())
        texts.append("\n".join([f"{make.__name__}: {count}", *lines]))
    golden("targets/mutating.txt", "\n\n".join(texts) + "\n")


@pytest.mark.parametrize("make", [with_a_result, with_two_results, strided], ids=lambda make: make.__name__)
def test_what_is_written_anew_knows_its_values_and_its_line(make: Callable[[Made], Any]) -> None:
    made = Made()
    functional, genuine = [], Made.functional

    def noting(self: Made, *given: Any, **more: Any) -> fx.Node:
        node = genuine(self, *given, **more)
        node.meta["stack_trace"], node.meta["eager_input_vals"] = "line 3", ()
        functional.append(node)
        return node

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Made, "functional", noting)
        make(made)
    (called,) = [node for node in made.graph.nodes if str(node.target).startswith("npucompose_mutating")]
    returns = len(called.target._schema.returns)  # type: ignore[union-attr]
    assert called.meta["stack_trace"] == "line 3"
    assert "eager_input_vals" not in called.meta
    given = functional[0].meta["val"]
    assert called.meta["val"] is {0: None, 1: given[0]}.get(returns) or called.meta["val"] == tuple(given[:returns])
    for node in made.graph.find_nodes(op="call_function", target=aten.as_strided.default):
        assert node.meta["val"].shape == (2,)


def test_a_copy_has_the_value_and_the_line_of_what_is_copied() -> None:
    made = Made()
    x = made.given("x")
    called = one_base(made, x)
    called.meta["stack_trace"] = "line 3"
    made.done(made.item(called, 1))
    (copy,) = made.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert copy.meta["stack_trace"] == "line 3"
    assert copy.meta["val"].shape == x.meta["val"].shape
    assert copy.meta["val"].untyped_storage()._cdata != x.meta["val"].untyped_storage()._cdata


def test_only_these_two_operators_are_such_calls() -> None:
    made = Made()
    x = made.given("x")
    assert is_functional_call(one_base(made, x))
    assert not is_functional_call(x)
    assert not is_functional_call(made.call(aten.relu.default, x))
    assert not is_functional_call(made.call(torch.ops.higher_order.cond, val=value()))


def test_a_copy_of_a_value_into_itself_goes_and_its_users_read_the_value() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    place = graph.call_function(aten.add.Tensor, (x, 1))
    result = graph.call_function(aten.mul.Tensor, (x, 2))
    copy = graph.call_function(aten.copy_.default, (place, result))
    negative = graph.call_function(aten.neg.default, (copy,))
    graph.output(negative)
    updates._substitute(result, place)
    assert negative.args == (place,)
    assert [node.target for node in graph.find_nodes(op="call_function", target=aten.copy_.default)] == []
