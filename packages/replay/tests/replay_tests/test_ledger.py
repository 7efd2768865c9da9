"""What the recorder knows of tensors: which memory, which place, for how long, and what tells arguments apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose_replay.capture.ledger import CaptureLedger, Held, all_constant, form_of, real, registers_of, unheld
from npucompose_replay.operands import flat, layout_of, storage_of, traits_of
from npucompose_replay.plan import PlanSlot, Register, Root

aten = torch.ops.aten


def held(tensor: torch.Tensor | None = None, kind: Any = "pool", **given: Any) -> Held:
    return Held(torch.ones(2) if tensor is None else tensor, Root(kind=kind, nbytes=8), **given)


def test_one_layout_of_one_root_is_one_slot_and_a_value_keeps_its_operand() -> None:
    ledger, x = CaptureLedger(), torch.ones(2, 2)
    whole, again, row = Held(x, root := Root(kind="pool", nbytes=16)), Held(x, root), Held(x[1], root)
    assert ledger.operand(whole) is ledger.operand(again) is ledger.operand(whole)
    assert ledger.operand(row) is not ledger.operand(whole)
    assert ledger.operand(row) == ledger.slot(root, layout_of(x[1]))
    other = ledger.operand(held(x))
    assert isinstance(other, PlanSlot)
    assert other is not ledger.operand(whole)
    made = ledger.operand([whole, 3, (row, None)])
    assert made == [ledger.operand(whole), 3, (ledger.operand(row), None)]
    assert ledger.operand(held(register=Register(7))) == Register(7)


def test_memory_is_known_as_long_as_a_value_uses_it() -> None:
    ledger, x = CaptureLedger(), torch.ones(2, 2)
    whole = ledger.adopt(held(x))
    view = Held(x[1], whole.root)
    ledger.hold(whole)
    ledger.hold([view, 3])
    ledger.release(whole)
    assert ledger.root_of(x[0]) is whole.root
    ledger.release([view, 3])
    assert ledger.root_of(x) is None
    ledger.hold(whole)
    ledger.release(whole)
    assert ledger.root_of(x) is None


@pytest.mark.parametrize("kind", ["input", "attribute", "constant", "output"])
def test_memory_that_outlives_its_values_stays_known(kind: Any) -> None:
    ledger = CaptureLedger()
    ledger.hold(one := ledger.adopt(held(kind=kind)))
    ledger.release(one)
    assert ledger.root_of(one.tensor) is one.root


def test_a_fresh_value_has_a_register_and_shares_the_root_of_its_memory() -> None:
    ledger, x = CaptureLedger(), torch.ones(2, 2)
    first, second, other = (ledger.into_register(t) for t in (x, x[1], torch.ones(1)))
    assert [one.register for one in (first, second, other)] == [Register(0), Register(1), Register(2)]
    assert first.root is second.root is not other.root
    assert first.root.kind == "fresh"
    assert ledger.register_roots == {0: first.root, 1: first.root, 2: other.root}
    assert ledger.root_of(x) is first.root
    assert ledger.into_register(3) == 3


def test_a_number_where_a_tensor_is_declared_becomes_one_constant_for_all_alike() -> None:
    ledger, add = CaptureLedger(), traits_of(aten.add.Tensor)
    x, y, scalar = held(), held(), held(torch.ones(()))

    def number(beside: Held, value: Any) -> Any:
        ordered = ledger.numbered(add, (beside, value, 1))
        assert ordered[0] is beside
        assert ordered[2] == 1
        return ordered[1]

    half = number(x, 0.5)
    assert (half.tensor.item(), half.tensor.dtype) == (0.5, torch.float32)
    assert (half.root.kind, half.root.nbytes, half.root.tensor) == ("constant", 4, half.tensor)
    assert number(y, 0.5) is half
    assert number(x, 1) is not number(x, True)
    assert number(x, 0.0) is not number(x, -0.0)
    assert number(scalar, 0.5) is not half
    assert number(held(torch.ones(2, dtype=torch.half)), 0.5) == 0.5  # it stays a number
    assert ledger.numbered(add, given := (x, y, 2)) is given


def test_the_condition_of_where_promotes_nothing() -> None:
    ledger, where = CaptureLedger(), traits_of(aten.where.self)
    condition, x = held(torch.tensor([True, False])), held(torch.ones(2, dtype=torch.float64))
    ordered = ledger.numbered(where, (condition, x, 0.5))
    assert ordered[:2] == (condition, x)
    assert ordered[2].tensor.dtype == torch.float64


def test_arguments_come_apart_into_real_ones_and_those_that_are_held() -> None:
    x, y, z = held(), held(), held()
    reals, read = unheld([x, [y, None], 3, {"a": z}, [1, 2]])
    assert [reals[0], reals[1], reals[2], reals[3]] == [x.tensor, [y.tensor, None], 3, {"a": z.tensor}]
    assert reals[4] == [1, 2]
    assert read == [x, y, z]
    assert real(x) is x.tensor
    assert real(3) == 3


def test_constants_are_those_that_nobody_has_written() -> None:
    one, other = held(kind="constant"), held(kind="constant")
    assert all_constant([one, other])
    assert all_constant([])
    assert not all_constant([one, held()])
    other.root.written = True
    assert not all_constant([one, other])


X = torch.zeros(64)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1], [True]), ([0.0], [-0.0]), ([1], [2]), (["a"], ["b"]), ([None], [0]), ([[1]], [(1,)]), ([1, 2], [[1, 2]]),
        ([1.0], [1]), ([[0.0]], [[-0.0]]), ([{"a": 1}], [{"b": 1}]), ([{"a": 1}], [{"a": 2}]),
        ([held(X)], [held(X[1:])]), ([held(X[:4])], [held(X[4:8])]), ([X], [X[1:]]), ([X[:4]], [X[4:8]]),
        ([held(X)], [X]), ([held(X), 1], [held(X), True]), ([held(X), 0.5], [held(X), 0.25]),
        ([held(X), [1]], [held(X), [2]]), ([held(X), torch.float32], [held(X), torch.float64]),
        ([held(X), {"a": 0.0}], [held(X), {"a": -0.0}]), ([held(X), 1j], [held(X), 2j]),
    ],
)  # fmt: skip
def test_what_a_kernel_may_see_is_another_form(a: list[Any], b: list[Any]) -> None:
    assert form_of(a) == form_of(a)
    assert form_of(a) != form_of(b)


def test_the_values_and_the_memory_of_tensors_are_no_part_of_a_form() -> None:
    a, b = torch.zeros(3, 4), torch.ones(3, 4)
    assert a.data_ptr() % 64 == b.data_ptr() % 64
    for given in (held, lambda t: t):
        assert form_of([given(a), 0.5, [1, "x"], {"k": 2.0}]) == form_of([given(b), 0.5, [1, "x"], {"k": 2.0}])
    hash(form_of([held(a), 0.5, [1, [held(b)]], {"k": 2.0}, slice(1)]))
    assert form_of([held(X[1:3])])[1][0] == (layout_of(X[1:3]), X[1:3].data_ptr() % 64)


def test_results_stand_for_each_return_of_the_schema() -> None:
    x, y = held(register=Register(1)), held(register=Register(2))
    assert registers_of(None) == ()
    assert registers_of(x) == (Register(1),)
    assert registers_of((x, 3, y)) == (Register(1), None, Register(2))
    assert registers_of([x, y]) == ((Register(1), Register(2)),)
    assert registers_of((x, [y])) == (Register(1), (Register(2),))
    assert registers_of(3) == (None,)


def test_a_structure_is_flat_however_deep_it_is() -> None:
    assert flat((1, [2, (3, {"a": 4, "b": [5, {"c": 6}]})], {"d": (7,)})) == [1, 2, 3, 4, 5, 6, 7]
    assert flat({"a": [1], "b": 2}) == [1, 2]
    assert flat(1) == [1]
    assert flat(slice(1)) == [slice(1)]


def test_a_storage_is_known_by_itself_and_not_by_its_address() -> None:
    x = torch.ones(4)
    assert storage_of(x) == storage_of(x[1:]) == storage_of(x.detach())
    assert storage_of(x) != storage_of(torch.ones(4))
