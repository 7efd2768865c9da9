"""Real rows do not depend on what padding holds, and the operator through which they do is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, softmax

from npucompose.measure.padding import KINDS, Inputs, Rows, changed_rows, readers
from npucompose.results.measured import PaddingCheck, PaddingFacts

ROWS, REAL = 8, 5
Leak = Callable[[Tensor], Tensor]


def kept(x: Tensor) -> Tensor:
    return x


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def scaled(x: Tensor) -> Tensor:
    return x / x.abs().max()


def shifted(x: Tensor) -> Tensor:
    return x + x.roll(1, 0)


def summed(x: Tensor) -> Tensor:
    return x + x.cumsum(0).flip(0)


def sorted_rows(x: Tensor) -> Tensor:
    return x + x.sort(0).values


LEAKS: dict[Leak, str] = {
    centred: "aten.mean.dim",
    scaled: "aten.max.default",
    shifted: "aten.roll.default",
    summed: "aten.flip.default",
    sorted_rows: "aten.sort.default",
}


class Mlp(nn.Module):
    """[rows, 6] -> [rows, 6]."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.up, self.down, self.leak = nn.Linear(6, 12), nn.Linear(12, 6), leak

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.leak(torch.relu(self.up(x))))


class Convolution(nn.Module):
    """[rows, 3, 6, 6] -> [rows, 4]."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.conv, self.norm, self.leak = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), leak

    def forward(self, x: Tensor) -> Tensor:
        return self.leak(self.norm(self.conv(x))).mean((2, 3))


class Tokens(nn.Module):
    """[rows, 6] -> [rows, 6]: rows are tokens of one text; each reads those before it."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.qkv, self.out, self.leak = nn.Linear(6, 18), nn.Linear(6, 6), leak

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.T).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))
        return x + self.leak(self.out(softmax(scores, -1) @ torch.nan_to_num(v, 0.0, 0.0, 0.0)))


class Batch(nn.Module):
    """[rows, 4, 6] -> [rows, 4, 6]: attention within each text, heads folded into the rows."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.qkv, self.leak = nn.Linear(6, 18), leak

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(-1, 4, 2, 3).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.leak(x + mixed)


class TimeFirst(nn.Module):
    """[rows, 4, 6] -> [4, rows, 6]: a recurrence whose rows are in the second dimension."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.cell, self.leak = nn.GRUCell(6, 6), leak

    def forward(self, x: Tensor) -> Tensor:
        state, states = x.new_zeros(len(x), 6), []
        for step in x.transpose(0, 1):
            state = self.leak(self.cell(step, state))
            states.append(state)
        return torch.stack(states)


class Experts(nn.Module):
    """[rows, 6] -> [rows, 6]: two experts of four for each row."""

    def __init__(self, leak: Leak) -> None:
        super().__init__()
        self.gate, self.experts, self.leak = nn.Linear(6, 4), nn.Parameter(torch.rand(4, 6, 6)), leak

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = softmax(self.leak(self.gate(x)), -1).topk(2, -1)
        each = torch.stack([linear(x, expert) for expert in self.experts], 1)
        return (weights[..., None] * each.gather(1, chosen[..., None].expand(-1, -1, 6))).sum(1)


SHAPES: dict[type[nn.Module], tuple[int, ...]] = {
    Mlp: (6,), Convolution: (3, 6, 6), Tokens: (6,), Batch: (4, 6), TimeFirst: (4, 6), Experts: (6,),
}  # fmt: skip
MODELS = list(SHAPES)


def calling(model: nn.Module) -> Callable[[Inputs], Any]:
    def call(inputs: Inputs) -> Any:
        with torch.no_grad():
            return model(**inputs)

    return call


def case(model: type[Any], leak: Leak) -> tuple[Callable[[Inputs], Any], Inputs, Rows]:
    torch.manual_seed(0)
    return calling(model(leak)), {"x": torch.rand(ROWS, *SHAPES[model])}, Rows(names=("x",), rows=ROWS, real=REAL)


@pytest.mark.parametrize("garbage", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_independent_rows_raises_no_alarm(model: type[Any], garbage: Any) -> None:
    call, inputs, rows = case(model, kept)
    assert changed_rows(call(inputs), call(rows.spoiled(inputs, garbage, 1)), rows) == ()


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("model", MODELS)
def test_an_operator_that_reads_padding_is_found_at_its_line(model: type[Any], leak: Leak) -> None:
    call, inputs, rows = case(model, leak)
    assert changed_rows(call(inputs), call(rows.spoiled(inputs, "noise", 1)), rows)
    found = readers(call, inputs, rows, "noise")
    where = f"test_padding_readers.py:{leak.__code__.co_firstlineno + 1} in {leak.__name__}: return "
    assert LEAKS[leak] in [one.operator for one in found]
    assert all(one.source is not None and one.source.startswith(where) for one in found)


def test_two_that_read_padding_are_both_found() -> None:
    def twice(x: Tensor) -> Tensor:
        return scaled(x) + centred(x)

    call, inputs, rows = case(Mlp, twice)
    assert {one.operator for one in readers(call, inputs, rows, "noise")} == {"aten.mean.dim", "aten.max.default"}


def test_a_weight_of_zero_does_not_keep_nan_out() -> None:
    """The usual fault of attention: what is masked has the weight 0, and 0 times NaN is NaN."""

    def attend(x: Tensor) -> Tensor:
        mask = torch.ones(len(x), len(x)).triu(1).bool()
        return softmax(torch.ones(len(x), len(x)).masked_fill(mask, float("-inf")), -1) @ x

    call, inputs, rows = case(Mlp, attend)
    right = call(inputs)
    assert not changed_rows(right, call(rows.spoiled(inputs, "noise", 1)), rows)
    assert changed_rows(right, call(rows.spoiled(inputs, "nan", 1)), rows) == ("the result: 5 of 5 real rows",)
    (found,) = readers(call, inputs, rows, "nan")
    assert found.operator == "aten.mm.default"


def test_a_result_without_rows_that_changes_is_told_by_its_elements() -> None:
    call, inputs, rows = calling(Total()), {"x": torch.rand(ROWS, 6)}, Rows(names=("x",), rows=ROWS, real=REAL)
    assert changed_rows(call(inputs), call(rows.spoiled(inputs, "noise", 1)), rows) == ("['sum']: 1 of 1 elements",)


class Total(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "sum": x.sum()}


def test_a_branch_that_depends_on_padding_is_found_by_what_it_asks() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() < 1e3 else x + x.mean(0)

    call, inputs, rows = calling(Branch()), {"x": torch.rand(ROWS, 6)}, Rows(names=("x",), rows=ROWS, real=REAL)
    assert changed_rows(call(inputs), call(rows.spoiled(inputs, "huge", 0)), rows)
    assert [one.operator for one in readers(call, inputs, rows, "huge", 0)] == ["aten.sum.default"]


def test_garbage_is_legal_for_its_type() -> None:
    inputs = {"ids": torch.tensor([3, 5, 7, 9]), "x": torch.rand(4, 2), "mask": torch.tensor([True, False, True, True])}
    rows = Rows(names=tuple(inputs), rows=4, real=2)
    for garbage in KINDS:
        found = rows.spoiled(inputs, garbage, 3)
        assert all(torch.equal(found[name][:2], inputs[name][:2]) for name in inputs)
        assert set(found["ids"].tolist()) <= {3, 5, 7, 9}
        assert found["mask"].dtype == torch.bool
    assert rows.spoiled(inputs, "nan", 3)["x"][2:].isnan().all()
    assert (rows.spoiled(inputs, "huge", 3)["x"][2:].abs() == torch.finfo(torch.float32).max).all()


def test_what_was_found_is_one_line() -> None:
    checks = tuple(PaddingCheck(way="eager", garbage=garbage) for garbage in KINDS)
    facts = PaddingFacts(rows=8, real=4, inputs=("x",), checks=checks)
    assert facts.words == "padding of 4 of 8 rows is not read (eager; noise, nan, huge)"
    failed = PaddingCheck(way="compiled", garbage="nan", changed=("the result: 1 of 4 real rows",))
    told = PaddingFacts(rows=8, real=4, inputs=("x",), checks=(*checks, failed)).words
    assert told == "padding is read: compiled, nan: the result: 1 of 4 real rows"


def branching(x: Tensor) -> Tensor:
    """Takes other operators where a value is none, so that nothing can be put right."""
    return (x.nan_to_num(2.0) * 3).cumsum(0).flip(0) if bool(x.isnan().any()) else x + x.mean(0)


def test_a_call_that_takes_other_operators_for_other_values_names_none() -> None:
    rows = Rows(names=("x",), rows=ROWS, real=REAL)

    def call(inputs: Inputs) -> Any:
        return branching(inputs["x"])

    x = torch.rand(ROWS, 3)
    assert changed_rows(call({"x": x}), call(rows.spoiled({"x": x}, "nan", 0)), rows)
    assert readers(call, {"x": x}, rows, "nan") == ()


def test_which_rows_are_real_in_a_result_of_any_shape() -> None:
    rows = Rows(names=("x",), rows=8, real=5)
    assert rows.real_parts(torch.Size((8, 3))) == [(slice(5), slice(None))]
    assert rows.real_parts(torch.Size((3, 16))) == [(slice(None), slice(10))]
    assert rows.real_parts(torch.Size((8, 8))) == [(slice(5), slice(None)), (slice(None), slice(5))]
    assert rows.real_parts(torch.Size((3, 0))) == [(slice(None), slice(None))]
    assert rows.real_parts(torch.Size(())) == [()]
    changed = torch.zeros(8, 3, dtype=torch.bool)
    assert rows.within_padding(changed)
    changed[5:] = True
    assert rows.within_padding(changed)
    assert rows.words(changed) == "0 of 5 real rows"
    changed[4, 1] = changed[4, 2] = changed[0, 0] = True
    assert not rows.within_padding(changed)
    assert rows.words(changed) == "2 of 5 real rows"
    assert rows.words(changed[:7]) == "9 of 21 elements"
    assert rows.words(torch.ones((), dtype=torch.bool)) == "1 of 1 elements"
    assert not rows.within_padding(torch.ones(3, dtype=torch.bool))


def test_garbage_lies_beyond_the_real_rows_only_and_is_legal() -> None:
    rows = Rows(names=("x", "ids"), rows=4, real=1)
    inputs = {"x": torch.rand(4, 3), "ids": torch.tensor([3, 7, 7, 3]), "other": torch.ones(2)}
    for kind in ("noise", "nan", "huge"):
        spoiled = rows.spoiled(inputs, kind, 1)
        assert torch.equal(spoiled["x"][:1], inputs["x"][:1])
        assert not torch.equal(spoiled["x"][1:], inputs["x"][1:])
        assert spoiled["other"] is inputs["other"]
        assert set(spoiled["ids"].tolist()) <= {3, 7}
        assert spoiled["ids"][0] == 3
        again = rows.spoiled(inputs, kind, 1)["x"]
        assert torch.equal(again.nan_to_num(0), spoiled["x"].nan_to_num(0))
    assert rows.spoiled(inputs, "nan", 1)["x"][1:].isnan().all()
    huge = rows.spoiled(inputs, "huge", 1)["x"][1:]
    assert set(huge.abs().flatten().tolist()) == {torch.finfo(torch.float32).max}
    assert set(huge.sign().flatten().tolist()) == {-1.0, 1.0}
    noise = rows.spoiled(inputs, "noise", 1)["x"][1:]
    assert bool((noise >= inputs["x"].min()).all() and (noise <= 2 * inputs["x"].max()).all())
    assert not torch.equal(noise, rows.spoiled(inputs, "noise", 2)["x"][1:])
