"""How a recorded graph is written down: layouts, steps, what they touch, and for how long."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from npucompose.schema.streams import DEFAULT_STREAM
from npucompose_replay.capture.recorder import record
from npucompose_replay.memory.placement import groups_of, parted
from npucompose_replay.operands import StorageLayout, is_plain, layout_of, mapped
from npucompose_replay.plan import (
    Buffer,
    Literally,
    Plan,
    PlanSlot,
    Register,
    Root,
    SameAsInput,
    Step,
    leaves,
    lifetimes,
)
from tests.graph_helpers import traced

aten = torch.ops.aten
BASE = torch.arange(48.0)
COMPLEX = torch.complex(BASE, BASE + 1)
VIEWS: dict[str, torch.Tensor] = {
    "all of it": BASE,
    "a part": BASE[3:9],
    "rows": BASE.view(6, 8)[1:, 2:],
    "turned": BASE.view(6, 8).t(),
    "one number": BASE[7],
    "expanded": BASE[5:7].expand(3, 2),
    "nothing": BASE[4:4],
    "of integers": BASE.view(torch.int32)[2:5],
    "narrow": BASE.view(torch.int16)[3:7],
    "conjugated": COMPLEX[2:5].conj(),
    "negated": COMPLEX[2:5]._neg_view(),
    "both": COMPLEX[2:5].conj()._neg_view(),
}


def layout(shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, **changes: Any) -> StorageLayout:
    return StorageLayout(dtype=torch.float32, shape=shape, stride=stride, offset=offset, **changes)


@pytest.mark.parametrize("name", VIEWS)
def test_a_layout_over_its_storage_is_the_tensor_again(name: str) -> None:
    tensor = VIEWS[name]
    found = layout_of(tensor)
    again = found.over(tensor.untyped_storage())
    assert again.data_ptr() == tensor.data_ptr()
    assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert again.storage_offset() == tensor.storage_offset()
    assert (again.is_conj(), again.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert torch.equal(again, tensor)
    assert layout_of(again) is found  # one object for equal layouts
    assert (found.conj, found.neg) == (tensor.is_conj(), tensor.is_neg())
    moved, alone = found.moved(5), found.collapsed()
    assert moved == attrs.evolve(found, offset=found.offset + 5)
    assert found.moved(-2).offset == found.offset - 2
    assert alone == attrs.evolve(found, shape=alone.shape)


@pytest.mark.parametrize(
    ("given", "span"),
    [
        (layout((2, 3), (3, 1)), (0, 24)),
        (layout((2, 3), (3, 1), 5), (20, 44)),
        (layout((2, 3), (8, 2), 1), (4, 4 + 4 * 13)),
        (layout((), (), 7), (28, 32)),
        (layout((4, 0), (1, 1), 9), (0, 0)),
        (layout((5, 2), (0, 1), 2), (8, 16)),
        (attrs.evolve(layout((3,), (2,), 1), dtype=torch.float64), (8, 48)),
    ],
)
def test_a_span_is_from_the_first_byte_to_the_one_after_the_last(given: StorageLayout, span: tuple[int, int]) -> None:
    assert given.span() == span


def test_an_expanded_dimension_has_one_element_and_others_keep_theirs() -> None:
    assert layout((3, 4, 2), (0, 1, 4)).collapsed().shape == (1, 4, 2)
    assert layout((3, 1), (1, 3)).collapsed().shape == (3, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (layout((2, 3), (3, 1)), "torch.float32[2,3]"),
        (layout((2, 3), (1, 2)), "torch.float32[2,3]{1,2}"),
        (layout((2, 1, 3), (3, 3, 1)), "torch.float32[2,1,3]"),
        (layout((2, 0, 3), (3, 3, 1)), "torch.float32[2,0,3]"),
        (layout((), ()), "torch.float32[]"),
        (layout((4,), (2,)), "torch.float32[4]{2}"),
    ],
)
def test_strides_are_told_where_they_are_not_those_of_rows(given: StorageLayout, words: str) -> None:
    assert str(given) == words


# -- what stands in steps

ONE, TWO = Root(kind="pool", nbytes=64), Root(kind="input", nbytes=64, index=0)
A, B = PlanSlot(ONE, layout((2,), (1,))), PlanSlot(TWO, layout((2,), (1,)))
R, S = Register(0), Register(1)


def test_leaves_are_the_slots_and_registers_in_their_order() -> None:
    assert leaves((A, 3, [R, None, (B, "x")], {"not": A}, S)) == [A, R, B, S]


def test_a_change_reaches_every_leaf_and_containers_keep_their_kind() -> None:
    given = (1, [2, (3,)], {"a": 4, "b": [5]}, slice(6, 7, 8))
    assert mapped(lambda n: n * 10, given) == (10, [20, (30,)], {"a": 40, "b": [50]}, slice(60, 70, 80))
    assert mapped(lambda n: n * 10, 3) == 30
    assert mapped(lambda n: n * 10, slice(1, 2, 3)) == slice(10, 20, 30)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ([1, True, None, "x", torch.float32], True),
        ((1, torch.device("cpu")), True),
        ([], True),
        ([1, 0.5], False),
        ([1, [2]], False),
        ({"a": 1}, False),
        (1, False),
    ],
)
def test_whole_numbers_and_names_are_plain(given: Any, plain: bool) -> None:
    assert is_plain(given) is plain


def test_a_step_tells_what_it_reads_and_writes_and_then_what_it_makes() -> None:
    add = Step(op=aten.add.out, args=(A, R, 1, B))
    assert add.operands == (A, R, B)
    assert add.made == ()
    assert list(add.touched()) == [(A, False), (R, False), (B, True)]
    split = Step(op=aten.split.Tensor, args=(A, 1, 0), results=((R, S),))
    assert split.made == (R, S)
    assert list(split.touched()) == [(A, False), (R, True), (S, True)]
    in_place = Step(op=aten.add_.Tensor, args=(A, [B], 1), results=(None,))
    assert list(in_place.touched()) == [(A, True), (B, False)]


def test_a_root_lives_from_the_first_step_that_touches_it_to_the_last() -> None:
    pool, given, fresh, never = (Root(kind=kind, nbytes=8) for kind in ("pool", "input", "fresh", "pool"))
    p, g = PlanSlot(pool, layout((2,), (1,))), PlanSlot(given, layout((2,), (1,)))
    steps = [
        Step(op=aten.relu.default, args=(g,), results=(R,)),
        Step(op=aten.add.out, args=(g, R, 1, p)),
        Step(op=aten.relu_.default, args=(p,)),
    ]
    used = lifetimes(steps, {0: fresh})
    assert [id(root) for root in used] == [id(given), id(fresh), id(pool)]
    assert [(root.first, root.last) for root in (given, fresh, pool, never)] == [(0, 1), (0, 1), (1, 2), (-1, -1)]


def plan_of(steps: tuple[Step, ...], **changes: Any) -> Plan:
    given: dict[str, Any] = {"outputs": (), "roots": (), "pinned": frozenset(), "from_zero": frozenset()}
    given |= {"register_roots": {0: ONE, 1: TWO}, "views_resolved": 0, "constants": 0}
    return Plan(steps=steps, **{**given, **changes})


def test_a_plan_knows_its_streams_its_slots_and_the_roots_of_its_operands() -> None:
    steps = (
        Step(op=aten.relu.default, args=(A,), results=(R,), stream="2"),
        Step(op=aten.relu.default, args=(R,), results=(S,)),
        Step(op=aten.add.out, args=(S, A, 1, B), stream="1"),
    )
    last = PlanSlot(ONE, layout((1,), (1,)))
    plan = plan_of(steps, outputs=(SameAsInput(index=0), Buffer(slot=last), Buffer(slot=A), Literally(value=3)))
    assert plan.streams == (DEFAULT_STREAM, "2", "1")
    assert plan.slots() == [A, B, last]
    assert [plan.root_of(operand) for operand in (A, B, R, S)] == [ONE, TWO, ONE, TWO]
    assert plan_of(()).streams == plan.streams[:1]


# -- results that lie where an operand dies


def test_a_chain_of_pointwise_kernels_lies_in_one_place() -> None:
    x = torch.randn(4, 4)
    plan = record(traced(lambda x: ((x @ x).neg().exp().sin() @ x,), x), [x])
    groups = groups_of(plan, lambda root, step: root.last == step)
    assert sorted(map(len, groups)) == [1, 4]
    chain = max(groups, key=len)
    assert [root.first for root in chain] == [0, 1, 2, 3]
    assert [len(part) for part in parted(groups) if part[0] in chain] == [3, 1]
    assert sorted(map(len, groups_of(plan, lambda root, step: False))) == [1] * 5
    twice = record(traced(lambda x: ((y := x @ x).neg() @ y,), x), [x])  # y is read again
    assert sorted(map(len, groups_of(twice, lambda root, step: root.last == step))) == [1, 1, 1]
    product = record(traced(lambda x: ((x @ x) @ x @ x,), x), [x])  # a product reads what it has overwritten
    assert sorted(map(len, groups_of(product, lambda root, step: root.last == step))) == [1, 1, 1]


def test_what_depends_on_no_input_is_computed_once_and_no_step_of_a_replay() -> None:
    plan = record(traced(lambda x: (x + torch.arange(3.0).neg(),), torch.ones(3)), [torch.ones(3)])
    assert [str(step.op) for step in plan.steps] == ["aten.add.out"]
    assert plan.constants == 1
