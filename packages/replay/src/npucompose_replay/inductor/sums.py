"""The sums of Inductor's templates for products, in parts: smaller rounding errors at the same speed.

Knows the text of one kernel of Inductor's (torch/_inductor/codegen/cpp_micro_gemm.py, CppMicroGemmFP32Vec; torch 2.7 to
2.14); where it reads otherwise, it stays as it is.

# Note [Sums in parts]
A kernel that adds all terms of a sum to one register rounds after each, and most of its roundings are those of nearly
the whole sum: the error grows with the number of terms. In parts of b of n terms, each added up from zero, it grows
with b + n / b (blocked summation: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2).
The parts are added to the tile of results, which lies in the first cache, once in 64 terms (MKL: once in 192; on a
Zen 5 both take the same time); 64 terms and up to twice as many have two parts.

A product of few rows, whose time is that of reading the weight, has registers to spare. A part has 32 terms, added up
in two or four registers, which take them in turns: a multiplication and addition need not wait for the one before it,
and each register has a half or a quarter of the terms. The parts are added up in a register beside which a second one
keeps what each addition rounds off (compensated summation: the same book, section 4.3; Knuth's sum of two, exact
whichever is larger), so that the error does not grow with the number of parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._inductor import select_algorithm  # noqa: F401  before the kernel, which its users import
from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmFP32Vec

from npucompose_replay.inductor.cache import replaced

PART, PART_OF_FEW_ROWS, FEW_ROWS = 64, 32, 4
CHAINS = 8
"""Sums that a processor adds to at once: two in each cycle, which are there after four."""
ALL_AT_ONCE = r"""
    for (int k = 0; k < K; ++k) {
        c10::ForcedUnroll<ROWS * COLS>{}(compute, k);
    }
"""
IN_PARTS = rf"""
    constexpr int TURNS = ROWS * COLS < {CHAINS} / 2 ? 4 : ROWS * COLS < {CHAINS} ? 2 : 1;
    std::array<decltype(vc), TURNS == 1 ? 0 : TURNS> turns;
    auto begin_part = [&](auto i) {{
        vc[i] = Vectorized(0.0f);
        for (auto& sums : turns) sums[i] = vc[i];
    }};
    auto in_turn = [&](auto turn, int k) {{
        vc = turns[turn];
        c10::ForcedUnroll<ROWS * COLS>{{}}(compute, k + turn);
        turns[turn] = vc;
    }};
    std::array<decltype(vc), ROWS < {FEW_ROWS} ? 2 : 0> total;
    if constexpr (ROWS < {FEW_ROWS}) {{
        total[0] = vc;
        for (int i = 0; i < ROWS * COLS; ++i) total[1][i] = Vectorized(0.0f);
    }}
    auto end_part = [&](auto i, bool is_first, bool is_last) {{
        constexpr int row = i / COLS;
        constexpr int col = i % COLS;
    {{%- if tail_n %}}
        if (col >= rCOLS) return;
        const int size = (col == rCOLS - 1 && ntail != 0) ? ntail : VLEN;
    {{%- else %}}
        constexpr int size = VLEN;
    {{%- endif %}}
        if constexpr (TURNS == 2) vc[i] = turns[0][i] + turns[1][i];
        if constexpr (TURNS == 4) vc[i] = (turns[0][i] + turns[1][i]) + (turns[2][i] + turns[3][i]);
        auto* tile = C + row * ldc + col * VLEN;
        if constexpr (ROWS < {FEW_ROWS}) {{
            const auto sum = total[0][i] + vc[i], added = sum - total[0][i];
            total[1][i] = total[1][i] + ((total[0][i] - (sum - added)) + (vc[i] - added));
            total[0][i] = sum;
            vc[i] = sum + total[1][i];
        }} else {{
            if (accum || !is_first) vc[i] = vc[i] + Vectorized::loadu(tile, size);
            if (!is_last) vc[i].store(tile, size);
        }}
    }};
    const int64_t wanted = ROWS < {FEW_ROWS} ? {PART_OF_FEW_ROWS} : {PART};
    const int64_t parts = std::max<int64_t>(K < {PART} ? 1 : 2, K / wanted), length = (K + parts - 1) / parts;
    for (int64_t begin = 0; begin < K; begin += length) {{
        const int end = std::min<int64_t>(K, begin + length);
        c10::ForcedUnroll<ROWS * COLS>{{}}(begin_part);
        if constexpr (TURNS > 1) {{
            int k = begin;
            for (; k + TURNS <= end; k += TURNS) {{
                c10::ForcedUnroll<TURNS>{{}}(in_turn, k);
            }}
            for (; k < end; ++k) {{
                c10::ForcedUnroll<1>{{}}(in_turn, k);
            }}
        }} else {{
            for (int k = begin; k < end; ++k) {{
                c10::ForcedUnroll<ROWS * COLS>{{}}(compute, k);
            }}
        }}
        c10::ForcedUnroll<ROWS * COLS>{{}}(end_part, begin == 0, end == K);
    }}
"""
"""What is added to the results at once."""


def in_parts(template: str) -> str:
    """The text of the kernel with its sums in parts; as it is where Inductor writes it otherwise."""
    return template.replace(ALL_AT_ONCE, IN_PARTS) if template.count(ALL_AT_ONCE) == 1 else template


@contextlib.contextmanager
def sums_in_parts() -> Iterator[None]:
    """Of the templates that Inductor makes kernels of inside. See Note [Sums in parts]."""
    with replaced(CppMicroGemmFP32Vec, "TEMPLATE_KERNEL", in_parts(CppMicroGemmFP32Vec.TEMPLATE_KERNEL)):
        yield
