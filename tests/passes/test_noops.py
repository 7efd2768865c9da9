"""Call by call: what remove_noop takes for its own input, what cse takes for the same, what dead_code takes away."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.passes.simplify import Cse, DeadCode, RemoveNoop, merge_equal
from tests.sample_graphs import CAN, Program, aten, names, seeded_program

FLOAT = torch.float32
FORMS: dict[str, Any] = {
    "float": lambda: torch.empty(4, 4),
    "int": lambda: torch.empty(4, 4, dtype=torch.int64),
    "bool": lambda: torch.empty(4, 4, dtype=torch.bool),
    "complex": lambda: torch.empty(4, 4, dtype=torch.complex64),
}
"""A call on x, and for which dtypes it is x itself."""
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (aten.clone.default, ("x",), {}, "float int bool complex"),
    (aten.view.default, ("x", [4, 4]), {}, "float int bool complex"),
    (aten.view.default, ("x", [2, 8]), {}, ""),
    (aten.t.default, ("x",), {}, ""),
    (aten._to_copy.default, ("x",), {}, "float int bool complex"),
    (aten._to_copy.default, ("x",), {"dtype": torch.float32}, "float"),
    (aten._to_copy.default, ("x",), {"pin_memory": False}, "float int bool complex"),
    (aten.cat.default, (["x"],), {}, "float int bool complex"),
    (aten.cat.default, (["x", "e"],), {}, ""),
    (aten.constant_pad_nd.default, ("x", [0, 0, 0, 0], 1), {}, "float int bool complex"),
    (aten.constant_pad_nd.default, ("x", [1, -1], 1), {}, ""),
    (aten.constant_pad_nd.default, ("x", [0, 0, 1, -1], 1), {}, ""),
    (aten.repeat.default, ("x", [1, 1]), {}, "float int bool complex"),
    (aten.mul.Tensor, ("x", 1), {}, "int"),
    (aten.mul.Tensor, ("x", 2), {}, ""),
    (aten.mul.Tensor, ("x", 0), {}, ""),
    (aten.mul.Tensor, ("x", True), {}, ""),
    (aten.mul.Tensor, ("x", "one"), {}, ""),
    (aten.add.Tensor, ("x", 0), {}, "int"),
    (aten.add.Tensor, ("x", 1), {}, ""),
    (aten.sub.Tensor, ("x", 0), {}, "int"),
    (aten.sub.Tensor, ("x", 1), {}, ""),
    (aten.relu.default, ("x",), {}, ""),
    (aten.sum.dim_IntList, ("x", [0]), {}, ""),
    (aten.full_like.default, ("x", 0), {}, ""),
    (operator.add, ("x", 0), {}, ""),
    (aten.add_.Tensor, ("x", 0), {}, ""),
    (aten.max.dim, ("x", 0), {}, ""),
]


def given(program: Program, value: Any) -> Any:
    if isinstance(value, list):
        return [given(program, item) for item in value]
    return {"x": program.values[0], "e": program.values[-2], "one": program.values[-1]}.get(value, value) \
        if isinstance(value, str) else value  # fmt: skip


def with_call(form: str, target: Any, args: Any, kwargs: Any) -> tuple[Program, fx.Node]:
    program = Program(inputs=1)
    x = program.values[0]
    with program.mode:
        x.meta["val"] = FORMS[form]()
        for name, value in (
            ("e", torch.empty(0, 4, dtype=x.meta["val"].dtype)),
            ("one", torch.empty((), dtype=torch.int64)),
        ):
            program.values.append(program.graph.placeholder(name))
            program.values[-1].meta["val"] = value
    return program, program.call(target, *given(program, list(args)), **kwargs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("target", "args", "kwargs", "same"), CALLS)
def test_a_call_that_changes_no_bit_is_its_input(target: Any, args: Any, kwargs: Any, same: str, form: str) -> None:
    if form in ("bool", "complex") and target in (aten.max.dim, aten.relu.default, aten.sub.Tensor):
        return  # no such operator
    if form == "bool" and target is aten.add_.Tensor:
        return
    program, made = with_call(form, target, args, kwargs)
    program.graph.output((program.call(aten.isnan.default, made) if target is not aten.max.dim else made,))
    found = RemoveNoop().rewrite(program.graph, CAN)
    assert found == (form in same.split()), made.format_node()
    assert (made in program.graph.nodes) is (found == 0)


def test_a_copy_into_pinned_memory_is_no_copy_of_itself() -> None:
    program, made = with_call("float", aten._to_copy.default, ("x",), {})
    made.kwargs = {"pin_memory": True}
    program.graph.output((program.call(aten.neg.default, made),))
    assert RemoveNoop().rewrite(program.graph, CAN) == 0


def test_a_call_that_takes_everything_by_name_is_left_alone() -> None:
    program, made = with_call("float", aten.clone.default, ("x",), {})
    made.args, made.kwargs = (), {"self": program.values[0]}
    program.graph.output((program.call(aten.neg.default, made),))
    assert RemoveNoop().rewrite(program.graph, CAN) == 0


def test_a_graph_that_changes_a_form_in_place_keeps_its_identity_views() -> None:
    program, made = with_call("float", aten.view.default, ("x", [4, 4]), {})
    program.call(aten.t_.default, program.call(aten.clone.default, made))
    program.graph.output(())
    assert RemoveNoop().rewrite(program.graph, CAN) == 0


PAIRS: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[Any, ...], dict[str, Any], bool]] = [
    (aten.add.Tensor, ("x", 1), {}, ("x", 1), {}, True),
    (aten.add.Tensor, ("x", 1), {}, ("x", 2), {}, False),
    (aten.add.Tensor, ("x", 1), {}, ("x", 1.0), {}, False),
    (aten.add.Tensor, ("x", 1), {}, ("x", True), {}, False),
    (aten.add.Tensor, ("x", 0.0), {}, ("x", -0.0), {}, False),
    (aten.add.Tensor, ("x", 1), {"alpha": 2}, ("x", 1), {"alpha": 2}, True),
    (aten.add.Tensor, ("x", 1), {"alpha": 2}, ("x", 1), {"alpha": 3}, False),
    (aten.add.Tensor, ("x", 1), {"alpha": 2}, ("x", 1), {}, False),
    (aten.sum.dim_IntList, ("x", [0]), {}, ("x", [0]), {}, True),
    (aten.sum.dim_IntList, ("x", [0]), {}, ("x", [1]), {}, False),
    (aten.cat.default, (["x", "x"],), {}, (["x", "x"],), {}, True),
    (aten.cat.default, (["x", "x"],), {}, (["x", "x"], 1), {}, False),
    (aten.clone.default, ("x",), {}, ("x",), {"memory_format": torch.contiguous_format}, False),
    (aten._to_copy.default, ("x",), {"dtype": torch.float64}, ("x",), {"dtype": torch.float64}, True),
    (aten._to_copy.default, ("x",), {"dtype": torch.float64}, ("x",), {"dtype": torch.float16}, False),
    (aten.max.dim, ("x", 0), {}, ("x", 0), {}, True),
    (aten.empty_like.default, ("x",), {}, ("x",), {}, False),
    (aten.rand_like.default, ("x",), {}, ("x",), {}, False),
    (operator.getitem, ((1, 2), slice(0, 1)), {}, ((1, 2), slice(0, 1)), {}, True),
    (operator.getitem, ((1, 2), slice(0, 1)), {}, ((1, 2), slice(0, 1, 1)), {}, False),
    (operator.getitem, ((1, 2), 0), {}, ([1, 2], 0), {}, False),
    (operator.getitem, ({"a": 2.0}, "a"), {}, ({"a": 2.0}, "a"), {}, True),
    (operator.getitem, ({"a": 2.0}, "a"), {}, ({"a": 2}, "a"), {}, False),
]


@pytest.mark.parametrize(("target", "args", "kwargs", "other_args", "other_kwargs", "equal"), PAIRS)
def test_calls_are_equal_down_to_the_type_of_a_number(
    target: Any, args: Any, kwargs: Any, other_args: Any, other_kwargs: Any, equal: bool
) -> None:
    program, _ = with_call("float", target, args, kwargs)
    program.call(target, *given(program, list(other_args)), **other_kwargs)
    program.graph.output(())
    assert Cse().rewrite(program.graph, CAN) == equal


@pytest.mark.parametrize("change", ["nothing", "shape", "strides", "dtype", "device", "layout"])
def test_equal_calls_of_other_forms_are_two(change: str) -> None:
    value = {
        "nothing": torch.empty(4, 4), "shape": torch.empty(4, 1), "strides": torch.empty(4, 4).t(),
        "dtype": torch.empty(4, 4, dtype=torch.int32), "device": torch.empty(4, 4, device="meta"),
        "layout": torch.zeros(4, 4).to_sparse(),
    }[change]  # fmt: skip
    for wrap in (lambda found: found, lambda found: (found, 3)):
        program, first = with_call("float", aten.relu.default, ("x",), {})
        second = program.call(aten.relu.default, program.values[0])
        first.meta["val"], second.meta["val"] = wrap(torch.empty(4, 4)), wrap(value)
        program.graph.output(())
        assert Cse().rewrite(program.graph, CAN) == (change == "nothing")


def test_only_what_is_wanted_is_merged_and_the_first_that_may_be_joined_stays() -> None:
    program, first = with_call("float", aten.relu.default, ("x",), {})
    second, third = (program.call(aten.relu.default, program.values[0]) for _ in range(2))
    last = program.call(aten.mm.default, second, third)
    program.graph.output((first, last))
    assert merge_equal(program.graph, lambda node: node is not first) == 1
    assert last.args == (second, second)
    assert merge_equal(program.graph, lambda node: False) == 0
    assert Cse().rewrite(program.graph, CAN) == 1
    assert last.args == (first, first)


def test_inputs_and_constants_are_not_merged() -> None:
    graph = fx.Graph()
    graph.output((graph.get_attr("held"), graph.get_attr("held")))
    assert Cse().rewrite(graph, CAN) == 0


def test_what_only_the_dead_read_is_dead_too_and_counted() -> None:
    program, first = with_call("float", aten.relu.default, ("x",), {})
    kept = program.call(aten.neg.default, first)
    dead = program.call(aten.mm.default, first, program.call(aten.abs.default, kept))
    program.call(aten.add.Tensor, dead, dead)
    program.call(aten.rand_like.default, program.values[0])
    program.graph.output((kept,))
    assert DeadCode().rewrite(program.graph, CAN) == 3
    assert names(program.graph) == ["x0", "e", "one", "relu_default", "neg_default", "rand_like_default", "output"]


def test_what_the_cleaning_passes_find_in_graphs_of_a_seed(golden: Any) -> None:
    """Whatever changes a decision shows here, and is then to be judged."""
    lines = []
    for seed in range(60):
        module = seeded_program(seed, size=16)
        found = [a_pass.rewrite(module.graph, CAN) for a_pass in (DeadCode(), Cse(), RemoveNoop(), DeadCode())]
        lines.append(f"{seed}: dead {found[0]}, equal {found[1]}, no-ops {found[2]}, dead then {found[3]}")
    golden("passes/seeded.txt", "\n".join(lines) + "\n")
