"""How often torch compiles again: calls × dynamic, row by row against torch itself, through our shape policy.

Each row also obeys the advice that the report gives, and counts again: a sentence that does not help fails here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, field, frozen

from npucompose.compose.calls import apply_shapes, check_calls, unmarked, varied
from npucompose.compose.engine import translate_torch_errors
from npucompose.errors import CompileError
from npucompose.npu.static_graph.recompiles import (
    AdviceContext,
    Recompilation,
    explain_recompilation,
    recorded_recompilations,
)
from npucompose.results.record import Recompile
from npucompose.schema.experiment import Call, Shapes


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def weighted(x: torch.Tensor, lens: list[int]) -> torch.Tensor:
    return x * lens[0] + lens[-1]


def counted(x: torch.Tensor, lens: list[int]) -> torch.Tensor:
    return x * len(lens)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sum() + y.sum()


def in_four_rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(4, -1)


@frozen(kw_only=True)
class Row:
    name: str
    function: Callable[..., Any] = scaled
    example: Mapping[str, Any] = field(factory=dict)
    """What the function takes beside x [4, 3]."""
    calls: tuple[Call, ...]
    policy: Shapes = field(factory=Shapes)
    counts: tuple[int, int, int]
    """Recompilations with dynamic False, None, True."""
    kind: str = ""
    """A word of the guard that torch names first where it recompiles under every policy it can."""
    argument: str | None = None
    advised: Callable[[Shapes], Shapes] | None = None
    """The policy that the advice asks for."""
    instead: tuple[Call, ...] | None = None
    """The calls that the advice asks for."""
    says: tuple[str, ...] = ()
    """Words of the advice, one for each `dynamic` with a recompilation."""


ROWS = (
    Row(
        name="another size",
        calls=({"x.0": 6}, {"x.0": 7}),
        counts=(2, 1, 0),
        kind="size mismatch at index 0",
        argument="x",
        advised=lambda policy: evolve(policy, mark_dynamic={"x": (0,)}),
        says=("shapes.mark_dynamic: {x: [0]}", "shapes.mark_dynamic: {x: [0]}"),
    ),
    Row(
        name="other numbers in a list",
        function=weighted,
        example={"lens": [512, 300]},
        calls=({"lens": (513, 301)}, {"lens": (514, 302)}),
        counts=(2, 1, 0),
        kind="lens[0] == 512",
        argument="lens",
        advised=lambda policy: evolve(policy, dynamic=True),
        says=("shapes=dynamic", "shapes=dynamic"),
    ),
    Row(
        name="equal numbers, different ones, 1 and 0",
        function=weighted,
        example={"lens": [5, 5]},
        calls=({"lens": (5, 6)}, {"lens": (1, 6)}, {"lens": (0, 6)}),
        counts=(3, 2, 0),
        kind="lens[1] == 5",
        argument="lens",
        advised=lambda policy: evolve(policy, dynamic=True),
        says=("shapes=dynamic", "shapes=dynamic"),
    ),
    Row(
        name="a list of another length",
        function=counted,
        example={"lens": [5, 6]},
        calls=({"lens": (5, 6, 7)},),
        counts=(1, 1, 1),
        kind="len(lens) == 2",
        argument="lens",
        instead=({"lens": (5, 6)},),
        says=("pad 'lens' to one length (2)",) * 3,
    ),
    Row(
        name="a size of 1",
        calls=({"x.0": 1},),
        counts=(1, 1, 1),
        argument="x",
        advised=lambda policy: evolve(policy, dynamic=True),
        instead=({"x.0": 2},),
        says=("pad dimension 0 of 'x' to at least 2",) * 3,
    ),
    Row(
        name="another stride",
        calls=({"x": "transposed"},),
        counts=(1, 1, 1),
        kind="stride mismatch",
        argument="x",
        instead=({},),
        says=("x.contiguous()",) * 3,
    ),
    Row(
        name="marked static, three shapes",
        calls=({"x.0": 6}, {"x.0": 7}),
        policy=Shapes(mark_static=("x",)),
        counts=(2, 2, 2),
        kind="size mismatch at index 0",
        argument="x",
        advised=lambda policy: evolve(policy, mark_static=(), dynamic=True),
        says=("leave 'x' out of shapes.mark_static",) * 3,
    ),
    Row(
        name="a later tensor is not marked, same shape",
        calls=({"x": "unmarked"}, {"x": "unmarked"}),
        policy=Shapes(mark_static=("x",)),
        counts=(0, 0, 0),
    ),
    Row(
        name="a later tensor is not marked, other shapes",
        calls=({"x.0": 6, "x": "unmarked"}, {"x.0": 7, "x": "unmarked"}),
        policy=Shapes(mark_static=("x",)),
        counts=(2, 1, 1),
        kind="size mismatch at index 0",
        argument="x",
        advised=lambda policy: evolve(policy, mark_static=(), dynamic=True),
        says=("leave 'x' out of shapes.mark_static",) * 3,
    ),
    Row(
        name="two tensors of equal shape, later of different ones",
        function=summed,
        example={"y": torch.ones(4, 3)},
        calls=({"y.0": 6}, {"x.0": 5, "y.0": 7}),
        counts=(2, 2, 1),
        argument="y",
        advised=lambda policy: evolve(policy, mark_dynamic={"x": (0,), "y": (0,)}),
        says=("shapes.mark_dynamic: {y: [0]}", "shapes.mark_dynamic: {y: [0]}", "{y: [0], x: [0]}"),
    ),
)
DYNAMIC = (False, None, True)
CASES = [pytest.param(row, at, id=f"{row.name}, dynamic={DYNAMIC[at]}") for row in ROWS for at in range(3)]


def called(row: Row, policy: Shapes, calls: tuple[Call, ...]) -> tuple[list[Recompile], list[bool]]:
    """What torch compiled again for the calls, and for each of its graphs whether it has a symbol."""
    torch._dynamo.reset()
    symbolic: list[bool] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes = [d for i in inputs for d in (i.shape if isinstance(i, torch.Tensor) else (i,))]
        symbolic.append(any(isinstance(size, torch.SymInt) for size in sizes))
        return module.forward

    compiled = torch.compile(row.function, backend=backend, dynamic=policy.dynamic, fullgraph=True)
    again: list[Recompile] = []
    for call in ({}, *calls):
        example = {"x": torch.ones(4, 3), **copy.deepcopy(row.example)}  # a mark would stay on a tensor
        check_calls([call], example)
        inputs = varied(call, example)
        apply_shapes(policy, inputs, unmarked=unmarked(call))
        asked = AdviceContext(
            shapes=policy,
            mode="reduce-overhead",
            static=frozenset(policy.mark_static),
            numbers=frozenset({"lens"}),
            arguments=tuple(inputs),
        )
        with recorded_recompilations() as seen, translate_torch_errors():
            compiled(*inputs.values())
        again += [explain_recompilation(one, asked, call=call, name=str(call)) for one in seen()]
    return again, symbolic


@pytest.mark.parametrize(("row", "at"), CASES)
def test_torch_compiles_again_as_often_as_the_table_says(row: Row, at: int) -> None:
    again, _ = called(row, evolve(row.policy, dynamic=DYNAMIC[at]), row.calls)
    assert len(again) == row.counts[at]
    assert [one.compile_id for one in again] == [f"0/{n + 1}" for n in range(len(again))]
    assert all(one.argument in (row.argument, "x") for one in again)
    if again and row.kind:
        assert row.kind in again[0].reason


@pytest.mark.parametrize(("row", "at"), [case for case in CASES if case.values[0].counts[case.values[1]]])  # type: ignore
def test_the_advice_helps(row: Row, at: int) -> None:
    policy = evolve(row.policy, dynamic=DYNAMIC[at])
    again, _ = called(row, policy, row.calls)
    assert row.says[at] in (again[0].avoid or "")
    better = row.advised(policy) if row.advised else policy
    left, _ = called(row, better, row.calls if row.instead is None else row.instead)
    assert len(left) == 0 < len(again)


def test_a_forgotten_mark_turns_a_static_graph_into_a_symbolic_one() -> None:
    row = next(row for row in ROWS if row.name == "a later tensor is not marked, other shapes")
    for dynamic in (None, True):
        _, symbolic = called(row, evolve(row.policy, dynamic=dynamic), row.calls)
        assert symbolic == [False, True]


@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_code_that_specialises_a_dimension_marked_dynamic_is_an_error(dynamic: bool | None) -> None:
    row = Row(name="specialised", function=in_four_rows, calls=(), counts=(0, 0, 0))
    with pytest.raises(CompileError) as caught:
        called(row, Shapes(dynamic=dynamic, mark_dynamic={"x": (0,)}), ())
    assert str(caught.value).startswith("shapes.mark_dynamic cannot hold: ")
    assert "L['x'].size()[0]" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"x.0": 6}, "size mismatch at index 0"),
        ({"x.1": 6}, "size mismatch at index 1"),
        ({"y.1": 6}, "size mismatch at index 0"),
        ({"x": "transposed"}, "stride mismatch at index 0"),
        ({"lens": (7, 8)}, "lens[0] == 512"),
    ],
)
def test_of_several_guards_the_one_on_what_the_call_changed_is_told(changed: Call, told: str) -> None:
    reasons = [f"0/{n}: tensor 'x' size mismatch at index {n}. expected 4, actual 6" for n in (0, 1)]
    reasons += ["0/2: tensor 'x' stride mismatch at index 0. expected 3, actual 1", "0/3: lens[0] == 512"]
    asked = AdviceContext(shapes=Shapes(), mode="reduce-overhead", arguments=("x", "y", "lens"))
    found = explain_recompilation(
        Recompilation(compile_id="0/4", reasons=tuple(reasons)), asked, call=changed, name="call 1"
    )
    assert told in found.reason


def test_more_versions_than_torch_makes_is_an_error_with_its_way_out() -> None:
    limit = torch._dynamo.config.recompile_limit
    row = Row(name="many", calls=tuple({"x.0": n} for n in range(5, 5 + limit)), counts=(0, 0, 0))
    with pytest.raises(CompileError, match=r"shapes=dynamic makes symbols of them"):
        called(row, Shapes(dynamic=False), row.calls)
    assert called(row, Shapes(dynamic=True), row.calls)[0] == []


def test_the_document_has_this_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "calls.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (.+?) \| (\d \| \d \| \d) \|$", text, re.MULTILINE))
    assert told == {row.name: " | ".join(map(str, row.counts)) for row in ROWS}
