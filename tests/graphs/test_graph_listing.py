"""How values, calls and constants are told: in a listing for people, and in a fingerprint."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose import ops
from npucompose.graphs import Snapshot, fingerprint, op_counts, printed, symbols
from npucompose.graphs.describe import _short, node_text, value_text
from tests.sample_graphs import aten, traced


@pytest.mark.parametrize(
    ("dtype", "short"),
    [
        (torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float64, "f64"), (torch.int64, "i64"),
        (torch.uint8, "u8"), (torch.int8, "i8"), (torch.bool, "b8"), (torch.complex64, "c64"),
        (torch.float8_e4m3fn, "f8_e4m3fn"), (torch.quint8, "quint8"),
    ],
)  # fmt: skip
def test_a_dtype_is_said_in_short(dtype: torch.dtype, short: str) -> None:
    assert _short(dtype) == short


VALUES: list[tuple[Any, str, str]] = [
    (torch.empty(2, 3), "f32[2, 3]", "f32[2, 3]/('3', '1')@cpu"),
    (torch.empty(2, device="meta"), "f32[2]", "f32[2]/('1',)@meta"),
    (torch.zeros(2, 3).to_sparse(), "f32[2, 3]", "f32[2, 3]@cpu"),
    ((torch.empty(1), [torch.empty(2, dtype=torch.bool), None]), "(f32[1], (b8[2], ))",
     "(f32[1]/('1',)@cpu, (b8[2]/('1',)@cpu, ))"),
    (3, "int 3", "int 3"),
    (None, "", ""),
    (object(), "object", "object"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "short", "whole"), VALUES)
def test_a_value_is_told_with_its_strides_only_where_asked(value: Any, short: str, whole: str) -> None:
    assert (value_text(value), value_text(value, stride=True)) == (short, whole)


def strange(*given: Any, **named: Any) -> Any:
    return given


LISTED: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (aten.mm.default, ("x", "x"), {}, "n: f32[2, 2] = aten.mm.default(x, x)"),
    (strange, (1, 1.0, True, None, "s"), {"to": "x"}, f"n: f32[2, 2] = {__name__}.strange"
     "(1, 1.0, True, None, 's', to=x)"),
    (operator.getitem, (["x", 2], ("x",), ("x", "x")), {}, "n: f32[2, 2] = operator.getitem([x, 2], (x,), (x, x))"),
    (strange, ({"a": "x"}, slice("x", 2, None)), {}, f"n: f32[2, 2] = {__name__}.strange"
     "({a: x}, slice(x, 2, None))"),
    (strange, (torch.float16, aten.mm.default), {"b": torch.device("cpu")}, "n: f32[2, 2] = "
     f"{__name__}.strange(float16, aten.mm.default, b=device(type='cpu'))"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "text"), LISTED)
def test_a_call_is_listed_with_all_it_is_given(target: Any, args: Any, kwargs: Any, text: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")

    def given(value: Any) -> Any:
        if isinstance(value, slice):
            return slice(given(value.start), value.stop, value.step)
        if isinstance(value, dict):
            return {key: given(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(given(item) for item in value)
        return x if value == "x" else value

    made = graph.create_node("call_function", target, given(args), given(kwargs), name="n")
    made.meta["val"] = torch.empty(2, 2)
    assert node_text(made) == text


def test_every_kind_of_node_has_its_line_and_a_stream_behind_it() -> None:
    ops.define()
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2)
    y = graph.placeholder("y")
    held = graph.get_attr("held")
    held.meta["val"] = torch.empty(3)
    module = graph.call_module("layer", (y,))
    graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], ["side"]))
    called = graph.call_function(aten.relu.default, (held,))
    named = graph.get_attr("other")
    graph.call_function(torch.ops.air.scope_exit.default, ())
    graph.output((x, called, module, named))
    fx.GraphModule({"held": torch.ones(3), "other": torch.ones(1), "layer": torch.nn.ReLU()}, graph)
    assert printed(graph) == (
        "x: f32[2] = input\n"
        "y: ? = input\n"
        "held: f32[3] = get_attr held\n"
        "layer = layer(y)\n"
        "scope_enter_default = air.scope_enter.default(['_user_stream_label'], ['side'])\n"
        "relu_default = aten.relu.default(held)  # side\n"
        "other = get_attr other  # side\n"
        "scope_exit_default = air.scope_exit.default()\n"
        "return (x, relu_default, layer, other)\n"
    )
    assert op_counts(graph)["layer"] == 1


def holding(held: Any, name: str = "held") -> fx.Graph:
    graph = fx.Graph()
    owner = torch.nn.Module()
    last, *path = reversed(name.split("."))
    inner = owner
    for part in reversed(path):
        inner.add_module(part, torch.nn.Module())
        inner = getattr(inner, part)
    setattr(inner, last, held)
    graph.output((graph.get_attr(name),))
    return fx.GraphModule(owner, graph).graph


def body(function: Any) -> fx.GraphModule:
    return traced(function, torch.empty(2))


BASE = torch.arange(6.0)
CONSTANTS: list[tuple[Any, Any, bool]] = [
    (BASE, BASE.clone(), True),
    (BASE, BASE + 1, False),
    (BASE, torch.nn.Parameter(BASE.clone()), True),
    (BASE.view(2, 3), BASE.view(2, 3).t().contiguous().t(), True),
    (BASE[::2], torch.tensor([0.0, 2.0, 4.0]), True),
    (BASE[::2], torch.tensor([0.0, 2.0, 5.0]), False),
    (torch.ones(2, 3).cumsum(1).t(), torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]), True),
    (torch.empty(0), torch.ones(0), True),
    (torch.ones(2, device="meta"), torch.zeros(2, device="meta"), True),
    (torch.eye(2).to_sparse(), (torch.eye(2) * 2).to_sparse(), True),
    (body(torch.relu), body(torch.relu), True),
    (body(torch.relu), body(torch.abs), False),
    (None, "text", False),
]


@pytest.mark.parametrize(("one", "other", "same"), CONSTANTS)
def test_a_constant_counts_by_its_bytes_and_a_submodule_by_its_graph(one: Any, other: Any, same: bool) -> None:
    assert (fingerprint(holding(one)) == fingerprint(holding(other))) is same
    assert fingerprint(holding(one, "a.b.held")) == fingerprint(holding(one)), "a name is no content"


def test_what_cannot_be_read_counts_by_its_type() -> None:
    assert fingerprint(holding(torch.ones(2, device="meta"))) != fingerprint(holding(torch.nn.Identity()))
    graph = fx.Graph()
    graph.output((graph.get_attr("nobody.has.it"),))
    assert fingerprint(graph) == fingerprint(holding(None))


def small(first: Any, then: Any, *, shape: tuple[int, ...] = (2, 2), name: str = "x", keyword: Any = 1) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder(name)
    x.meta["val"] = torch.empty(shape)
    one = graph.call_function(first, (x,))
    graph.output((graph.call_function(then, (one,), {"alpha": keyword}),))
    return graph


def test_a_fingerprint_tells_operators_forms_and_keywords_apart_and_no_names() -> None:
    given = [
        small(aten.neg.default, aten.abs.default),
        small(aten.abs.default, aten.neg.default),
        small(aten.neg.default, aten.abs.default, shape=(2, 3)),
        small(aten.neg.default, aten.abs.default, keyword=2),
        small(aten.neg.default, strange),
    ]
    assert len({fingerprint(graph) for graph in given}) == len(given)
    assert fingerprint(small(aten.neg.default, aten.abs.default, name="y")) == fingerprint(given[0])


def test_the_symbols_of_shapes_strides_and_numbers_are_told_in_order() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(y.shape[0] * x.shape[1]) + y.sum().item()

    graph = traced(forward, torch.randn(3, 5), torch.randn(7), mode="symbolic").graph
    found = symbols(graph)
    assert len(found) >= 3
    assert len(set(found)) == len(found)
    x, y = list(graph.nodes)[:2]
    assert [str(size.node.expr) for size in (*x.meta["val"].shape, *y.meta["val"].shape)] == list(found[:3])
    for node in list(graph.nodes):
        node.meta.pop("val", None)
    assert symbols(graph) == ()
    x.meta["val"] = [torch.zeros(2).to_sparse(), (None, 3)]
    assert symbols(graph) == ()


def test_a_symbol_counts_by_its_place_and_a_name_that_looks_like_one_stays() -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.relu() if x.shape[0] > y.shape[0] else y.relu()

    wide = traced(forward, torch.randn(5, 2), torch.randn(3, 2), mode="symbolic").graph
    again = traced(forward, torch.randn(9, 2), torch.randn(4, 2), mode="symbolic").graph
    square = traced(forward, torch.randn(5, 5), torch.randn(3, 5), mode="symbolic").graph
    assert fingerprint(wide) == fingerprint(again)
    assert fingerprint(wide) != fingerprint(square)


def test_equal_counts_stand_by_name_and_a_method_has_no_module() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target in (aten.relu.default, aten.abs.default, aten.neg.default, aten.neg.default, torch.Tensor.add_):
        graph.call_function(target, (x,))
    found = op_counts(graph)
    assert list(found.items()) == [
        ("aten.neg.default", 2), ("add_", 1), ("aten.abs.default", 1), ("aten.relu.default", 1)
    ]  # fmt: skip


def test_symbols_of_strides_count_and_those_of_one_expression_are_sorted() -> None:
    x = traced(lambda x: x + 1, torch.randn(5, 7)[:, :3], mode="symbolic").graph.find_nodes(op="placeholder")[0]
    assert len(symbols(x.graph)) == 3
    y = traced(lambda y: y + 1, torch.randn(2, 3, 4, 5, 6), mode="symbolic").graph.find_nodes(op="placeholder")[0]
    first, *others = y.meta["val"].shape
    for size in others:
        first = first * size
    graph = fx.Graph()
    graph.placeholder("n").meta["val"] = first
    assert len(symbols(graph)) == 5
    assert list(symbols(graph)) == sorted(symbols(graph))


def test_what_is_learnt_of_a_symbol_later_changes_no_snapshot() -> None:
    graph = traced(lambda x: x + 1, torch.randn(4, 3), mode="symbolic").graph
    taken, before, known = Snapshot.from_graph(graph), printed(graph), fingerprint(graph)
    assert bool(next(iter(graph.nodes)).meta["val"].shape[0] == 4)
    assert printed(graph) != before
    assert (taken.text, taken.fingerprint) == (before, known)


def test_an_input_counts_by_its_form_and_not_by_what_has_its_name() -> None:
    def given(held: float, *default: int) -> str:
        graph = fx.Graph()
        graph.output((graph.placeholder("held", None, *default),))
        return fingerprint(fx.GraphModule({"held": torch.full((2,), held)}, graph).graph)

    assert given(1.0) == given(2.0) == given(1.0, 3)
