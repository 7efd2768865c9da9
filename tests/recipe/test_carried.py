"""What a script carries: how it knows a graph again, and how passes become edits."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import permutations
from typing import Any, ClassVar

import pytest
import torch
from attrs import field, frozen
from torch import fx

from npucompose.errors import ConfigError
from npucompose.graphs import printed
from npucompose.passes.base import Pass
from npucompose.recipe import carried
from npucompose.recipe.carried import GraphEdit, apply_frozen, graph_fingerprint
from npucompose.recipe.freeze import (
    FrozenGraph,
    Unfreezable,
    _literal,
    _longest_rise,
    _nodes,
    _prove,
    _same,
    _Snapshot,
    _target,
    freeze,
)
from npucompose.recipe.python_text import literal
from npucompose.schema.capabilities import Capabilities
from tests.sample_graphs import CAN, mm_abs_sub, traced

aten = torch.ops.aten


class Digest:
    """sha256 that keeps what it is given."""

    texts: ClassVar[list[str]] = []

    def __init__(self, raw: bytes = b"") -> None:
        if raw:
            self.texts.append(f"the bytes {raw.hex()}\n")

    def update(self, raw: bytes) -> None:
        self.texts.append(raw.decode())

    def hexdigest(self) -> str:
        return "a digest"


def known_by(graph: fx.Graph, monkeypatch: pytest.MonkeyPatch) -> str:
    """The text that stands for a graph."""
    Digest.texts.clear()
    monkeypatch.setattr(carried.hashlib, "sha256", Digest)
    assert graph_fingerprint(graph) == "a digest"
    monkeypatch.undo()
    return "".join(Digest.texts)


def with_constants() -> fx.Graph:
    inner = fx.Graph()
    inner.output(inner.placeholder("y"))
    root = torch.nn.Module()
    root.deep = torch.nn.Module()
    root.deep.weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t())
    root.empty, root.elsewhere = torch.empty(0), torch.empty(2, device="meta")
    root.inner = fx.GraphModule(torch.nn.Module(), inner)
    root.sparse = torch.nn.Linear(1, 1)
    graph = fx.Graph()
    found = ("deep.weight", "empty", "elsewhere", "inner", "sparse", "nobody.there")
    got = [graph.create_node("get_attr", name) for name in found]
    made = graph.call_function(operator.getitem, (got, slice(0, None)), {"by": {"a": (1, True)}})
    graph.call_function(aten.reshape.default, (made, [2, -1]))
    graph.call_function(aten.empty.memory_format, ([2],), {"device": torch.device("meta"), "dtype": torch.int8})
    graph.output((made, None))
    graph.owning_module = root  # type: ignore[assignment]
    return graph


def with_sizes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.new_zeros(x.shape[0] * 2), torch.cat([x, y]).t(), y.view(-1), torch.max(y, 0)[1]


def test_a_graph_is_known_by_this(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = {
        "numbers": traced(mm_abs_sub, torch.randn(2, 3).new_zeros(2, 2)).graph,
        "symbols": traced(with_sizes, torch.randn(4, 3), torch.randn(5, 3), mode="symbolic").graph,
        "constants": with_constants(),
    }
    parts = [f"# {about}\n{known_by(graph, monkeypatch)}" for about, graph in graphs.items()]
    golden("recipe/known_by.txt", "\n".join(parts))


def test_layouts_without_strides_have_none_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.Graph()
    graph.placeholder("x").meta["val"] = torch.eye(2).to_sparse()
    assert known_by(graph, monkeypatch) == "placeholder x   torch.float32['2', '2']\n"


def test_a_name_like_a_symbol_that_is_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fx.Graph()
    graph.placeholder("x").meta["val"] = "s0 and int64"
    assert known_by(graph, monkeypatch) == "placeholder x   s0 and int64\n"


# Passes as edits.


@frozen(kw_only=True)
class Done(Pass):
    """Whatever a test does to the nodes, by name."""

    name: ClassVar[str] = "done"
    act: Callable[[fx.Graph, dict[str, fx.Node]], None] = field()

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        self.act(graph, {found.name: found for found in graph.nodes})
        return 1


def inserted(graph: fx.Graph, after: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    with graph.inserting_after(after):
        made = graph.call_function(target, args, kwargs)
    with after.meta["val"].fake_mode:
        given = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta["val"] = target(*given[0], **given[1])
    return made


def swapped(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    n["sub"].args = (n["x_1"], n["abs_1"])


def shortened(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    n["sub"].replace_all_uses_with(n["abs_1"])
    graph.erase_node(n["sub"])


def spread_out(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    """What used one node uses two now."""
    more = inserted(graph, n["x_1"], aten.neg.default, n["x_1"])
    n["sub"].args = (more, n["x_1"])
    n["add"].args = (n["abs_1"], n["sub"])
    graph.erase_node(n["mm"])


def moved(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    n["sub"].append(n["mm"])


def more_values(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    """Every kind of value that an argument can be."""
    made = inserted(graph, n["abs_1"], aten._to_copy.default, n["abs_1"], dtype=torch.float32, layout=torch.strided)
    plain = inserted(graph, made, aten.clone.default, made, memory_format=torch.contiguous_format)
    index = inserted(graph, plain, aten.slice.Tensor, plain, 0, 0, 2)
    alone = inserted(graph, index, aten.ones.default, [2, 2])
    added = inserted(graph, alone, operator.add, index, alone)
    both = inserted(graph, added, aten.cat.default, [added, index], 1)
    inserted(graph, both, aten.sum.dim_IntList, both, [0], True)
    n["sub"].args = (added, n["x_1"])
    n["sub"].kwargs = {"alpha": 1.5}


CHANGES = {"swapped": swapped, "shortened": shortened, "spread_out": spread_out, "moved": moved, "more": more_values}


def test_what_passes_did_is_written_like_this(golden: Any) -> None:
    parts = []
    for about, act in CHANGES.items():
        module = traced(mm_abs_sub, torch.randn(2, 2))
        wanted = graph_fingerprint(module.graph)
        done = freeze(module, (("idle", Done(act=lambda g, n: None)), ("mine", Done(act=act))), CAN)
        assert (done.fingerprint, done.nodes, done.edits["idle"]) == (wanted, 6, ())
        parts.append(f"# {about}\n" + "".join(f"{line}\n" for line in done.edits["mine"]))
    golden("recipe/edits.txt", "\n".join(parts))


def first_of_all(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    with graph.inserting_before(n["x_1"]):
        graph.call_function(aten.ones.default, ([1],)).meta["val"] = torch.ones(1)


def a_method(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    with graph.inserting_after(n["x_1"]):
        graph.call_method("abs", (n["x_1"],))


def a_function(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    inserted(graph, n["x_1"], torch.neg, n["x_1"])


def a_device(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    inserted(graph, n["x_1"], aten.ones.default, [1], device=torch.device("cpu"))


def another_operator(graph: fx.Graph, n: dict[str, fx.Node]) -> None:
    n["abs_1"].target = aten.relu.default


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (first_of_all, "it puts 'ones_default' before the first node"),
        (a_method, "it adds 'abs_\\w+', which is a call_method and no operator"),
        (a_function, "it adds 'neg', which calls .* and no operator of torch.ops"),
        (a_device, r"it gives an operator device\(type='cpu'\) \(device\), which a script cannot write"),
        (another_operator, "it changes the operator of 'abs_1'"),
    ],
)
def test_what_no_edit_says_is_named(act: Any, why: str) -> None:
    module = traced(mm_abs_sub, torch.randn(2, 2))
    with pytest.raises(ConfigError, match=rf"^pass 'done' @ passes\.mine cannot be frozen into a script: {why}"):
        freeze(module, (("mine", Done(act=act)),), CAN)


def untouched() -> fx.GraphModule:
    return traced(mm_abs_sub, torch.randn(2, 2))


def test_edits_are_proven_where_they_are_made() -> None:
    _prove(untouched(), (), untouched())
    with pytest.raises(Unfreezable, match=r"its edits cannot be repeated \(KeyError: 'nobody'\)"):
        _prove(untouched(), ("edit.move('nobody', after='mm')",), untouched())
    with pytest.raises(Unfreezable, match="cannot be repeated"):
        _prove(untouched(), ("edit.move('x_1', after='mm')",), untouched())
    with pytest.raises(Unfreezable, match="it changes something that no edit of nodes says"):
        _prove(untouched(), ("edit.move('mm', after='sub')",), untouched())


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n["abs_1"].meta.update(val=n["abs_1"].meta["val"].to(torch.float16)),
        lambda n: setattr(n["sub"], "args", (n["x_1"], n["x_1"])),
        lambda n: n["mm"]._rename("other"),
    ],
    ids=["value", "argument", "name"],
)
def test_a_graph_that_edits_do_not_give_is_noticed(change: Any) -> None:
    wanted = untouched()
    change({found.name: found for found in wanted.graph.nodes})
    with pytest.raises(Unfreezable, match="no edit of nodes says"):
        _prove(untouched(), (), wanted)


def test_as_many_nodes_as_can_stay_where_they_are() -> None:
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{k}") for k in range(5)]
    for order in list(permutations(range(5)))[::3]:
        staying = _longest_rise([nodes[k] for k in order], lambda n: nodes.index(n))
        kept = [k for k in order if nodes[k] in staying]
        longest = max(
            sum(mask >> bit & 1 for bit in range(5))
            for mask in range(32)
            if (chosen := [k for bit, k in enumerate(order) if mask >> bit & 1]) == sorted(chosen)
        )
        assert kept == sorted(kept)
        assert len(kept) == longest
    assert _longest_rise([], lambda n: 0) == set()
    assert _longest_rise(nodes, lambda n: nodes.index(n)) == set(nodes)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        ((1,), (1,), True),
        ((1,), [1], True),
        ((1,), (1, 2), False),
        ((1, 2), (1, 3), False),
        ((1,), 1, False),
        (1, (1,), False),
        ([1], {"a": 1}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({"a": 1}, [1], False),
        (slice(0, 1), slice(0, 1), True),
        (slice(0, 1), slice(0, 2), False),
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
    ],
)
def test_arguments_are_compared_by_value_and_type(one: Any, other: Any, same: bool) -> None:
    assert _same(one, other) is same


def test_every_use_of_a_node_counts() -> None:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    assert _nodes(((a, [b, a], 1), {"k": b})) == [a, b, a, b]


def test_a_removed_node_has_one_replacement_or_none() -> None:
    graph = fx.Graph()
    a, b, c = (graph.placeholder(name) for name in "abc")
    gone = graph.call_function(aten.neg.default, (a,))
    first = graph.call_function(aten.add.Tensor, (gone, gone))
    second = graph.call_function(aten.cat.default, ([gone, c],))
    start = _Snapshot(graph)
    first.args, second.args = (b, b), ([b, c],)
    assert start._replaced([a, b, c, first, second], {gone}) == {gone: b}
    second.args = ([c, c],)
    assert start._replaced([a, b, c, first, second], {gone}) == {}
    first.args, second.args = (b,), ([b, c],)
    assert start._replaced([a, b, c, first, second], {gone}) == {gone: b}


def test_operators_and_values_are_written_as_python_names_them() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert _target(graph.call_function(aten.add.Tensor, (x, x))) == "torch.ops.aten.add.Tensor"
    assert _target(graph.call_function(operator.mul, (x, x))) == "operator.mul"
    values = [x, (x, 1), [x], {"a": x}, slice(x, None, 2), None, True, 1.5, "t", torch.int8, torch.strided]
    assert [_literal(value) for value in [*values, torch.preserve_format]] == [
        'edit["x"]',
        '(edit["x"], 1)',
        '[edit["x"]]',
        '{"a": edit["x"]}',
        'slice(edit["x"], None, 2)',
        "None",
        "True",
        "1.5",
        '"t"',
        "torch.int8",
        "torch.strided",
        "torch.preserve_format",
    ]
    assert literal((x.name,)) == '("x",)'
    with pytest.raises(Unfreezable, match=r"a script cannot write"):
        _literal(torch.device("cpu"))


def test_a_frozen_graph_says_what_the_passes_gave() -> None:
    for act in CHANGES.values():
        wanted, fresh = untouched(), untouched()
        done: FrozenGraph = freeze(wanted, (("mine", Done(act=act)),), CAN)

        def edits(edit: GraphEdit, lines: tuple[str, ...] = done.edits["mine"]) -> None:
            for line in lines:
                eval(line, {"edit": edit, "torch": torch, "operator": operator})

        apply_frozen(fresh, {done.fingerprint: edits}, "mine")
        assert printed(fresh.graph) == printed(wanted.graph)


def test_a_value_without_strides_has_the_symbols_of_its_shape_and_is_known_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert carried._symbols(torch.ones(2).to_sparse()) == set()
    assert carried._symbols([1, None, (torch.ones(2, 3),)]) == set()
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["val"] = torch.ones(2, 3).to_sparse()
    graph.output((given,))
    assert "torch.float32['2', '3']\n" in known_by(graph, monkeypatch)
    given.meta["val"] = torch.ones(2, 3)
    assert "torch.float32['2', '3']/('3', '1')\n" in known_by(graph, monkeypatch)
