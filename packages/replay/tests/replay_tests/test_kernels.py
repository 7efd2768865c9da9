"""Which kernel writes a result into a buffer: only one that gives the same bytes there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from npucompose.bits import same_bytes
from npucompose_replay.capture import kernels
from npucompose_replay.capture.kernels import Arg, Out, OutCall, into_buffers
from npucompose_replay.capture.ledger import number_as_tensor

aten = torch.ops.aten
X, Y, ROWS = torch.randn(3, 4), torch.randn(3, 4), torch.tensor([[1, 0], [2, 2]])
COMPLEX = torch.randn(4, dtype=torch.complex64)
LIBRARY = torch.library.Library("npucompose_kernels", "FRAGMENT")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
WRONG: dict[str, Any] = {}
"""What the overload with `out` does."""


@torch.library.impl(LIBRARY, "twice", "CPU")
def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.impl(LIBRARY, "twice.out", "CPU")
def _twice_out(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return WRONG["does"](x, out)


twice = torch.ops.npucompose_kernels.twice.default


def called(op: OpOverload, *args: Any) -> OutCall | None:
    """`args`: all of them, in the order of the schema."""
    declared = op._schema.arguments
    by_name = {d.name: value for d, value in zip(declared, args, strict=True) if d.kwarg_only}
    result = op(*args[: len(args) - len(by_name)], **by_name)
    return into_buffers(op, args, [result] if isinstance(result, torch.Tensor) else list(result))


def test_the_overload_with_out_is_called_with_the_arguments_and_then_the_buffers() -> None:
    assert called(aten.add.Tensor, X, Y, 2) == OutCall(
        op=aten.add.out, args=(Arg(0), Arg(1), Arg(2), Out(0)), in_order=True
    )
    assert called(aten.sort.default, X, -1, False) == OutCall(
        op=aten.sort.values, args=(Arg(0), Arg(1), Arg(2), Out(0), Out(1)), in_order=True
    )


def test_relu_copies_and_embeddings_have_other_names() -> None:
    assert called(aten.relu.default, X) == OutCall(op=aten.clamp_min.out, args=(Arg(0), 0, Out(0)))
    copy = OutCall(op=aten.copy_.default, args=(Out(0), Arg(0), False))
    assert called(aten.clone.default, X, None) == copy
    to = into_buffers(aten._to_copy.default, (X, torch.float64, None, None, None, False, None), [X.to(torch.float64)])
    assert to == copy
    rows = OutCall(op=aten.index_select.out, args=(Arg(0), 0, Arg(1, flat=True), Out(0, rows=True)), flattened=1)
    assert called(aten.embedding.default, X, ROWS, -1, False, False) == rows


@pytest.mark.parametrize(
    ("weight", "indices"),
    [(X, ROWS.t()), (torch.randn(3), ROWS), (X, ROWS[:0]), (torch.randn(3, 4, 2), ROWS)],
    ids=["turned indices", "no rows", "nothing", "rows of rows"],
)
def test_an_embedding_that_no_selection_of_rows_gives_has_none(weight: torch.Tensor, indices: torch.Tensor) -> None:
    result = weight[indices]
    assert into_buffers(aten.embedding.default, (weight, indices, -1, False, False), [result]) is None


def test_generated_overloads_and_other_signatures_do_not_count() -> None:
    assert torch.Tag.generated in aten.native_layer_norm.out.tags
    assert called(aten.native_layer_norm.default, X, [4], None, None, 1e-5) is None
    assert called(aten.unbind.int, X, 0) is None


@pytest.mark.parametrize(
    "result",
    [
        torch.randn(8)[1:5],
        COMPLEX.conj(),
        COMPLEX._neg_view(),
        torch.randn(8)[:4],
        torch.randn(4, 1).expand(4, 2),
    ],
    ids=["further in", "conjugated", "negated", "a part", "expanded"],
)
def test_a_result_that_does_not_fill_its_storage_gets_no_buffer(result: torch.Tensor) -> None:
    assert not kernels.fills_its_storage(result)
    assert into_buffers(aten.clone.default, (result, None), [result]) is None


def test_what_fills_its_storage_may_be_turned_or_empty() -> None:
    assert kernels.fills_its_storage(X.t())
    assert kernels.fills_its_storage(torch.empty(0, 3))
    assert called(aten.clone.default, X.t(), None) is not None


def write(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(x * 2)


def elsewhere(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.set_((x * 2).untyped_storage(), 0, out.shape, out.stride())


def resized(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.as_strided_(out.shape, out.stride()[::-1]).copy_(x * 2)


def adding(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.add_(x * 2)


def failing(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    raise ValueError("not today")


@pytest.mark.parametrize(
    ("does", "good"),
    [
        (write, True), (elsewhere, False), (resized, False), (adding, False), (failing, False),
        (lambda x, out: out.copy_(x * 2 + (x == x.max()) * 1e-6), False),
    ],
    ids=["writes", "moves", "lays out anew", "reads its buffer", "raises", "is off by a bit"],
)  # fmt: skip
def test_a_kernel_is_taken_after_a_trial_only(does: Any, good: bool) -> None:
    WRONG["does"] = does
    x = torch.ones(3, 3)
    assert (into_buffers(twice, (x,), [x * 2]) is not None) is good


def test_one_of_several_results_that_differs_is_enough() -> None:
    values, indices = torch.sort(X)
    good = into_buffers(aten.sort.default, (X, -1, False), [values, indices])
    assert good is not None
    assert into_buffers(aten.sort.default, (X, -1, False), [values, indices + 1]) is None
    assert into_buffers(aten.sort.default, (X, -1, False), [values + 1, indices]) is None
    part = torch.zeros(12, 4, dtype=torch.int64)[:3].copy_(indices)
    assert into_buffers(aten.sort.default, (X, -1, False), [values, part]) is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]]), False),
        (torch.tensor([1]), torch.tensor([1.0]), False),
        (torch.tensor([0], dtype=torch.int32), torch.tensor([0.0]), False),
        (torch.empty(0), torch.empty(0), True),
        (X[1:2, 2], X[1:2, 2].clone(), True),
        (X[1:2, 2], X[1:2, 3], False),
        (X[1, 2], X[1, 2].clone(), True),
        (X, X.t().contiguous().t(), True),
        (COMPLEX, COMPLEX.conj().conj(), True),
        (COMPLEX, COMPLEX.conj(), False),
        (COMPLEX._neg_view(), -COMPLEX, True),
        (COMPLEX.imag, COMPLEX.conj().imag.neg(), True),
    ],
)
def test_bytes_are_the_same_where_dtype_shape_and_every_bit_are(a: torch.Tensor, b: torch.Tensor, same: bool) -> None:
    assert same_bytes(a, b) is same
    assert same_bytes(b, a) is same


@pytest.mark.parametrize(
    ("number", "beside", "dtype"),
    [
        (0.5, [torch.ones(3)], torch.float32),
        (0.5, [torch.ones(3, dtype=torch.int32)], torch.float32),
        (0.5, [torch.ones(3, dtype=torch.float64)], torch.float64),
        (2, [torch.ones(3, dtype=torch.uint8)], torch.uint8),
        (True, [torch.ones(3, dtype=torch.bool)], torch.bool),
        (300, [torch.ones(3, dtype=torch.uint8)], None),
        (0.5, [torch.ones(3, dtype=torch.half)], None),
        (2, [torch.ones(3, dtype=torch.bfloat16)], None),
        (0.5, [COMPLEX], None),
        (1j, [torch.ones(3)], None),
        (0.5, [], None),
        (0.5, [torch.ones(3), torch.ones(3)], None),
        (0.5, [torch.ones((), dtype=torch.int32)], torch.float32),
    ],
)
def test_a_number_stands_as_a_tensor_where_nothing_is_promoted_otherwise(
    number: Any, beside: list[torch.Tensor], dtype: torch.dtype | None
) -> None:
    found = number_as_tensor(number, beside)
    assert (found is None) == (dtype is None)
    if found is not None:
        assert (found.dtype, found.shape, found.item()) == (dtype, (), number)


def test_rows_are_all_dimensions_but_the_last_in_one() -> None:
    assert kernels.rows_of(torch.zeros(2, 3, 4)).shape == (6, 4)
