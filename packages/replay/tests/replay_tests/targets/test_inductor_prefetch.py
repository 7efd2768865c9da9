"""The kernel of Inductor's templates fetches the next piece of a packed weight: each line of it, and the same sums."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p

import pytest
import torch

from npucompose.machine import compiler
from npucompose_replay.inductor.kernels import made_our_way
from npucompose_replay.inductor.prefetch import FETCH, ROUNDS, STEP, TAKEN, CppMicroGemmFP32Vec, fetching
from npucompose_replay.inductor.sums import sums_in_parts
from replay_tests.targets.micro_kernel import loaded

TORCHS = CppMicroGemmFP32Vec.TEMPLATE_ENTRY, CppMicroGemmFP32Vec.TEMPLATE_KERNEL
ROWS, COLUMNS = 8, 48
"""Of the kernel's tile."""
LINE = 64
NOTED = r"""
#include <c10/util/Unroll.h>
#include <torch/csrc/inductor/cpp_prefix.h>
#include <vector>
static std::vector<int64_t> noted;
static const char* after;
#define __builtin_prefetch(place, ...) noted.push_back((place) - after)
%s
extern "C" int64_t product_of(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k, int64_t ldb,
                              int64_t* fetched) {
    noted.clear();
    after = reinterpret_cast<const char*>(b + k * ldb);
    product<false>(a, b, c, m, n, k, k, ldb, n);
    std::copy(noted.begin(), noted.end(), fetched);
    return noted.size();
}
"""
Product = Callable[..., tuple[torch.Tensor, list[int]]]

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def test_torch_s_kernel_has_the_lines_that_a_fetch_is_written_between() -> None:
    """Where a torch writes it otherwise, this says so; the product goes on as that torch computes it."""
    entry, kernel = fetching(*TORCHS)
    assert kernel.count(FETCH + STEP) == 1
    assert entry.count("sharing ? share : 0") == 3
    with sums_in_parts():
        assert fetching(TORCHS[0], CppMicroGemmFP32Vec.TEMPLATE_KERNEL)[1].count(FETCH + STEP) == 1


@pytest.mark.parametrize("part", [ROUNDS, "ldc\n"])
def test_rounds_of_another_text_stay_as_they_are_and_the_kernel_with_them(part: str) -> None:
    other = TORCHS[0].replace(part, ""), TORCHS[1]
    assert fetching(*other) == other


@pytest.mark.parametrize("part", [TAKEN, STEP])
def test_a_kernel_of_another_text_stays_as_it_is_and_its_rounds_with_it(part: str) -> None:
    for text in (TORCHS[1].replace(part, ""), TORCHS[1] + part):
        assert fetching(TORCHS[0], text) == (TORCHS[0], text)


def test_only_kernels_that_are_made_inside_fetch() -> None:
    with made_our_way():
        assert FETCH in CppMicroGemmFP32Vec.TEMPLATE_KERNEL
        assert "sharing" in CppMicroGemmFP32Vec.TEMPLATE_ENTRY
    assert (CppMicroGemmFP32Vec.TEMPLATE_ENTRY, CppMicroGemmFP32Vec.TEMPLATE_KERNEL) == TORCHS


@pytest.fixture(scope="module")
def product() -> Product:
    """Of rows and a piece of a packed weight; the bytes behind the piece that it fetched from."""
    with made_our_way():
        function = loaded(NOTED, ROWS, COLUMNS).product_of
    function.argtypes, function.restype = [c_void_p] * 3 + [c_int64] * 4 + [c_void_p], c_int64

    def multiplied(a: torch.Tensor, b: torch.Tensor, columns: int = COLUMNS) -> tuple[torch.Tensor, list[int]]:
        (rows, inner), (_, width) = a.shape, b.shape
        c = torch.empty(rows, columns)
        fetched = torch.empty(4 * rows * inner * (width * 4 // LINE + 1), dtype=torch.int64)
        places = [tensor.data_ptr() for tensor in (a, b, c)]
        count = function(*places, rows, columns, inner, width, fetched.data_ptr())
        return c, fetched[:count].tolist()

    return multiplied


@needs_compiler
@pytest.mark.parametrize("inner", [1, 7, 192, 204])
@pytest.mark.parametrize("rows", [5, 8, 12, 13, 16, 24, 64, 203])
def test_each_line_of_the_next_piece_is_fetched_and_none_behind_it(product: Product, rows: int, inner: int) -> None:
    a, b = torch.randint(-8, 9, (rows, inner)).float(), torch.randint(-8, 9, (inner, COLUMNS)).float()
    result, fetched = product(a, b)
    assert torch.equal(result, a @ b)
    size = inner * COLUMNS * 4
    rounds = -(-rows // ROWS)
    assert {place // LINE for place in fetched} >= set(range(size // LINE))
    assert min(fetched) == 0
    assert max(fetched) < size + (inner + LINE) * rounds, "rounded up to bytes in each step, and to a line"


@needs_compiler
@pytest.mark.parametrize(("rows", "width", "columns"), [(4, COLUMNS, COLUMNS), (8, 2 * COLUMNS, COLUMNS), (8, 48, 40)])
def test_few_rows_and_what_is_not_packed_fetch_nothing(product: Product, rows: int, width: int, columns: int) -> None:
    a, b = torch.randn(rows, 100), torch.randn(100, width)
    result, fetched = product(a, b, columns)
    assert fetched == []
    torch.testing.assert_close(result, (a @ b)[:, :columns])


@needs_compiler
def test_few_rows_at_the_end_leave_the_fetching_to_those_before(product: Product) -> None:
    a, b = torch.randn(ROWS + ROWS // 2, 50), torch.randn(50, COLUMNS)
    assert len(product(a, b)[1]) == len(product(a[:ROWS].contiguous(), b)[1])
