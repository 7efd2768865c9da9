"""What is read from an FX graph: one example by hand, with sizes and numbers that are symbols of torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import AttrSource, LocalSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npucompose.npu.static_graph.facts import FxFacts, Input, Op, OpArgument
from npucompose.npu.static_graph.reading import argument_of, read
from npucompose.npu.static_graph.verdicts import numbers

aten = torch.ops.aten
TRACE = '  File "/somewhere/model.py", line 7, in forward\n    return x * 2\n'


class ExampleGraph:
    """A graph whose nodes carry fake values: `key` [s, 8], a weight [8, 3], the number `lens[0]`."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.graph = fx.Graph()
        self.key = self.placeholder("arg0_1", self.fake(torch.ones(5, 8), LocalSource("key"), dynamic=(0,)))
        self.weight = self.placeholder("arg1_1", self.fake(torch.ones(8, 3), LocalSource("weight")))
        self.n = self.placeholder("arg2_1", self.number(7, LocalSource("lens")))
        self.s, self.n_symbol = str(self.val(self.key).shape[0]), str(self.val(self.n))

    def fake(self, real: torch.Tensor, source: Any, dynamic: tuple[int, ...] = ()) -> torch.Tensor:
        kinds = [DimDynamic.DYNAMIC if at in dynamic else DimDynamic.STATIC for at in range(real.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=kinds)
        return self.mode.from_tensor(real, source=source, symbolic_context=context)

    def number(self, hint: int, source: Any) -> torch.SymInt:
        symbol = self.env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[return-value]

    def placeholder(self, name: str, value: object) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    @staticmethod
    def val(node: fx.Node) -> Any:
        return node.meta["val"]

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        given: Any = fx.map_arg((args, kwargs), lambda n: n.meta.get("val"))
        with self.mode:
            node.meta["val"] = target(*given[0], **given[1])
        return node

    def ops(self) -> list[Op]:
        return list(read(self.graph, "graph_0").ops)


@pytest.fixture
def example() -> ExampleGraph:
    return ExampleGraph()


@pytest.mark.parametrize(
    ("source", "argument"),
    [
        ("L['key']", "key"), ("L['caches'][1]", "caches[1]"), ("L['key'].size()[2]", "key.size()[2]"),
        ("L['key']._base", "key"), ("L['a'].b['L']", "a.b['L']"), ("L['a']['L[\\'b\\']']", "a['L[\\'b\\']']"),
        ("L['self']._modules['mm']._parameters['weight']", None), ("L['self']._buffers['k']", None),
        ("L['self']._modules['a']", None), ("L['self']._parameters['a']", None), ("G['flag']", None), ("", None),
        ("L['a'].b[L['c']]", "a.b[L['c']]"),
        ("G['x'].y(L['z'])", None),
    ],
)  # fmt: skip
def test_torchs_source_becomes_the_models_words(source: str, argument: str | None) -> None:
    assert argument_of(source) == argument


def test_the_inputs_are_named_by_dynamos_sources_behind_the_parameters(example: ExampleGraph) -> None:
    facts = read(example.graph, "g", ("L['w']", None, "L['lens'][0]"))
    assert facts.id == "g"
    assert facts.inputs == (
        Input(name="arg0_1", argument="w", shape=(example.s, "8"), sizes={0: example.s}),
        Input(name="arg1_1", shape=("8", "3")),
        Input(name="arg2_1", argument="lens[0]", symbol=example.n_symbol),
    )
    assert facts.symbols == {example.s: "w.size()[0]", example.n_symbol: "lens"}
    two = read(example.graph, "g", ("L['w']", "L['lens'][0]"))
    assert [one.argument for one in two.inputs] == [None, "w", "lens[0]"]
    assert two.symbols == {example.s: "key.size()[0]", example.n_symbol: "lens"}
    assert [one.argument for one in read(example.graph, "g").inputs] == [None] * 3


def test_a_symbol_that_became_a_constant_is_none(example: ExampleGraph) -> None:
    assert example.val(example.n) == 7
    facts = read(example.graph, "g", (None, None, "L['lens'][0]"))
    assert facts.inputs[2] == Input(name="arg2_1", argument="lens[0]")
    assert list(facts.symbols) == [example.s]
    assert example.val(example.key).shape[0] == 5
    assert read(example.graph, "g").inputs[0] == Input(name="arg0_1", shape=("5", "8"))
    assert read(example.graph, "g").symbols == {}


def test_a_source_that_is_no_argument_leaves_the_symbol_unnamed() -> None:
    example = ExampleGraph()
    example.placeholder("arg3_1", example.number(3, AttrSource(LocalSource("self"), "_buffers")))
    assert list(read(example.graph, "g").symbols.values()) == ["key.size()[0]", "lens", None]


def test_the_name_of_a_source_was_a_function_once(example: ExampleGraph) -> None:
    (symbol,) = example.val(example.n).node.expr.free_symbols
    example.env.var_to_sources[symbol] = [SimpleNamespace(name=lambda: "L['old'][1]")]  # type: ignore[list-item]
    assert read(example.graph, "g").symbols[example.n_symbol] == "old[1]"


def test_an_operator_tells_its_shapes_and_its_arguments(example: ExampleGraph) -> None:
    mm = example.call(aten.mm.default, example.key, example.weight)
    mm.meta["stack_trace"] = TRACE
    view = example.call(aten.view.default, mm, [-1])
    s, n = example.s, example.n_symbol
    first, second = example.ops()
    assert first == Op(
        name="mm_default", overload="aten.mm.default", schema="aten::mm", source=first.source,
        arguments={"self": OpArgument(kind="tensor"), "mat2": OpArgument(kind="tensor")},
        constants={
            "self": "tensor(torch.float32, [..., 8])", "mat2": "tensor(torch.float32, [8, 3])",
            "results": "1", "meta_outputs": "tensor(torch.float32, [..., 3])",
        }, parameters=("self", "mat2"), unknown_in=(s,), unknown_out=(s,), at=3,
    )  # fmt: skip
    assert (first.source or "").startswith("model.py:7 in forward")
    assert (second.name, second.reads, second.view, second.source) == (view.name, ("mm_default",), True, None)
    assert second.arguments == {"self": OpArgument(kind="tensor"), "size": OpArgument(kind="constant")}
    example.call(aten.expand.default, example.call(aten.full.default, [1], 2.0), [example.n])
    example.call(aten.sum.dim_IntList, mm, None, dtype=None)
    full, expanded, summed = example.ops()[2:]
    assert (full.reads, full.view, full.unknown_in, full.unknown_out) == ((), False, (), ())
    assert (expanded.reads, expanded.view, expanded.unknown_in, expanded.unknown_out) == (
        ("full_default",),
        True,
        (),
        (n,),
    )
    assert expanded.arguments["size"] == OpArgument(kind="symbols", symbols=(n,))
    assert summed.arguments["dim"] == summed.arguments["dtype"] == OpArgument(kind="nothing")
    assert all(one.unbacked == () for one in example.ops())


def test_arithmetic_on_sizes_belongs_to_what_reads_it(example: ExampleGraph) -> None:
    first = example.call(aten.relu.default, example.key)
    size = example.call(aten.sym_size.int, first, 0)
    twice = example.call(operator.add, size, example.n)
    example.call(aten.full.default, [twice, 2], 1.0)
    relu, full = example.ops()
    assert full.reads == ("relu_default",)
    assert set(full.arguments["size"].symbols) == {example.s, example.n_symbol}
    assert full.arguments["fill_value"] == OpArgument(kind="constant")
    assert (relu.reads, full.unknown_in) == ((), ())
    assert [one.name for one in read(example.graph, "g").inputs] == ["arg0_1", "arg1_1", "arg2_1"]


def test_what_a_converter_is_given_is_written_down_a_symbol_as_the_tensor_that_it_becomes(
    example: ExampleGraph,
) -> None:
    example.call(aten.full.default, [example.n, 2], 1.0, dtype=torch.int8)
    example.call(aten.cat.default, [example.key, example.key], 1)
    full, cat = (one.constants for one in example.ops())
    assert (full["size"], full["dtype"], full["fill_value"]) == ("tensor(torch.int64, [2])", "torch.int8", "1.0")
    assert cat["tensors"] == "[tensor(torch.float32, [..., 8]), tensor(torch.float32, [..., 8])]"
    assert (cat["dim"], cat["results"], cat["meta_outputs"]) == ("1", "1", "tensor(torch.float32, [..., 16])")


def test_the_symbols_of_one_number_are_told_in_order(example: ExampleGraph) -> None:
    total = example.n
    for at in range(6):
        number = example.placeholder(f"arg{3 + at}_1", example.number(3 + at, LocalSource(f"n{at}")))
        total = example.call(operator.mul, total, number)
    example.call(aten.full.default, [total], 1.0)
    symbols = example.ops()[0].arguments["size"].symbols
    assert len(symbols) == 7
    assert list(symbols) == sorted(symbols)


def test_picking_one_of_several_results_is_no_operator(example: ExampleGraph) -> None:
    both = example.call(aten.max.dim, example.key, 1)
    first = example.graph.call_function(operator.getitem, (both, 0))
    second = example.graph.call_function(operator.getitem, (both, 1))
    first.meta["val"], second.meta["val"] = both.meta["val"]
    example.call(aten.mul.Tensor, first, second)
    assert [(one.name, one.reads) for one in example.ops()] == [("max_dim", ()), ("mul_tensor", ("max_dim",))]


def test_what_only_the_data_decide_is_unbacked_where_it_first_appears(example: ExampleGraph) -> None:
    found = example.call(aten.nonzero.default, example.key)
    example.call(aten.relu.default, found)
    (symbol,) = [str(size) for size in example.val(found).shape if isinstance(size, torch.SymInt)]
    nonzero, relu = example.ops()
    assert (nonzero.unbacked, nonzero.unknown_out, nonzero.unknown_in) == ((symbol,), (symbol,), (example.s,))
    assert (relu.unbacked, relu.unknown_out, relu.unknown_in) == ((), (symbol,), (symbol,))
    assert read(example.graph, "g").symbols[symbol] is None


def test_a_number_that_became_a_constant_and_an_attribute_are_constants(example: ExampleGraph) -> None:
    kept = example.graph.get_attr("kept")
    kept.meta["val"] = example.fake(torch.ones(8, 3), LocalSource("kept"))
    example.call(aten.mm.default, example.key, kept)
    assert example.val(example.n) == 7
    example.call(aten.full.default, [example.n], 1.0)
    mm, full = example.ops()
    assert (mm.arguments["mat2"].kind, mm.arguments["self"].kind) == ("constant", "tensor")
    assert mm.reads == ()
    assert full.arguments["size"] == OpArgument(kind="constant")


def test_a_higher_order_operator_that_gives_no_tensor_beside_its_token_is_not_empty() -> None:
    graph = fx.Graph()
    call = graph.call_function(torch.ops.higher_order.with_effects, ())
    call.meta["val"] = (torch.empty(0), None)
    (op,) = read(graph, "graph_0").ops
    assert (op.overload, op.higher_order, op.empty) == ("with_effects", True, False)


def test_branches_are_read_with_their_place() -> None:
    example = ExampleGraph()
    inner = fx.Graph()
    x = inner.placeholder("x")
    x.meta["val"] = example.val(example.key)
    relu = inner.call_function(aten.relu.default, (x,))
    relu.meta["val"] = example.val(example.key)
    inner.output((relu,))
    branch = example.graph.get_attr("true_graph_0")
    other = example.graph.get_attr("kept")
    call = example.graph.call_function(torch.ops.higher_order.cond, (True, branch, other, [example.key]))
    call.meta["val"] = (example.val(example.key),)
    example.graph.output((call,))
    root = torch.nn.Module()
    root.true_graph_0 = fx.GraphModule(torch.nn.Module(), inner)
    root.kept = torch.nn.Parameter(torch.ones(1))
    root.arg0_1 = root.true_graph_0  # no branch: a placeholder has its name
    module = fx.GraphModule(root, example.graph)
    (op,) = read(module.graph, "graph_0").ops
    assert (op.schema, op.overload, op.view, op.arguments) == ("cond", "cond", False, {})
    (subgraph,) = op.subgraphs
    assert subgraph.id == "graph_0.true_graph_0"
    assert [one.schema for one in subgraph.ops] == ["aten::relu"]
    assert op.unknown_in == (example.s,)


def test_a_call_that_writes_to_copies_is_the_operator_that_writes() -> None:
    """TorchAir converts auto_functionalized_v2 by the converter of its operator."""
    example = ExampleGraph()
    writes = torch.ops.aten.add_.Tensor
    functionalized = torch.ops.higher_order.auto_functionalized_v2
    call = example.graph.call_function(functionalized, (writes,), {"other": example.key, "_self_base_index": 0})
    call.meta["val"] = (example.val(example.key),)
    example.graph.output((call,))
    (op,) = read(example.graph, "graph_0").ops
    assert (op.overload, op.schema, op.higher_order) == ("aten.add_.Tensor", "aten::add_", False)
    assert op.scalar == "alpha"
    assert op.arguments == {"other": OpArgument(kind="tensor")}


def test_numbers_that_are_not_all_inputs_are_packed() -> None:
    example = ExampleGraph()
    for sizes in ([example.n], [example.n, 3], [4, 3]):
        example.call(aten.new_zeros.default, example.weight, sizes)
    computed = example.graph.call_function(operator.add, (example.n, 1))
    computed.meta["val"] = example.val(example.n) + 1
    example.call(aten.new_zeros.default, example.weight, [computed])
    found = [one.arguments["size"] for one in read(example.graph, "graph_0").ops]
    assert [(one.kind, one.packed) for one in found] == [
        ("symbols", False), ("symbols", True), ("constant", False), ("symbols", True),
    ]  # fmt: skip


def test_an_operator_that_turns_data_into_a_number_is_told_with_its_line() -> None:
    example = ExampleGraph()
    item = example.graph.call_function(aten._local_scalar_dense.default, (example.weight,))
    item.meta.update(val=example.val(example.n), stack_trace=TRACE)
    example.call(aten.relu.default, example.weight)
    found = read(example.graph, "graph_0")
    assert [one.overload for one in found.ops] == ["aten.relu.default"]
    (told,) = found.without_tensors
    assert (told.overload, told.schema) == ("aten._local_scalar_dense.default", "aten::_local_scalar_dense")
    assert told.source == "model.py:7 in forward: return x * 2"


def test_the_numbers_of_a_caller_are_its_arguments_and_not_sizes_of_its_tensors() -> None:
    inputs = (
        Input(name="arg0", argument="lens[0]", symbol="s97"),
        Input(name="arg1", argument="key.size()[2]", symbol="s98"),
        Input(name="arg2", symbol="s99"),
        Input(name="arg3", argument="lens[1]"),
    )
    assert numbers(FxFacts(id="graph_0", inputs=inputs)) == ["lens[0] is the number s97 (placeholder arg0)"]


def test_a_call_of_pythons_own_is_read_as_itself() -> None:
    """A builtin has no name of an operator, and is no call that writes to copies."""
    graph = fx.Graph()
    graph.output(graph.call_function(operator.add, (1, 2)))
    assert read(graph, "graph_0").ops == ()
