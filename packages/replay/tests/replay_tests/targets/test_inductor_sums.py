"""The kernel of Inductor's templates for products adds up in parts: every term once, with smaller errors."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from typing import Any

import pytest
import torch

from npucompose.machine import compiler
from npucompose_replay.inductor.kernels import made_our_way
from npucompose_replay.inductor.sums import (
    ALL_AT_ONCE,
    CHAINS,
    FEW_ROWS,
    IN_PARTS,
    PART,
    PART_OF_FEW_ROWS,
    CppMicroGemmFP32Vec,
    in_parts,
    sums_in_parts,
)
from replay_tests.targets.micro_kernel import loaded

TORCHS = CppMicroGemmFP32Vec.TEMPLATE_KERNEL
ROWS, COLUMNS = 8, 32
"""Of the kernel's tile."""
INNER = (
    1,
    2,
    *(times * part + more for part in (PART_OF_FEW_ROWS, PART) for times in (1, 2, 3) for more in (-1, 0, 1)),
    1000,
)
CALLS = r"""
#include <c10/util/Unroll.h>
#include <torch/csrc/inductor/cpp_prefix.h>
%s
extern "C" void once(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {
    product<false>(a, b, c, m, n, k, k, n, n);
}
extern "C" void onto(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {
    product<true>(a, b, c, m, n, k, k, n, n);
}
"""
Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

VECTOR = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 0)
"""Numbers in a register."""

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def test_torch_s_kernel_has_the_loop_that_parts_take_the_place_of() -> None:
    """Where a torch writes it otherwise, this says so; the product goes on with that torch's sums."""
    assert TORCHS.count(ALL_AT_ONCE) == 1
    assert in_parts(TORCHS) == TORCHS.replace(ALL_AT_ONCE, IN_PARTS)


@pytest.mark.parametrize("other", ["", "for (int k = 0; k < K; ++k)", ALL_AT_ONCE * 2])
def test_a_kernel_of_another_text_stays_as_it_is(other: str) -> None:
    assert in_parts(other) == other


def test_only_kernels_that_are_made_inside_add_up_in_parts() -> None:
    with sums_in_parts():
        assert in_parts(TORCHS) == CppMicroGemmFP32Vec.TEMPLATE_KERNEL
    with made_our_way():
        assert "begin_part" in CppMicroGemmFP32Vec.TEMPLATE_KERNEL
    assert CppMicroGemmFP32Vec.TEMPLATE_KERNEL == TORCHS


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    """{"torch" or "parts": a product, "… onto": one that is added to ones}."""
    with made_our_way():
        ours = loaded(CALLS, ROWS, COLUMNS)
    torchs = loaded(CALLS, ROWS, COLUMNS)
    return {"torch": product(torchs, "once"), "parts": product(ours, "once"), "parts onto": product(ours, "onto")}


def product(library: Any, name: str) -> Kernel:
    function = getattr(library, name)
    function.argtypes, function.restype = [c_void_p] * 3 + [c_int64] * 3, None

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (rows, inner), columns = a.shape, b.shape[1]
        c = torch.ones(rows + 1, columns)
        function(a.data_ptr(), b.data_ptr(), c.data_ptr(), rows, columns, inner)
        assert (c[rows] == 1).all(), "it wrote behind the results"
        return c[:rows]

    return multiplied


def part_of_the_error(kernels: dict[str, Kernel], rows: int, inner: int) -> float:
    """Of torch's kernel, that is left in parts."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator) for size in ((rows, inner), (inner, 32 * COLUMNS)))
    wanted = a.double() @ b.double()
    ours, torchs = ((kernels[name](a, b) - wanted).norm().item() for name in ("parts", "torch"))
    return ours / torchs


@needs_compiler
@pytest.mark.parametrize("rows", [1, FEW_ROWS - 1, FEW_ROWS, ROWS, 2 * ROWS + 3])
@pytest.mark.parametrize("columns", [COLUMNS, 2 * COLUMNS, COLUMNS + 5, 3])
def test_every_term_is_added_once(kernels: dict[str, Kernel], rows: int, columns: int) -> None:
    """Sums of small integers are exact in any order."""
    for inner in INNER:
        a, b = (torch.randint(-8, 9, size).float() for size in ((rows, inner), (inner, columns)))
        assert torch.equal(kernels["parts"](a, b), a @ b), inner
        assert torch.equal(kernels["parts onto"](a, b), a @ b + 1), inner


@needs_compiler
def test_a_sum_of_one_part_has_the_bits_that_it_has_without_parts(kernels: dict[str, Kernel]) -> None:
    for rows, inner in ((FEW_ROWS, PART - 1), (ROWS, PART - 1)):
        a, b = torch.randn(rows, inner), torch.randn(inner, COLUMNS)
        assert torch.equal(kernels["parts"](a, b), kernels["torch"](a, b))
        a, b = torch.randn(rows, inner + 1), torch.randn(inner + 1, COLUMNS)
        assert not torch.equal(kernels["parts"](a, b), kernels["torch"](a, b)), "two parts"


@needs_compiler
@pytest.mark.skipif(not VECTOR, reason="the registers of another processor")
@pytest.mark.parametrize("rows", range(1, FEW_ROWS + 1))
def test_registers_take_the_terms_of_few_rows_in_turns(kernels: dict[str, Kernel], rows: int) -> None:
    """Bit for bit, in one part; the terms that are left over go to the first register."""
    sums, inner = rows * COLUMNS // VECTOR, PART_OF_FEW_ROWS - 1
    turns = 4 if sums < CHAINS / 2 else 2 if sums < CHAINS else 1
    a, b = torch.randn(rows, inner), torch.randn(inner, COLUMNS)
    registers = torch.zeros(turns, rows, COLUMNS)
    for k in range(inner):
        turn = k % turns if k < inner // turns * turns else 0
        registers[turn] = (registers[turn].double() + a[:, k : k + 1].double() * b[k].double()).float()
    while len(registers) > 1:
        registers = registers[::2] + registers[1::2]
    assert torch.equal(kernels["parts"](a, b), registers[0])


@needs_compiler
@pytest.mark.parametrize("rows", [1, ROWS])
def test_the_error_of_a_long_sum_is_at_most_half_of_what_it_is_without_parts(
    kernels: dict[str, Kernel], rows: int
) -> None:
    assert part_of_the_error(kernels, rows, 3072) < 0.5


@needs_compiler
@pytest.mark.parametrize("rows", [FEW_ROWS, ROWS])
def test_a_sum_of_more_terms_than_a_part_has_two_parts(kernels: dict[str, Kernel], rows: int) -> None:
    a, b = torch.randn(rows, PART), torch.randn(PART, COLUMNS)
    halves = (kernels["torch"](a[:, half].contiguous(), b[half]) for half in (slice(PART // 2), slice(PART // 2, PART)))
    assert torch.equal(kernels["parts"](a, b), sum(halves))


@needs_compiler
@pytest.mark.parametrize(("inner", "most"), [(256, 0.285), (512, 0.23), (3072, 0.1), (11008, 0.06)])
def test_the_error_of_few_rows_does_not_grow_with_the_number_of_parts(
    kernels: dict[str, Kernel], inner: int, most: float
) -> None:
    """That of parts added up without what is rounded off is 0.317, 0.267, 0.137 and 0.106 of torch's."""
    assert part_of_the_error(kernels, 1, inner) < most


@needs_compiler
def test_what_an_addition_of_parts_rounds_off_is_kept(kernels: dict[str, Kernel]) -> None:
    """Of 2**24 + 1 + ... + 1 - 2**24, one term to a part, float32 keeps none of the ones between the two."""
    inner = 8 * PART_OF_FEW_ROWS
    a, b = torch.zeros(1, inner), torch.ones(inner, COLUMNS)
    a[0, ::PART_OF_FEW_ROWS] = 1.0
    a[0, 0], a[0, -PART_OF_FEW_ROWS] = 2.0**24, -(2.0**24)
    assert (kernels["torch"](a, b) == 0).all()
    assert (kernels["parts"](a, b) == 6).all()
    assert (kernels["parts onto"](a, b) == 7).all()
