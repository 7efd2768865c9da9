"""What a capture knows of an operator, from its schema and its tags alone."""

from __future__ import annotations

import pytest
import torch
from torch._ops import OpOverload

from npucompose import ops
from npucompose_replay.operands import Traits, traits_of

aten, prims = torch.ops.aten, torch.ops.prims
LIBRARY = torch.library.Library("npucompose_traits", "FRAGMENT")
LIBRARY.define("reads(Tensor x) -> Tensor")
LIBRARY.define("writes(Tensor(a!) x) -> ()")
LIBRARY.define("empty(int[] size) -> Tensor")
mine = torch.ops.npucompose_traits
FLAGS = (
    "of_torch", "may_be_tried", "mutable", "resizes", "draws", "takes_generator", "uninitialised", "is_as_strided",
    "marks", "may_be_constant", "is_plain", "may_depend_on_data",
)  # fmt: skip
CASES: dict[OpOverload, set[str]] = {
    aten.add.Tensor: {"of_torch", "may_be_tried", "may_be_constant", "is_plain"},
    prims.iota.default: {"of_torch", "may_be_tried", "may_be_constant", "is_plain"},
    aten.add_.Tensor: {"of_torch", "may_be_tried", "mutable"},
    aten.add.out: {"of_torch", "may_be_tried", "mutable"},
    aten.resize_.default: {"of_torch", "may_be_tried", "mutable", "resizes"},
    aten.rand.default: {"of_torch", "may_be_tried", "draws", "is_plain"},
    aten.rand.generator: {"of_torch", "may_be_tried", "draws", "takes_generator"},
    aten.bernoulli_.float: {"of_torch", "may_be_tried", "mutable", "draws", "takes_generator"},
    aten.empty.memory_format: {"of_torch", "may_be_tried", "uninitialised", "is_plain"},
    aten.new_empty_strided.default: {"of_torch", "may_be_tried", "uninitialised", "is_plain"},
    aten.as_strided.default: {"of_torch", "may_be_tried", "is_as_strided", "may_be_constant", "is_plain"},
    aten.nonzero.default: {"of_torch", "may_be_tried", "may_be_constant", "may_depend_on_data"},
    aten._local_scalar_dense.default: {"of_torch", "may_be_tried", "may_be_constant", "may_depend_on_data"},
    aten.native_batch_norm.default: {"of_torch", "may_be_tried", "may_be_constant", "may_depend_on_data"},
    mine.reads.default: {"is_plain"},
    mine.writes.default: {"mutable"},
    mine.empty.default: {"is_plain"},
}


@pytest.mark.parametrize("op", CASES, ids=str)
def test_the_traits_of_an_operator(op: OpOverload) -> None:
    assert {flag for flag in FLAGS if getattr(traits_of(op), flag)} == CASES[op]


def test_markers_of_streams_and_references_of_an_npus_operators_are_ours() -> None:
    ops.define()
    assert traits_of(torch.ops.air.wait.default).marks
    assert traits_of(torch.ops.air.scope_enter.default).may_be_tried
    assert not traits_of(torch.ops.air.scope_enter.default).of_torch
    assert traits_of(torch.ops.npu.npu_rms_norm.default).may_be_tried
    assert not traits_of(torch.ops.npu.npu_rms_norm.default).marks


def test_arguments_that_are_written_and_those_that_may_be_numbers_are_known_by_their_place() -> None:
    assert traits_of(aten.add.out).written == (3,)
    assert traits_of(aten.add_.Tensor).written == (0,)
    assert traits_of(aten.sort.values).written == (3, 4)
    assert traits_of(aten.add.Tensor).written == ()
    assert traits_of(aten.add.Tensor).tensors == (0, 1)
    assert traits_of(aten.clamp.Tensor).tensors == (0,)  # the others may be None
    assert traits_of(aten.cat.default).tensors == ()


@pytest.mark.parametrize(
    ("op", "out"),
    [
        (aten.add.out, 3),
        (aten.exp.out, 1),
        (aten.add.Tensor, None),
        (aten.mm.out, None),
        (aten.eq.Tensor_out, 2),
        (aten.sort.values, None),
        (aten.where.self_out, None),  # pointwise, but torch has no where_
    ],
    ids=str,
)
def test_the_result_of_a_pointwise_kernel_that_works_in_place_is_known(op: OpOverload, out: int | None) -> None:
    assert traits_of(op).out == out


def test_every_argument_stands_in_the_order_of_the_schema_with_its_default() -> None:
    add: Traits = traits_of(aten.add.Tensor)
    assert (add.names, add.defaults) == (("self", "other", "alpha"), (None, None, 1))
    assert add.in_order((5, 6), {}) == (5, 6, 1)
    assert add.in_order((5, 6), {"alpha": 2}) == (5, 6, 2)
    assert add.in_order((5, 6, 7), {}) == (5, 6, 7)
    assert add.in_order((5,), {"alpha": 2, "other": 6}) == (5, 6, 2)
    assert add.in_order((), {"self": 5, "other": 6}) == (5, 6, 1)
