"""Which kernels run without the dispatcher: those with the bits of the operator, tried once for each form."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.bits import same_bytes
from npucompose_replay.executor import build
from replay_tests.executor.contracts import Asked, added

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("one_thread"),
]


def asked(extension: ModuleType, name: str, args: list[Any]) -> int:
    """How often the operator itself was run for the trial of its kernel."""
    with Asked(name) as mode:
        added(extension, name, args)
    return mode.count


NEW_SIZES = itertools.count(37)
"""Trials are remembered as long as the process lives."""


def test_a_trial_is_made_once_for_calls_that_differ_in_the_values_of_tensors_alone(extension: ModuleType) -> None:
    n = next(NEW_SIZES)

    def call(**other: Any) -> list[int]:
        shape, dtype = other.get("shape", (3, n)), other.get("dtype", torch.float32)

        def made() -> torch.Tensor:
            tensor = torch.randn(*shape).to(dtype)
            return tensor.t().contiguous().t() if "turned" in other else tensor

        op, alpha, out = other.get("op", "add.out"), other.get("alpha", 1), torch.empty(*shape, dtype=dtype)
        return [asked(extension, op, [made(), made(), alpha, out]) for _ in range(2)]

    # After the first: other rows, another rank, another dtype, layout, kind of number, number and operator.
    others: list[dict[str, Any]] = [
        {}, {"shape": (5, n)}, {"shape": (3 * n,)}, {"dtype": torch.float64}, {"turned": True}, {"alpha": 1.0},
        {"alpha": 2}, {"alpha": 2.5}, {"alpha": 2.25}, {"op": "sub.out"},
    ]  # fmt: skip
    found = [call(**other) for other in others]
    assert [second for _, second in found] == [0] * len(others), "equal calls are not tried again"
    assert [first > 0 for first, _ in found] == [True] * len(others), "and others are"
    torch.set_num_threads(2)
    assert call()[0] > 0, "another number of threads is another kernel"


def test_a_trial_compares_three_rounds(extension: ModuleType) -> None:
    x = torch.randn(7, next(NEW_SIZES))
    assert asked(extension, "mul.out", [x, x.clone(), torch.empty_like(x)]) == 3


class Operands(TorchDispatchMode):
    """Copies of what products are given meanwhile, their results' memory too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten.mul.out":
            self.seen += [tensor.clone() for tensor in (*args, *(kwargs or {}).values())]
        return func(*args, **(kwargs or {}))


def test_a_trial_is_made_on_other_numbers_for_each_operand_and_round(extension: ModuleType) -> None:
    x = torch.zeros(next(NEW_SIZES), 3)
    with Operands() as mode:
        added(extension, "mul.out", [x, x.clone(), torch.empty_like(x)])
    assert len(mode.seen) == 9
    assert len({tuple(tensor.flatten().tolist()) for tensor in mode.seen}) == 9
    for tensor in mode.seen:
        assert tensor.isfinite().all()
        assert tensor.unique().numel() > 100, "of the normal distribution"


class Wrong(TorchDispatchMode):
    """Products come out wrong meanwhile: their kernels cannot have the operator's bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) == "aten.mul.out":
            result.add_(1)
        return result


@pytest.mark.parametrize("size", [17, 70_001, 140_001])  # of one round of the trial's noise, and of more
def test_a_kernel_with_other_bits_than_the_operators_is_not_used(extension: ModuleType, size: int) -> None:
    for mode, way in ((Wrong(), "boxed"), (Asked("mul.out"), "held")):
        x = torch.randn(size + next(NEW_SIZES))
        with mode:
            assert added(extension, "mul.out", [x, x.clone(), torch.empty_like(x)]) == way


MATRICES: dict[str, tuple[Any, bool]] = {
    "as they are": (lambda: (torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)), True),
    "x turned": (lambda: (torch.randn(7, 5).t(), torch.randn(7, 6), torch.empty(5, 6)), True),
    "y turned": (lambda: (torch.randn(5, 7), torch.randn(6, 7).t(), torch.empty(5, 6)), True),
    "both turned": (lambda: (torch.randn(7, 5).t(), torch.randn(6, 7).t(), torch.empty(5, 6)), True),
    "columns of larger ones": (
        lambda: (torch.randn(5, 9)[:, 1:8], torch.randn(7, 9)[:, 2:8], torch.empty(5, 8)[:, :6]), True
    ),
    "every other column": (lambda: (torch.randn(5, 14)[:, ::2], torch.randn(7, 6), torch.empty(5, 6)), False),
    "rows that overlap": (
        lambda: (torch.randn(40).as_strided((5, 7), (3, 1)), torch.randn(7, 6), torch.empty(5, 6)), False
    ),
    "a result by columns": (lambda: (torch.randn(5, 7), torch.randn(7, 6), torch.empty(6, 5).t()), False),
    "in double": (lambda: (torch.randn(5, 7).double(), torch.randn(7, 6).double(), torch.empty(5, 6).double()), False),
    "empty": (lambda: (torch.randn(0, 7), torch.randn(7, 6), torch.empty(0, 6)), False),
}  # fmt: skip


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch's BLAS is not MKL")
@pytest.mark.parametrize("layout", MATRICES)
def test_a_product_calls_blas_where_fortran_can_read_the_matrices(extension: ModuleType, layout: str) -> None:
    make, fits = MATRICES[layout]
    x, y, out = make()
    recording = extension.Recording()
    assert (added(extension, "mm.out", [x, y, out], True, recording) == "blas") is fits
    recording.took(1)
    assert same_bytes(out, torch.mm(x, y)) or torch.equal(out, torch.mm(x, y))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch's BLAS is not MKL")
@pytest.mark.parametrize(
    ("row", "beta", "alpha", "fits"),
    [
        (lambda: torch.randn(6), 1, 1, True),
        (lambda: torch.randn(6), 1.0, 1.0, True),
        (lambda: torch.randn(6), 2, 1, False),
        (lambda: torch.randn(6), 1, 2, False),
        (lambda: torch.randn(12)[::2], 1, 1, False),
        (lambda: torch.randn(1).expand(6), 1, 1, False),
        (lambda: torch.randn(5, 6), 1, 1, False),
        (lambda: torch.randn(5, 1), 1, 1, False),
        (lambda: torch.randn(1), 1, 1, False),
    ],
)
def test_a_product_with_a_row_calls_blas_where_the_row_lies_as_one(
    extension: ModuleType, row: Any, beta: Any, alpha: Any, fits: bool
) -> None:
    a, x, y, out = row(), torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    recording = extension.Recording()
    assert (added(extension, "addmm.out", [a, x, y, beta, alpha, out], True, recording) == "blas") is fits
    recording.took(1)
    assert torch.equal(out, torch.addmm(a, x, y, beta=beta, alpha=alpha))


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda: (torch.randn(9), torch.randn(9)), True),
        (lambda: (torch.randn(9).double(), torch.randn(9).double()), True),
        (lambda: (torch.randn(9), torch.randn(9).double()), False),
        (lambda: (torch.arange(9), torch.arange(9)), False),
        (lambda: (torch.randn(9)[:0], torch.randn(9)[:0]), False),
        (lambda: (torch.randn(9, dtype=torch.cfloat).conj(), torch.randn(9, dtype=torch.cfloat)), False),
        (lambda: (torch.randn(9).bfloat16(), torch.randn(()).bfloat16()), False),
    ],
)
def test_kernels_over_elements_are_held_for_one_floating_dtype_with_elements(
    extension: ModuleType, make: Any, held: bool
) -> None:
    x, y = make()
    out = torch.empty_like(x * y)
    recording = extension.Recording()
    assert (added(extension, "mul.out", [x, y, out], True, recording) == "held") is held
    assert added(extension, "mul.out", [x, y, out], False) == "boxed"
    recording.took(1)
    assert torch.equal(out, x * y)


class Counted(TorchDispatchMode):
    """How many operators were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_kernel_is_tried_once_for_each_form_of_its_arguments(extension: ModuleType) -> None:
    """Every argument of the form counts: what stands before a text, and the text."""
    contiguous, strided, out = torch.randn(9137), torch.randn(9137, 2)[:, 0], torch.empty(9137)

    def is_tried(x: torch.Tensor, approximate: str) -> bool:
        with Counted() as counted:
            assert added(extension, "gelu.out", [x, approximate, out], True) == "held"
        return counted.calls > 0

    forms = [(contiguous, "none"), (contiguous, "tanh"), (strided, "none"), (strided, "tanh")]
    assert [is_tried(*form) for form in (*forms, *forms)] == [True] * 4 + [False] * 4
