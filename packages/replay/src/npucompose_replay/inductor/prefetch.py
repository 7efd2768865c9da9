"""Inductor's templates for products fetch what they read next of a packed weight, while they compute.

Knows the text of one kernel of Inductor's (torch/_inductor/codegen/cpp_micro_gemm.py, CppMicroGemmFP32Vec; torch 2.7 to
2.14); where it reads otherwise, it stays as it is.

# Note [The next piece of a weight]
A template multiplies all rows by a piece of a packed weight, some rows in each round, and then by the piece that lies
behind it. The first round waited for every line of its piece; the others find it in the first cache. Here each step of
each round fetches an even share of the next piece into the second cache, and nobody waits: 64x384 by 384x1536 took
674 us of one Xeon's core, and takes 514, 16 rows 237 and 156. Rows of half a round and less take as long as the weight
takes to be read, which the processor does ahead of them by itself: a fetch only costs there (2 to 4 %).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torch._inductor import select_algorithm  # noqa: F401  before the kernel, which its users import
from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmFP32Vec

from npucompose_replay.inductor.cache import replaced

ROUNDS = "    for (int64_t m = 0; m < M; m += {{block_m}}) {\n"
SHARES = """    const bool is_packed = N == {{block_n}} && ldb == {{block_n}};
    const int64_t sharing = is_packed ? (M + {{block_m}} / 2 - 1) / {{block_m}} : 0;
    const int64_t share = sharing ? (ldb * sizeof(*B) + sharing - 1) / sharing : 0;
"""
"""Bytes that a step of a round fetches, where the piece behind this one is the next."""
CALLED = re.compile(r"\bldc\n(\s*\);)")
CALLED_WITH = r"""ldc,
                    reinterpret_cast<const char*>(B + K * ldb) + m / {{block_m}} * K * share,
                    m / {{block_m}} < sharing ? share : 0
\1"""
CALLS = 3
"""Of a kernel for whole rounds, for the rest of the rows and for the rest of the columns."""
TAKEN = "    int64_t ldc\n) {"
TAKEN_WITH = "    int64_t ldc,\n    const char* ahead,\n    int64_t share\n) {"
STEP = "c10::ForcedUnroll<ROWS * COLS>{}(compute, k);"
FETCH = "for (int64_t at = 0; at < share; at += 64) __builtin_prefetch(ahead + k * share + at, 0, 2);\n            "
"""Each line of the share that begins with this step; a line that two steps share is asked for twice. Not inside of
`compute`: GCC (12) would not keep the sums in registers any more (inductor_kernels.py)."""
IDENTITY = f"{SHARES}{CALLED_WITH}{FETCH}"


def fetching(entry: str, kernel: str) -> tuple[str, str]:
    """The texts of the rounds and of one round, with the next piece fetched; as they are where Inductor writes them
    otherwise."""
    counts = [text.count(part) for text, part in ((entry, ROUNDS), (kernel, TAKEN), (kernel, STEP))]
    if counts != [1, 1, 1] or len(CALLED.findall(entry)) != CALLS:
        return entry, kernel
    entry = CALLED.sub(CALLED_WITH, entry.replace(ROUNDS, SHARES + ROUNDS))
    return entry, kernel.replace(TAKEN, TAKEN_WITH).replace(STEP, FETCH + STEP)


@contextlib.contextmanager
def fetching_ahead() -> Iterator[None]:
    """In the templates that Inductor makes kernels of inside. See Note [The next piece of a weight]."""
    entry, kernel = fetching(CppMicroGemmFP32Vec.TEMPLATE_ENTRY, CppMicroGemmFP32Vec.TEMPLATE_KERNEL)
    with (
        replaced(CppMicroGemmFP32Vec, "TEMPLATE_ENTRY", entry),
        replaced(CppMicroGemmFP32Vec, "TEMPLATE_KERNEL", kernel),
    ):
        yield
