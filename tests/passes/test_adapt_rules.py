"""Rule by rule: when one matches, what its references stand for, what it puts in and what is told of it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import yaml
from torch import fx

from npucompose import ops
from npucompose.errors import ConfigError, RejectedError
from npucompose.graphs import op_counts
from npucompose.graphs.matching import arguments_of, operator_of, part_of
from npucompose.passes.adapt.build import TRAIL, Builder, case_of
from npucompose.passes.adapt.engine import applies, walk
from npucompose.passes.base import Outcome
from npucompose.passes.metadata import same_form
from npucompose.schema.adapt import OperatorCall, RuleSet
from npucompose.schema.capabilities import Capabilities
from npucompose.table.structure import structure
from tests.passes.test_adapt import FLATTENING, adapted, image, rules
from tests.sample_graphs import CAN, Program, aten, node, traced

ops.define()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aten.relu.default", aten.relu.default),
        ("aten.add.Tensor", aten.add.Tensor),
        ("aten.relu.other", None),
        ("aten.nobody.default", None),
        ("nobody.relu.default", None),
        ("load_library.relu.default", None),
        ("aten.relu.overloads", None),
        ("aten.name.default", None),
    ],
)
def test_an_operator_is_found_by_name_and_nothing_else_is_one(name: str, found: Any) -> None:
    assert operator_of(name) is found


def test_arguments_go_by_name_with_the_schema_s_defaults() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(aten.add.Tensor, (x, 2), {"alpha": 3})
    assert arguments_of(call) == {"self": x, "other": 2, "alpha": 3}
    assert arguments_of(graph.call_function(aten.add.Tensor, (x,), {"other": 2})) == {"self": x, "other": 2, "alpha": 1}
    assert arguments_of(graph.call_function(aten.amax.default, (x,))) == {"self": x, "dim": [], "keepdim": False}
    assert arguments_of(graph.call_function(aten.add.Tensor, (x,))) == {"self": x, "alpha": 1}


@pytest.mark.parametrize(
    ("name", "found"), [("x", 1), ("l", [2, 3]), ("l[0]", 2), ("l[1]", 3), ("l[2]", None), ("x[0]", None), ("y", None)]
)
def test_a_part_of_a_list_has_its_place_as_name(name: str, found: Any) -> None:
    assert part_of({"x": 1, "l": [2, 3]}, name) == found


@pytest.mark.parametrize(
    ("value", "case"), [(True, "true"), (False, "false"), ("Max", "Max"), (3, "3"), (None, "None")]
)
def test_a_case_is_said_as_yaml_says_it(value: Any, case: str) -> None:
    assert case_of(value) == case


VALUES: dict[str, Any] = {
    "image": torch.empty(2, 3, 4, 5),
    "last": torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "cube": torch.empty(3, 4, 5),
    "apart": torch.empty(3, 8)[:, ::2],
    "long": torch.empty(2, dtype=torch.int64),
    "bool": torch.empty(2, dtype=torch.bool),
    "pair": torch.empty(2, dtype=torch.complex64),
    "half": torch.empty(2, dtype=torch.float16),
}
WHEN: list[tuple[str, dict[str, Any], bool]] = [
    ("{dtype: {x: [floating]}}", {"x": "half"}, True),
    ("{dtype: {x: [floating]}}", {"x": "long"}, False),
    ("{dtype: {x: [integer]}}", {"x": "long"}, True),
    ("{dtype: {x: [integer]}}", {"x": "bool"}, False),
    ("{dtype: {x: [integer]}}", {"x": "pair"}, False),
    ("{dtype: {x: [bool]}}", {"x": "bool"}, True),
    ("{dtype: {x: [complex]}}", {"x": "pair"}, True),
    ("{dtype: {x: [complex, floating]}}", {"x": "long"}, False),
    ("{dtype: {x: [int64]}}", {"x": "long"}, True),
    ("{dtype: {x: [int32, int64]}}", {"x": "half"}, False),
    ("{dtype: {x: [floating]}}", {"x": 1.0}, False),
    ("{dtype: {x: [floating]}}", {}, False),
    ("{dtype: {x: [floating], y: [integer]}}", {"x": "half", "y": "long"}, True),
    ("{dtype: {x: [floating], y: [integer]}}", {"x": "half", "y": "half"}, False),
    ("{rank: {x: [3, 4]}}", {"x": "image"}, True),
    ("{rank: {x: [3, 4]}}", {"x": "long"}, False),
    ("{rank: {x: [4]}}", {"x": 4}, False),
    ("{shape: {x: [3, null, 5]}}", {"x": "cube"}, True),
    ("{shape: {x: [3, null]}}", {"x": "cube"}, False),
    ("{shape: {x: [4, null, 5]}}", {"x": "cube"}, False),
    ("{shape: {x: [3]}}", {"x": [3]}, False),
    ("{length: {x: [1, 2]}}", {"x": [7, 8]}, True),
    ("{length: {x: [1, 2]}}", {"x": (7,)}, True),
    ("{length: {x: [1, 2]}}", {"x": []}, False),
    ("{length: {x: [1, 2]}}", {"x": "no list"}, False),
    ("{layout: {x: contiguous}}", {"x": "image"}, True),
    ("{layout: {x: contiguous}}", {"x": "apart"}, False),
    ("{layout: {x: channels_last}}", {"x": "last"}, True),
    ("{layout: {x: channels_last}}", {"x": "image"}, False),
    ("{layout: {x: channels_last}}", {"x": "cube"}, False),
    ("{layout: {x: contiguous}}", {"x": 3}, False),
    ("{args: {x: null}}", {"x": None}, True),
    ("{args: {x: null}}", {"x": 0}, False),
    ("{args: {x: null}}", {"x": "cube"}, False),
    ("{args: {x: 3}}", {"x": "cube"}, False),
    ("{args: {x: 1}}", {"x": 1}, True),
    ("{args: {x: 1}}", {"x": True}, False),
    ("{args: {x: true}}", {"x": 1}, False),
    ("{args: {x: true}}", {"x": True}, True),
    ("{args: {x: 1}}", {"x": 1.0}, True),
    ("{args: {x: max}}", {"x": "'max"}, True),
    ("{args: {x: float32}}", {"x": torch.float32}, True),
    ("{args: {x: float32}}", {"x": torch.float64}, False),
    ("{args: {x: [1, 2]}}", {"x": [1, 2]}, True),
    ("{args: {x: [1, 2]}}", {"x": (1, 2)}, True),
    ("{args: {x: [1, 2]}}", {"x": [1]}, False),
    ("{args: {x: [1, 2]}}", {"x": [1, 3]}, False),
    ("{args: {x: [1, 2]}}", {"x": 1}, False),
    ("{args: {'x[1]': 2}}", {"x": [1, 2]}, True),
    ("{args: {'x[1]': 2}}", {"x": [2, 1]}, False),
    ("{rank: {'x[0]': [3]}}", {"x": ["cube"]}, True),
    ("{args: {x: 1}, rank: {y: [3]}}", {"x": 1, "y": "cube"}, True),
    ("{args: {x: 1}, rank: {y: [3]}}", {"x": 2, "y": "cube"}, False),
    ("{device: [cpu]}", {}, True),
    ("{device: [npu, cuda]}", {}, False),
    ("{mode: [reduce-overhead, eager]}", {}, True),
    ("{mode: [max-autotune]}", {}, False),
    ("{device: [npu], mode: [reduce-overhead]}", {}, False),
    ("{device: [cpu], mode: [max-autotune]}", {}, False),
]


def named(graph: fx.Graph, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [named(graph, item) for item in value] if isinstance(value, list) else value
    if isinstance(value, str) and value in VALUES:
        made = graph.placeholder(value)
        made.meta["val"] = VALUES[value]
        return made
    return value.removeprefix("'") if isinstance(value, str) else value


def rule(text: str) -> Any:
    (only,) = structure(RuleSet, {"name": "mine", "rules": [yaml.safe_load(text)]}, "adapt").rules
    return only


def asked(one: Any, given: dict[str, Any], val: Any = 0) -> bool:
    graph = fx.Graph()
    call = graph.call_function(aten.relu.default, ())
    call.meta["val"] = val
    return applies(one, call, {name: named(graph, value) for name, value in given.items()}, CAN)


@pytest.mark.parametrize(("when", "given", "holds"), WHEN)
def test_a_rule_asks_for_what_it_says(when: str, given: dict[str, Any], holds: bool) -> None:
    one = rule(f"{{op: aten.relu.default, kind: fill_args, to: aten.relu.default, when: {when}}}")
    assert asked(one, given) is holds
    assert asked(one, given, val=None) is False, "a node without a value is left alone"


@pytest.mark.parametrize(
    ("text", "given", "holds"),
    [
        ("kind: dispatch, by: x, cases: {max: {op: aten.amax.default}}", {"x": "'max"}, True),
        ("kind: dispatch, by: x, cases: {max: {op: aten.amax.default}}", {"x": "'min"}, False),
        ("kind: dispatch, by: x, cases: {'true': {op: aten.amax.default}}", {"x": True}, True),
        ("kind: cast_around, compute: float32, inputs: [x, y]", {"x": "image", "y": "half"}, True),
        ("kind: cast_around, compute: float32, inputs: [x, y]", {"x": "half"}, True),
        ("kind: cast_around, compute: float32, inputs: [x, y]", {"x": "image", "y": None}, False),
        ("kind: cast_around, compute: float32, inputs: [x]", {"x": 3}, False),
        ("kind: layout_around, perm: [0, 3, 1, 2], inputs: [x, y]", {"x": "image"}, True),
        ("kind: layout_around, perm: [0, 3, 1, 2], inputs: [x, y]", {"x": "cube", "y": "image"}, True),
        ("kind: layout_around, perm: [0, 3, 1, 2], inputs: [x]", {"x": "cube"}, False),
        ("kind: layout_around, perm: [0, 3, 1, 2], inputs: [x]", {"x": 4}, False),
    ],
)
def test_a_kind_asks_for_something_to_do(text: str, given: dict[str, Any], holds: bool) -> None:
    assert asked(rule(f"{{op: aten.relu.default, {text}}}"), given) is holds


def test_a_symbol_equals_itself_and_no_number() -> None:
    x = traced(lambda x: x + 1, torch.empty(3, 4), mode="symbolic").graph.find_nodes(op="placeholder")[0]
    size = x.meta["val"].shape[0]
    one = rule("{op: aten.relu.default, kind: fill_args, to: aten.relu.default, when: {args: {x: 3}}}")
    guards = len(size.node.shape_env.guards)
    assert asked(one, {"x": size}) is False
    assert asked(one, {"x": 3}) is True
    assert len(size.node.shape_env.guards) == guards


WRONG = """
- {name: a, op: aten.relu.default, kind: cast_around, compute: float32, inputs: [slef]}
- {name: b, op: aten.relu.default, kind: layout_around, perm: [1, 0], inputs: [self], set: {foo: 1}}
- {name: c, op: aten.relu.default, kind: dispatch, by: how, cases: {max: {op: aten.nobody.default, args: [$selff]}}}
- {name: d, op: aten.relu.default, kind: compose, steps: [{let: a, op: aten.relu.default, args: [$self]},
   {op: aten.abs.default, args: [$b]}], results: [$c, $a]}
- {name: e, op: aten.relu.default, kind: fill_args, to: aten.relu.default, args: [$other], kwargs: {x: [$more.dtype]}}
- {name: f, op: aten.relu.default, kind: reject, message: '{op} {node} {source} {self}'}
- {name: g, op: aten.relu.default, kind: fill_args, to: aten.relu.default, args: [$self], when: {
   dtype: {q: [int8]}, rank: {r: [1]}, shape: {s: [1]}, args: {t: 1}, length: {'u[0]': [1]}, layout: {v: contiguous}}}
"""


def test_every_name_of_every_rule_is_looked_up() -> None:
    with pytest.raises(ConfigError) as caught:
        walk(fx.Graph(), rules(WRONG), CAN, lambda one: None)
    told = [problem.partition(" for aten")[0] for problem in caught.value.problems]
    assert told == [
        "unknown argument 'slef' @ adapt rule 'a'", "unknown argument 'foo' @ adapt rule 'b'",
        "unknown argument 'how' @ adapt rule 'c'", "unknown argument 'selff' @ adapt rule 'c'",
        "there is no operator 'aten.nobody.default' @ adapt rule 'c'.", "unknown argument 'b' @ adapt rule 'd'",
        "unknown argument 'c' @ adapt rule 'd'", "unknown argument 'other' @ adapt rule 'e'",
        "unknown argument 'more' @ adapt rule 'e'",
        *(f"unknown argument '{name}' @ adapt rule 'g'" for name in "tqrsuv"),
    ]  # fmt: skip
    assert "Choices: self, a." in caught.value.problems[5]


def test_references_stand_for_arguments_and_what_is_known_of_them() -> None:
    building = Program(inputs=2)
    x, y = building.values
    call = building.call(aten.mm.default, x, y)
    call.meta.update(stack_trace="a line", other=1)
    builder = Builder(building.graph, call, frozenset(("mine",)), asserts=True)
    names = {"x": x, "l": [y, 3], "n": 7}
    given = ["$x", "$l[0]", "$l[1]", "$n", "$x.dtype", "$x.device", "$x.rank", "$x.numel", "$x.shape", "$x.size(1)",
             "$x.size(-1)", ["$x", {"a": "$n"}], "plain", 2.5,
             "$x.ones", "$x.shape[1:]", "$x.shape[2:]", [-1, "*$x.ones[1:]", "*$x.shape"]]  # fmt: skip
    assert builder.resolved(given, names) == [
        x, y, 3, 7, torch.float32, torch.device("cpu"), 2, 16, [4, 4], 4, 4, [x, {"a": 7}], "plain", 2.5,
        [1, 1], [4], [], [-1, 1, 4, 4]
    ]  # fmt: skip
    assert builder.made == []
    both = builder.called(OperatorCall(op="aten.max.dim", args=("$x", 1), kwargs={"keepdim": True}, result=1), names)
    assert (both.target, both.args[1], both.meta["val"].dtype) == (operator.getitem, 1, torch.int64)
    assert builder.made == [both.args[0], both]
    assert builder.made[0].kwargs == {"keepdim": True}
    assert all((made.meta["stack_trace"], made.meta[TRAIL]) == ("a line", {"mine"}) for made in builder.made)
    assert [n.name for n in building.graph.nodes] == ["x0", "x1", "max_dim", "getitem", "mm_default"]


def test_sizes_that_are_symbols_become_nodes() -> None:
    module = traced(lambda x: x.relu(), torch.empty(3, 5), mode="symbolic")
    x, relu, _ = module.graph.nodes
    builder = Builder(module.graph, relu, frozenset(), asserts=True)
    found = builder.resolved(["$x.size(-1)", "$x.numel", "$x.shape"], {"x": x})
    asked = [(made.target, made.args) for made in (found[0], found[1], *found[2])]
    size = aten.sym_size.int
    assert asked == [(size, (x, 1)), (aten.sym_numel.default, (x,)), (size, (x, 0)), (size, (x, 1))]


def once(text: str, function: Any, *inputs: torch.Tensor, can: Capabilities = CAN) -> tuple[fx.GraphModule, Outcome]:
    module = traced(function, *inputs)
    return module, adapted(module, rules(text), can)


@pytest.mark.parametrize("like", ["dense", "channels last", "turned", "apart"])
def test_a_result_lies_in_memory_as_the_old_one_did(like: str) -> None:
    x = {
        "dense": image(2, 3, 4, 5), "channels last": image(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "turned": image(3, 4).t(), "apart": image(3, 4, 5).permute(1, 0, 2),
    }[like]  # fmt: skip
    module = traced(lambda x: x.relu(), x)
    old = node(module.graph, "relu").meta["val"]
    given = rules(FLATTENING)
    assert adapted(module, given).matches == 1
    new = next(iter(reversed(module.graph.nodes))).args[0]
    assert same_form(new.meta["val"], old)
    assert torch.equal(module(x), x.relu())
    assert module(x).stride() == x.relu().stride()
    put = {"dense": 0, "turned": 1, "apart": 1, "channels last": 0}[like]
    assert op_counts(module.graph).get("aten.empty_strided.default", 0) == put
    assert op_counts(module.graph).get("aten.copy.default", 0) == put


CASTING = "[{op: aten.add.Tensor, kind: cast_around, compute: %s, inputs: [self, other], contract: {%s}}]"


@pytest.mark.parametrize(
    ("dtype", "compute", "casts", "checked"),
    [
        (torch.float64, "float32", 3, True),
        (torch.float16, "float32", 3, False),
        (torch.int32, "int64", 3, False),
        (torch.int64, "float32", 3, True),
    ],
)
def test_a_cast_is_checked_where_a_value_may_not_fit(dtype: Any, compute: str, casts: int, checked: bool) -> None:
    x = torch.ones(3, dtype=dtype)
    module, outcome = once(CASTING % (compute, "rtol: 0.25, range_check: true"), lambda x: x + x.neg(), x)
    (fact,) = outcome.rules
    assert (fact.matches, fact.casts, fact.unchecked, outcome.checks_ranges) == (1, casts, 0, checked)
    assert op_counts(module.graph).get("aten._assert_async.msg", 0) == 2 * checked
    assert module(x).dtype == dtype
    assert torch.equal(module(x), x + x.neg())
    assert (outcome.exact, outcome.rtol, outcome.atol) == (False, 0.25, 0.0)


def test_what_has_the_dtype_already_is_not_cast() -> None:
    module, outcome = once(CASTING % ("float64", "rtol: 0"), lambda x, y: x + y, torch.ones(3), torch.ones(3).double())
    assert outcome.rules[0].casts == 1
    assert outcome.exact
    assert module(torch.ones(3), torch.ones(3).double()).dtype == torch.float64


def test_a_float_that_is_not_checked_may_become_infinite_and_an_integer_never() -> None:
    silent = Capabilities(target="npu", mode="max-autotune", device="npu", asserts=False)
    wide = torch.ones(3, dtype=torch.float64)
    for contract, unchecked in (("range_check: true", 2), ("rtol: 1.0", 0)):
        module, outcome = once(CASTING % ("float32", contract), lambda x: x + x.neg(), wide, can=silent)
        assert (outcome.rules[0].unchecked, outcome.checks_ranges) == (unchecked, False)
        assert "aten._assert_async.msg" not in op_counts(module.graph)
    with pytest.raises(
        RejectedError, match=r"aten.add.Tensor \(node add\): adapt rule 'mine.0' casts float64 to int32"
    ):
        once(CASTING % ("int32", "range_check: true"), lambda x: x + x.neg(), wide, can=silent)
    with pytest.raises(ConfigError, match=r"adapt rule 'mine.0' casts float64 to int32, which gives other numbers"):
        once(CASTING % ("int32", "rtol: 0"), lambda x: x + x.neg(), wide)


def test_a_layout_is_turned_and_turned_back_where_the_rank_is_that_of_the_rule() -> None:
    text = """
      - {op: aten.cat.default, kind: reject, when: {rank: {'tensors[0]': [9]}}, message: never}
      - {op: aten.amax.default, kind: layout_around, perm: [2, 0, 1], inputs: [self], set: {dim: [0], keepdim: true}}
    """
    x = image(3, 4, 5)
    module, outcome = once(text, lambda x: x.amax([2], True), x)
    assert torch.equal(module(x), x.amax([2], True))
    assert outcome.rules[0].permutes == 2
    found = [n for n in module.graph.nodes if n.target is aten.amax.default]
    assert found[0].args[1:] == ([0], True)
    module, outcome = once(text.replace("keepdim: true", "keepdim: false"), lambda x: x.amax([2]), x)
    assert (torch.equal(module(x), x.amax([2])), outcome.rules[0].permutes) == (True, 1)


def test_what_is_given_by_name_or_not_at_all_is_changed_in_its_place() -> None:
    text = "[{op: aten.add.Tensor, kind: layout_around, perm: [1, 0], inputs: [self, other], set: {alpha: 3}}]"
    x = image(3, 4)
    module, _ = once(text, lambda x: aten.add.Tensor(x, other=x), x)
    assert torch.equal(module(x), x + 3 * x)
    found = [n for n in module.graph.nodes if n.target is aten.add.Tensor]
    assert (len(found[0].args), set(found[0].kwargs)) == (1, {"other", "alpha"}) or set(found[0].kwargs) == {"alpha"}
    turned = "kind: layout_around, perm: [1, 0], inputs: [self], set: {dim: [0], keepdim: true}"
    text = f"[{{op: aten.sum.dim_IntList, {turned}}}]"
    module = traced(lambda x: aten.sum.dim_IntList(x, [1], True), x)
    call = node(module.graph, "sum_1")
    call.args = (call.args[0],)
    call.kwargs = {"dim": [1], "keepdim": True}
    adapted(module, rules(text))
    assert torch.equal(module(x), x.sum([1], True))


def test_both_results_are_replaced_each_by_its_own() -> None:
    text = """
      - {op: aten.max.dim, kind: compose, results: [$p, $i], steps: [
          {let: n, op: aten.neg.default, args: [$self]},
          {let: v, op: aten.min.dim, args: [$n, $dim], result: 0},
          {let: i, op: aten.min.dim, args: [$n, $dim], result: 1},
          {let: p, op: aten.neg.default, args: [$v]}]}
    """
    x = image(3, 4)
    module, outcome = once(text, lambda x: tuple(x.max(1)), x)
    assert all(torch.equal(a, b) for a, b in zip(module(x), x.max(1), strict=True))
    assert outcome.matches == 1
    with pytest.raises(ValueError, match=r"rule 'mine.0' gives 1 results, and aten.max.dim has 2"):
        once(text.replace("[$p, $i]", "[$p]"), lambda x: tuple(x.max(1)), x)
    with pytest.raises(
        ValueError, match=r"gives torch.float32 of rank 1 for aten.max.dim \(node max_1\), which gave torch.int64"
    ):
        once(text.replace("[$p, $i]", "[$p, $p]"), lambda x: tuple(x.max(1)), x)


REJECTING = "[{name: r, op: aten.relu.default, kind: reject, message: '%s'}]"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("no", "aten.relu.default (node relu) at m.py:3: y = f(x) is rejected by adapt rule 'r': no"),
        ("{node} no", "aten.relu.default at m.py:3: y = f(x) is rejected by adapt rule 'r': relu no"),
        ("{source}: {op}", "aten.relu.default (node relu) is rejected by adapt rule 'r': m.py:3: y = f(x): "
         "aten.relu.default"),
    ],
)  # fmt: skip
def test_a_refusal_says_each_thing_once(message: str, told: str) -> None:
    module = traced(lambda x: x.relu(), image(3))
    node(module.graph, "relu").meta["stack_trace"] = 'File "m.py", line 3, in f\n    y = f(x)'
    seen: list[Any] = []
    counts, rejected = walk(module.graph, rules(REJECTING % message), CAN, seen.append)
    assert rejected == [told]
    assert [(type(one).__name__, one.node.name, one.message) for one in seen] == [("Rejected", "relu", told)]
    assert counts["r"]["matches"] == 0
    node(module.graph, "relu").meta.clear()
    node(module.graph, "relu").meta["val"] = torch.empty(3)
    _, (bare,) = walk(module.graph, rules(REJECTING % "{source}"), CAN, seen.append)
    assert bare == "aten.relu.default (node relu) is rejected by adapt rule 'r': no source"


def test_rules_that_did_something_are_told_with_the_widest_of_their_contracts() -> None:
    text = """
      - {name: a, op: aten.relu.default, kind: fill_args, to: aten.abs.default, args: [$self], contract: {rtol: 0.1}}
      - {name: b, op: aten.exp.default, kind: fill_args, to: aten.neg.default, args: [$self], contract: {atol: 0.2}}
      - {name: c, op: aten.sin.default, kind: fill_args, to: aten.cos.default, args: [$self], contract: {rtol: 9}}
      - {name: d, op: aten.neg.default, kind: fill_args, to: aten.tanh.default, args: [$self]}
    """
    _, outcome = once(text, lambda x: x.relu() + x.exp() + x.relu(), image(3))
    told = [
        (fact.rule, fact.kind, fact.op, fact.matches, fact.rtol, fact.atol, fact.max_abs_err) for fact in outcome.rules
    ]
    assert told == [
        ("a", "fill_args", "aten.relu.default", 2, 0.1, 0.0, None),
        ("b", "fill_args", "aten.exp.default", 1, 0.0, 0.2, None),
        ("d", "fill_args", "aten.neg.default", 1, 0.0, 0.0, None),
    ]
    assert (outcome.matches, outcome.exact, outcome.rtol, outcome.atol) == (4, False, 0.1, 0.2)
    _, quiet = once(text, lambda x: x.cos(), image(3))
    assert (quiet.matches, quiet.exact, quiet.rtol, quiet.rules) == (0, True, 0.0, ())
