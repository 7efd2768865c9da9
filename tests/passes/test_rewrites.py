from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from npucompose.graphs import Aliases, Dependence, op_counts, printed
from npucompose.passes.base import Pass
from npucompose.passes.pipeline import PassPipeline
from npucompose.passes.simplify import Cse, DeadCode, RemoveNoop
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from tests.sample_graphs import CAN, Program, aten, names, programs, run, traced, value_of
from tests.searches import examples

X = torch.randn(2, 3)
CLEANING: list[Pass] = [DeadCode(), Cse(), RemoveNoop()]


def before_and_after(a_pass: Pass, module: fx.GraphModule, can: Capabilities = CAN) -> str:
    before = printed(module.graph)
    found = a_pass.rewrite(module.graph, can)
    matches = found if isinstance(found, int) else found.matches
    module.graph.lint()
    return f"before:\n{before}\nafter ({matches} matches):\n{printed(module.graph)}"


def dead(x: torch.Tensor) -> torch.Tensor:
    x.relu().mm(x.t())
    torch.rand(2)
    return x + 1


def twice(x: torch.Tensor) -> torch.Tensor:
    left = x.relu() * x.relu() + torch.rand_like(x) * torch.rand_like(x)
    return left + (x * 1.0) - (x * 1) + x.view(3, 2).abs().view(2, 3) + x.view(3, 2).abs().view(2, 3)


def nothing(x: torch.Tensor) -> torch.Tensor:
    same = x.view(2, 3).expand(2, 3).clone()
    number = torch.arange(3) * 1 + 0 - 0
    return same.to(torch.float32, copy=True).relu() * number.view(3) + (x + 0) * 1 + x.t().contiguous().t()


GOLDEN: list[tuple[Pass, Callable[..., Any]]] = [(DeadCode(), dead), (Cse(), twice), (RemoveNoop(), nothing)]


@pytest.mark.parametrize(("a_pass", "function"), GOLDEN, ids=lambda value: getattr(value, "name", ""))
def test_before_and_after_are_the_golden_text(a_pass: Pass, function: Any, golden: Any) -> None:
    golden(f"passes/{a_pass.name}.txt", before_and_after(a_pass, traced(function, X)))


@pytest.mark.parametrize("a_pass", CLEANING, ids=lambda a_pass: a_pass.name)
@given(module=programs(size=16))
@settings(max_examples=examples(60), deadline=None)
def test_every_bit_stays_and_a_second_run_finds_nothing(a_pass: Pass, module: fx.GraphModule) -> None:
    expected = run(module)
    shared = outputs_sharing(module.graph)
    PassPipeline(passes=((a_pass.name, a_pass),), can=CAN)(module)
    assert run(module) == expected
    assert outputs_sharing(module.graph) == shared
    text = printed(module.graph)
    (record,) = PassPipeline(passes=(("it", a_pass),), can=CAN)(module)
    assert (record.matches, record.exact) == (0, True)
    assert printed(module.graph) == text


@given(module=programs(size=16), order=st.permutations(CLEANING))
@settings(max_examples=examples(40), deadline=None)
def test_the_passes_keep_every_bit_in_any_order(module: fx.GraphModule, order: list[Pass]) -> None:
    expected = run(module)
    shared = outputs_sharing(module.graph)
    records = PassPipeline(passes=tuple((a_pass.name, a_pass) for a_pass in order), can=CAN)(module)
    assert run(module) == expected
    assert outputs_sharing(module.graph) == shared
    assert records[-1].nodes_after == len(module.graph.nodes)


def outputs_sharing(graph: fx.Graph) -> list[bool]:
    """For every pair of (output, output or input): do they share memory? By the schemas, not by the fake values."""
    aliases = Aliases.from_graph(graph)
    output = next(n for n in graph.nodes if n.op == "output")
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    results = [root(n) for n in output.args[0]]
    pairs = [(a, b) for i, a in enumerate(results) for b in (*results[i + 1 :], *inputs)]
    return [a is b or aliases.shares(a, b) for a, b in pairs]


def root(made: fx.Node) -> fx.Node:
    """The node whose memory a view is: views are followed to where they start."""
    while made.op == "call_function" and made.target in (aten.t.default, aten.expand.default):
        made = made.args[0]
    return made


def program(*steps: Callable[[Program, list[fx.Node]], fx.Node], outputs: tuple[int, ...]) -> fx.GraphModule:
    building = Program(inputs=1)
    values = list(building.values)
    for step in steps:
        values.append(step(building, values))
    return building.finish([values[index] for index in outputs])


def test_two_equal_outputs_stay_two_tensors() -> None:
    relu = lambda p, v: p.call(aten.relu.default, v[0])  # noqa: E731
    module = program(relu, relu, outputs=(1, 2))
    assert Cse().rewrite(module.graph, CAN) == 0
    one_output = program(relu, relu, lambda p, v: p.call(aten.mm.default, v[1], v[2]), outputs=(3, 2))
    assert Cse().rewrite(one_output.graph, CAN) == 1


def test_a_view_of_one_equal_value_and_the_other_stay_two_memories() -> None:
    relu = lambda p, v: p.call(aten.relu.default, v[0])  # noqa: E731
    module = program(relu, relu, lambda p, v: p.call(aten.t.default, v[1]), outputs=(3, 2))
    assert Cse().rewrite(module.graph, CAN) == 0


def test_an_output_never_becomes_an_input() -> None:
    clone = lambda p, v: p.call(aten.clone.default, v[-1])  # noqa: E731
    assert RemoveNoop().rewrite(program(clone, outputs=(1,)).graph, CAN) == 0
    assert RemoveNoop().rewrite(program(clone, clone, outputs=(2,)).graph, CAN) == 1
    view = lambda p, v: p.call(aten.expand.default, v[-1], [4, 4])  # noqa: E731
    assert RemoveNoop().rewrite(program(view, outputs=(1,)).graph, CAN) == 0


def test_joined_memories_stay_joined_for_the_next_question() -> None:
    module = program(
        lambda p, v: p.call(aten.clone.default, v[0]),
        lambda p, v: p.call(aten.t.default, v[1]),
        lambda p, v: p.call(aten.clone.default, v[2]),
        outputs=(3,),
    )
    RemoveNoop().rewrite(module.graph, CAN)
    assert "clone" in " ".join(names(module.graph)), "the output would be a view of the input"


def test_a_view_of_a_replaced_value_is_still_known_as_a_view() -> None:
    module = traced(lambda x: x.clone().t().clone().relu().t(), X)
    assert RemoveNoop().rewrite(module.graph, CAN) == 2
    assert Dependence.from_graph(module.graph).kernels == tuple(n for n in module.graph.nodes if n.name == "relu")
    module = traced(lambda x: x.clone().t().relu(), X)
    assert RemoveNoop().rewrite(module.graph, CAN) == 1
    x, t, relu, _ = module.graph.nodes
    aliases = Aliases.from_graph(module.graph)
    assert aliases.shares(x, t)
    assert not aliases.shares(t, relu)


def test_a_copy_taken_before_a_write_stays() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        x.add_(1)
        return kept * 2

    module = traced(forward, X)
    expected = printed(module.graph)
    assert RemoveNoop().rewrite(module.graph, CAN) == 0
    assert printed(module.graph) == expected


def test_equal_reads_around_a_write_stay_two() -> None:
    module = program(
        lambda p, v: p.call(aten.relu.default, v[0]),
        lambda p, v: p.call(aten.copy_.default, v[0], v[1]),
        lambda p, v: p.call(aten.relu.default, v[0]),
        lambda p, v: p.call(aten.sub.Tensor, v[1], v[3]),
        outputs=(4,),
    )
    assert Cse().rewrite(module.graph, CAN) == 0


def test_random_numbers_are_neither_merged_nor_removed() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.rand(2, 3)
        return x + torch.rand(2, 3) - torch.rand(2, 3)

    module = traced(forward, X)
    assert [a_pass.rewrite(module.graph, CAN) for a_pass in CLEANING] == [0, 0, 0]
    assert op_counts(module.graph)["aten.rand.default"] == 3


def test_memory_without_a_value_is_not_shared() -> None:
    """What is written into one of them later, or by a kernel that tells nobody, is not in the other."""
    module = traced(lambda x: torch.empty(2, 3) + torch.empty(2, 3) + x, X)
    assert Cse().rewrite(module.graph, CAN) == 0
    assert op_counts(module.graph)["aten.empty.memory_format"] == 2


def test_equal_numbers_of_other_types_or_signs_are_not_equal_calls() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x * 1).abs() + (x * 1.0).abs() + (x + 0.0).neg() + (x + -0.0).neg()

    assert op_counts(traced(forward, X).graph)["aten.mul.Tensor"] == 2
    module = traced(forward, X)
    Cse().rewrite(module.graph, CAN)
    assert op_counts(module.graph)["aten.mul.Tensor"] == 2


FLOATS = [
    lambda x: (x + 0).relu(),
    lambda x: (x - 0).relu(),
    lambda x: (x * 1).relu(),
    lambda x: (x / 1).relu(),
    lambda x: x.to(torch.bfloat16).relu(),
    lambda x: x.t().clone(memory_format=torch.contiguous_format).relu(),
    lambda x: torch.cat([x, x]).relu(),
    lambda x: x.repeat(1, 2).relu(),
    lambda x: torch.nn.functional.pad(x, (0, 1)).relu(),
    lambda x: x.view(3, 2).relu(),
    lambda x: x[1:].relu(),
]


@pytest.mark.parametrize("function", FLOATS)
def test_what_changes_a_bit_or_the_form_is_no_noop(function: Any) -> None:
    assert RemoveNoop().rewrite(traced(function, X).graph, CAN) == 0


NOOPS = [
    lambda x: x.view(2, 3).relu(),
    lambda x: x.expand(2, 3).relu(),
    lambda x: x.permute(0, 1).relu(),
    lambda x: x.detach().relu(),
    lambda x: x[0:].relu(),
    lambda x: x.clone().relu(),
    lambda x: x.to(torch.float32, copy=True).relu(),
    lambda x: torch.cat([x]).relu(),
    lambda x: x.repeat(1, 1).relu(),
    lambda x: torch.ops.aten.constant_pad_nd(x, [0, 0]).relu(),
    lambda x: torch.arange(3).mul(1).neg(),
    lambda x: torch.arange(3).add(0).neg(),
    lambda x: torch.arange(3).sub(0).neg(),
]


@pytest.mark.parametrize("function", NOOPS)
def test_what_changes_nothing_is_removed(function: Any) -> None:
    module = traced(function, X)
    expected = module(X)
    assert RemoveNoop().rewrite(module.graph, CAN) >= 1
    module.recompile()
    assert len([n for n in module.graph.nodes if n.op == "call_function"]) <= 2
    assert torch.equal(module(X), expected)


def test_symbolic_sizes_are_compared_without_guards() -> None:
    module = traced(lambda x: x.view(x.shape[0], 3).clone().relu(), X, mode="symbolic")
    shape_env = next(value_of(n).fake_mode.shape_env for n in module.graph.nodes if n.name == "relu")
    guards = len(shape_env.guards)
    assert RemoveNoop().rewrite(module.graph, CAN) == 2
    assert len(shape_env.guards) == guards


def test_a_check_is_kept_though_nobody_reads_it() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async.msg((x > 0).any(), "positive")
        return x + 1

    module = traced(forward, X)
    assert DeadCode().rewrite(module.graph, CAN) == 0


@pytest.mark.parametrize("a_pass", CLEANING, ids=lambda a_pass: a_pass.name)
def test_a_planned_graph_stays_as_it_is(a_pass: Pass) -> None:
    module = traced(lambda x: x.abs().clone().neg() + x.relu() + x.relu(), X)
    assert apply(module.graph, Streams(), CAN) > 0
    read = next(node for node in module.graph.nodes if node.name == "abs_1")
    with module.graph.inserting_after(read):  # a kernel that nobody reads
        module.graph.call_function(aten.exp.default, (read,)).meta["val"] = read.meta["val"]
    text = printed(module.graph)
    (record,) = PassPipeline(passes=(("it", a_pass),), can=CAN)(module)
    assert (record.matches, record.exact) == (0, True)
    assert printed(module.graph) == text
