"""The pass adapt: what each kind of rule makes, what it keeps, and how a mistake in a rule is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import fx

from npucompose.errors import ConfigError, RejectedError
from npucompose.graphs import op_counts, printed
from npucompose.passes.adapt import Adapt, AdaptationLog, DryAdapt
from npucompose.passes.base import Outcome, Request
from npucompose.schema.adapt import RuleSet
from npucompose.schema.capabilities import Capabilities
from npucompose.table.structure import structure
from npucompose_extras.paddle import operators
from tests.passes.adapted_samples import rules_of, verdict
from tests.passes.random_moves import same_bits
from tests.sample_graphs import CAN, aten, traced
from tools.layout import choices

operators.define()
paddle = torch.ops.paddle
ASCEND = rules_of("ascend").rules
PADDLE = rules_of("paddle").rules


def rules(text: str) -> RuleSet:
    return structure(RuleSet, {"name": "mine", "rules": yaml.safe_load(text)}, "adapt")


def adapted(graph: fx.GraphModule, given: RuleSet, can: Capabilities = CAN) -> Outcome:
    outcome = Adapt(rules=given).rewrite(graph.graph, can)
    graph.graph.lint()
    graph.recompile()
    return outcome


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_missing_argument_is_filled_in(golden: Callable[[str, str], None]) -> None:
    module = traced(lambda out, dout: paddle.relu_grad(out, dout), image(3, 4), image(3, 4))
    before = printed(module.graph)
    outcome = adapted(module, rules_of("paddle"))
    golden("passes/adapt.txt", f"before:\n{before}\nafter:\n{printed(module.graph)}")
    assert (outcome.matches, outcome.exact) == (1, True)
    out, dout = torch.tensor([0.0, -0.0, 1.0, float("nan")]), torch.tensor([1.0, -1.0, float("inf"), 2.0])
    other = traced(lambda out, dout: paddle.relu_grad(out, dout), out, dout)
    adapted(other, rules_of("paddle"))
    assert same_bits(other(out, dout), paddle.relu_grad(out, dout))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_double_loss_is_computed_in_float_and_both_results_come_back(reduction: str, weighted: bool) -> None:
    x, label = image(6, 4).double().log_softmax(1), torch.tensor([0, 1, 2, 3, 0, 1])
    weight = [torch.arange(1.0, 5.0).double()] if weighted else []

    def loss(x: torch.Tensor, label: torch.Tensor, *weight: torch.Tensor) -> Any:
        return paddle.nll_loss(x, label, *(weight or (None,)), -100, reduction)

    module = traced(loss, x, label, *weight)
    outcome = adapted(module, rules_of("paddle"))
    assert (outcome.exact, outcome.rtol) == (False, 1e-5)
    assert op_counts(module.graph)["aten._to_copy.default"] == 3 + weighted
    for new, old in zip(module(x, label, *weight), loss(x, label, *weight), strict=True):
        assert new.dtype == torch.float64
        torch.testing.assert_close(new, old, rtol=outcome.rtol, atol=outcome.atol)


def test_a_value_beyond_the_narrow_type_ends_the_run_instead_of_becoming_inf() -> None:
    x, label = image(2, 4).double(), torch.tensor([0, 1])
    module = traced(lambda x, label: paddle.nll_loss(x, label)[0], x, label)
    (fact,) = (f for f in adapted(module, rules_of("paddle")).rules if f.kind == "cast_around")
    assert fact.unchecked == 0
    x[0, 0] = float("inf")
    module(x, label)
    x[0, 0] = 1e300
    with pytest.raises(RuntimeError, match="'nll_loss_double': a value does not fit float32"):
        module(x, label)


def test_where_nothing_can_be_checked_at_run_time_the_facts_say_so() -> None:
    can = Capabilities(target="npu_offline", mode="max-autotune", device="npu", asserts=False)
    module = traced(lambda x, label: paddle.nll_loss(x, label)[0], image(2, 4).double(), torch.tensor([0, 1]))
    (fact,) = (f for f in adapted(module, rules_of("paddle"), can).rules if f.kind == "cast_around")
    assert fact.unchecked == 1
    assert "aten._assert_async.msg" not in op_counts(module.graph)


NARROW = "[{op: aten.add.Tensor, kind: cast_around, compute: int32, inputs: [self, other], contract: {%s}}]"


def test_an_integer_that_might_not_fit_is_checked_or_refused() -> None:
    x = torch.tensor([1, 2])
    with pytest.raises(ConfigError, match="casts int64 to int32, which gives other numbers"):
        adapted(traced(lambda x: x + x, x), rules(NARROW % "rtol: 0"))
    module = traced(lambda x: x + x, x)
    adapted(module, rules(NARROW % "range_check: true"))
    assert torch.equal(module(x), x + x)
    with pytest.raises(RuntimeError, match="does not fit int32"):
        module(torch.tensor([1, 1 << 40]))
    can = Capabilities(target="npu", mode="max-autotune", device="npu", asserts=False)
    with pytest.raises(RejectedError, match="cannot check at run time"):
        adapted(traced(lambda x: x + x, x), rules(NARROW % "range_check: true"), can)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_pooling_and_its_gradient_in_both_layouts(kind: str, data_format: str, exclusive: bool) -> None:
    x = image(2, 5, 6, 3) if data_format == "NHWC" else image(2, 3, 5, 6)
    window = ([3, 3], [2, 2], [1, 1], False, exclusive, data_format, kind)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = paddle.pool2d(x, *window)
        return out, paddle.pool2d_grad(x, out, out * 2, *window)

    module = traced(f, x)
    outcome = adapted(module, rules_of("paddle"))
    assert outcome.exact
    assert not any(name.startswith("paddle") for name in op_counts(module.graph))
    for new, old in zip(module(x), f(x), strict=True):
        assert same_bits(new, old)


def test_an_unsupported_mode_is_refused_with_every_node_and_its_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = paddle.pool2d(x, [2, 2], [2, 2], [0, 0], True)
        return paddle.pool2d(y, [2, 2], [2, 2], [0, 0], True)

    graph = traced(f, image(2, 3, 9, 9))
    for node in graph.graph.nodes:
        node.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    y = pool(x)'
    with pytest.raises(RejectedError) as caught:
        adapted(graph, rules_of("paddle"))
    first, second = caught.value.problems
    assert first == (
        "paddle.pool2d.default (node pool2d) at model.py:7: y = pool(x) is rejected by adapt rule 'pool2d_ceil_mode': "
        "ceil_mode is not supported: pad the input instead"
    )
    assert "(node pool2d_1)" in second


def test_new_nodes_keep_where_they_come_from_and_carry_values() -> None:
    module = traced(lambda out, dout: paddle.relu_grad(out, dout), image(3), image(3))
    old = next(n for n in module.graph.nodes if n.op == "call_function")
    old.meta.update(stack_trace="a line", nn_module_stack={"m": ("layers.0", "Layer")})
    adapted(module, rules_of("paddle"))
    (new,) = (n for n in module.graph.nodes if n.op == "call_function")
    assert (new.meta["stack_trace"], new.meta["nn_module_stack"]) == ("a line", {"m": ("layers.0", "Layer")})
    assert new.meta["val"].shape == (3,)


def test_a_rule_never_matches_what_it_made_not_even_in_a_second_run() -> None:
    doubling = rules("[{op: aten.relu.default, kind: compose, steps: [{let: a, op: aten.relu.default, args: [$self]}, "
                     "{op: aten.relu.default, args: [$a]}]}]")  # fmt: skip
    module = traced(lambda x: x.relu(), image(3))
    assert adapted(module, doubling).matches == 1
    assert adapted(module, doubling).matches == 0
    assert op_counts(module.graph) == {"aten.relu.default": 2}


def test_two_rules_that_undo_each_other_end() -> None:
    circle = rules("[{op: aten.relu.default, kind: fill_args, to: aten.abs.default, args: [$self]}, "
                   "{op: aten.abs.default, kind: fill_args, to: aten.relu.default, args: [$self]}]")  # fmt: skip
    module = traced(lambda x: x.relu(), image(3))
    assert adapted(module, circle).matches == 2


def test_the_highest_priority_that_matches_wins_and_equal_ones_in_the_order_written() -> None:
    text = """
      - {name: third, op: aten.relu.default, kind: fill_args, to: aten.abs.default, args: [$self]}
      - {name: second, op: aten.relu.default, kind: fill_args, priority: 1, to: aten.neg.default, args: [$self]}
      - {name: first, op: aten.relu.default, kind: fill_args, priority: 2, when: {rank: {self: [2]}},
         to: aten.exp.default, args: [$self]}
    """
    assert "aten.neg.default" in op_counts(_after(lambda x: x.relu(), rules(text), image(3)))
    assert "aten.exp.default" in op_counts(_after(lambda x: x.relu(), rules(text), image(3, 1)))


def _after(function: Any, given: RuleSet, *inputs: torch.Tensor) -> fx.Graph:
    module = traced(function, *inputs)
    adapted(module, given)
    return module.graph


HOLDS = [
    ("dtype: {self: [float32]}", True),
    ("dtype: {self: [floating]}", True),
    ("dtype: {self: [integer, float64]}", False),
    ("rank: {self: [3, 4]}", True),
    ("rank: {self: [3]}", False),
    ("shape: {self: [null, 3, null, 5]}", True),
    ("shape: {self: [null, 4, null, 5]}", False),
    ("args: {dim: [1], keepdim: true}", True),
    ("args: {dim: [1]}", True),
    ("args: {dim: [1, 2]}", False),
    ("args: {keepdim: 1}", False),
    ("length: {dim: [1]}", True),
    ("layout: {self: contiguous}", True),
    ("layout: {self: channels_last}", False),
    ("device: [cpu, npu]", True),
    ("device: [npu]", False),
    ("mode: [reduce-overhead]", True),
    ("mode: [max-autotune]", False),
]


@pytest.mark.parametrize(("when", "holds"), HOLDS)
def test_what_a_rule_asks_for(when: str, holds: bool) -> None:
    made = "to: aten.amin.default, args: [$self, $dim, true]"
    text = f"[{{op: aten.amax.default, kind: fill_args, when: {{{when}}}, {made}}}]"
    graph = _after(lambda x: x.amax([1], keepdim=True), rules(text), image(2, 3, 4, 5))
    assert ("aten.amin.default" in op_counts(graph)) == holds


def test_a_size_that_is_a_symbol_is_read_by_a_node_and_equals_no_number() -> None:
    text = """
      - {op: aten.relu.default, kind: compose, when: {shape: {self: [null, null]}}, steps: [
          {let: flat, op: aten.view.default, args: [$self, [$self.numel]]},
          {op: aten.view.default, args: [$flat, [$self.size(0), $self.size(-1)]]}]}
      - {op: aten.abs.default, kind: fill_args, when: {shape: {self: [4, null]}}, to: aten.neg.default, args: [$self]}
    """
    module = traced(lambda x: (x.relu(), x.abs()), image(4, 3), mode="symbolic")
    outcome = adapted(module, rules(text))
    assert [(fact.op, fact.matches) for fact in outcome.rules] == [("aten.relu.default", 1)]
    assert op_counts(module.graph)["aten.sym_size.int"] >= 1
    x = image(7, 3)
    assert torch.equal(module(x)[0], x)


FLATTENING = """
- op: aten.relu.default
  kind: compose
  steps:
    - {let: flat, op: aten.reshape.default, args: [$self, [-1]]}
    - {let: kept, op: aten.relu.default, args: [$flat]}
    - {op: aten.view.default, args: [$kept, $self.shape]}
"""


def test_results_keep_the_strides_that_they_had() -> None:
    x = image(2, 3, 4, 4).to(memory_format=torch.channels_last)
    module = traced(lambda x: x.relu(), x)
    assert adapted(module, rules(FLATTENING)).matches == 1
    assert same_bits(module(x), x.relu())


MISTAKES = """
- {op: aten.relu, kind: fill_args, to: aten.relu.default}
- {op: aten.relu.default, kind: fil_args}
- {op: aten.relu.default, kind: cast_around, compute: float33, inputs: []}
- {op: aten.relu.default, kind: layout_around, perm: [0, 0], inputs: [self]}
- {op: aten.relu.default, kind: fill_args, to: aten.relu.default, args: [$x.sizes]}
- {op: aten.relu.default, kind: reject, message: no, contract: bitwise}
- {op: aten.relu.default, kind: compose, steps: [], contract: {rtoll: 1}}
- {op: aten.relu.default, kind: fill_args, to: aten.relu.default, when: {dtype: {self: [float33]}}}
"""


def test_every_mistake_of_every_rule_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        rules(MISTAKES)
    told = "\n".join(caught.value.problems)
    for words in (
        "'aten.relu' is no operator: write namespace.name.overload",
        "unknown kind 'fil_args' @ adapt.rules[1]. Did you mean 'fill_args'?",
        "'compute' must be one of float64",
        "'perm' must hold each of 0 to n-1 once: [0, 0] @ adapt.rules[3]",
        "'$x.sizes' is no reference",
        "unknown key 'contract' @ adapt.rules[5]",
        "unknown key 'rtoll' @ adapt.rules[6].contract. Did you mean 'rtol'?",
        "unknown dtype 'float33'",
    ):
        assert words in told


def test_names_that_torch_does_not_have_are_told_at_once() -> None:
    text = """
      - {name: a, op: aten.rellu.default, kind: fill_args, to: aten.relu.default}
      - {name: b, op: aten.relu.default, kind: fill_args, to: aten.abs.defalt, when: {rank: {sel: [1]}}}
      - {name: c, op: aten.relu.default, kind: reject, message: 'no {slef}'}
      - {name: d, op: aten.relu.default, kind: compose, steps: [{op: aten.reluu.default, args: [$self]}]}
    """
    with pytest.raises(ConfigError) as caught:
        adapted(traced(lambda x: x.relu(), image(3)), rules(text))
    assert caught.value.problems == (
        "there is no operator 'aten.rellu.default' @ adapt rule 'a'.",
        "unknown argument 'sel' @ adapt rule 'b' for aten.relu.default. Did you mean 'self'? Choices: self.",
        "unknown operator 'aten.abs.defalt'. Did you mean 'aten.abs.default'? Choices: aten.abs.default, "
        "aten.abs.out @ adapt rule 'b'.",
        "unknown argument 'slef' @ adapt rule 'c' for aten.relu.default. Did you mean 'self'? Choices: self.",
        "there is no operator 'aten.reluu.default' @ adapt rule 'd'.",
    )


def test_a_rule_that_would_change_the_dtype_is_refused() -> None:
    text = "[{op: aten.relu.default, kind: fill_args, to: aten.isinf.default, args: [$self]}]"
    with pytest.raises(ValueError, match=r"gives torch\.bool of rank 1 for aten\.relu\.default"):
        _after(lambda x: x.relu(), rules(text), image(3))


@pytest.mark.parametrize("path", choices("adapt").values(), ids=lambda path: path.stem)
def test_every_packaged_rule_set_can_be_read_and_written_back(path: Path) -> None:
    text = path.read_text()
    found = structure(RuleSet, yaml.safe_load(text), "adapt")
    assert text.startswith("# ")
    assert found.name == path.stem
    assert structure(RuleSet, found.as_tree(), "adapt") == found
    graph = fx.Graph()
    graph.output(())
    assert Adapt(rules=found).rewrite(graph, CAN).matches == 0


FAST = ("isnan", "trunc", "softplus")


@pytest.mark.parametrize("rule", [r for r in ASCEND if r.name in FAST], ids=lambda r: r.name)
def test_some_rules_keep_their_contract_on_pytorch_s_own_samples(rule: Any) -> None:
    found = verdict(rule)
    assert found.applied > 0
    assert found.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("rule", [r for r in ASCEND if r.name not in FAST], ids=lambda r: r.name)
def test_every_rule_keeps_its_contract_on_pytorch_s_own_samples(rule: Any) -> None:
    found = verdict(rule)
    assert found.applied > 0
    assert found.problems == ()


def test_a_wrong_rule_is_found_out_by_the_samples() -> None:
    (wrong,) = rules(
        "[{op: aten.trunc.default, kind: fill_args, to: aten.floor.default, args: [$self], contract: bitwise}]"
    ).rules
    assert verdict(wrong).problems  # type: ignore[arg-type]


def names(given: Sequence[Any]) -> list[str]:
    return [rule.name for rule in given]


def test_rules_say_where_it_is_written_that_they_are_needed() -> None:
    assert [rule.name for rule in ASCEND if not rule.source] == []
    assert len(set(names(ASCEND))) == len(ASCEND)
    assert aten.relu.default not in {rule.op for rule in PADDLE}


def test_a_dry_run_lists_no_operator_that_no_rule_is_about() -> None:
    x, label = image(2, 4), torch.tensor([0, 1])
    module = traced(lambda x, label: paddle.nll_loss(x.relu(), label)[0], x, label)
    written = AdaptationLog()
    dry = DryAdapt(rules=rules_of("paddle"), written=written)
    assert dry.run(Request(graph_module=module, example_inputs=(x, label), can=CAN)).matches == 1
    assert [one.op for one in written.adaptations] == ["paddle.nll_loss.default"]
    assert written.untouched == []
