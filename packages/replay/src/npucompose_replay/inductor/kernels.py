"""How Inductor's C++ kernels are made here: flags of the compiler beside its own, and one thread for a small product.

Knows where Inductor makes a command line and where it counts the threads of a template (torch/_inductor/cpp_builder.py,
codegen/cpp_gemm_template.py; torch 2.7 to 2.13).

# Note [Sums of a product stay in registers]
The kernel of Inductor's templates for products (codegen/cpp_micro_gemm.py) keeps its sums in an array that nested
lambdas take by reference. GCC (12) splits an array into registers only while nothing has its address, so with these
lambdas not inlined every round of the inner loop writes all sums back to the stack, at a third of the speed on a Zen 5
(64x64 by 64x64: 6.0 us, and 2.0 with these flags, which are 260 GFLOP/s; 200x1536 by 1536x384: 2.5 ms, and 0.98). So
two limits of its inliner are raised, the size of what is inlined early and the frame that a function may get by it, and
no function is copied for its constant arguments before it is inlined. What is computed, and in which order, is the
same. Clang has no such flags, and was not tried.

# Note [Blocks of a Zen 5]
Inductor cuts a product's terms so that the piece of the weight that all rows meet fills 0.8 of the first cache (307
terms of 32 columns), and the rows so that all of their terms fill half of the second. A Zen 5 reads the piece from its
second cache as fast as it multiplies, and each cut costs: with 512 terms and 128 rows eight layers of 1024 columns with
128 rows took 95.8 ms in place of 100.1, oneDNN's products 96.2. 256 terms took 99.8, 192 104.5, 1024 97.4. On other
processors it was not measured, and Inductor's cuts stay.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder, select_algorithm  # noqa: F401  before the template, which its users import
from torch._inductor.codegen import cpp_gemm_template

from npucompose.machine import cpu_model
from npucompose_replay.inductor import prefetch as inductor_prefetch
from npucompose_replay.inductor.cache import replaced
from npucompose_replay.inductor.prefetch import fetching_ahead
from npucompose_replay.inductor.sums import IN_PARTS, sums_in_parts

GCC = ("-param=early-inlining-insns=10000", "-param=large-stack-frame=100000", "fno-ipa-cp-clone")
"""Without the hyphen that Inductor sets before each of its flags. See Note [Sums of a product stay in registers]."""
LONGEST, HIGHEST = 512, 128
"""Terms, and rows, of what a template multiplies at once. See Note [Blocks of a Zen 5]."""
LEAST_SHARED, MOST_READ = 1 << 20, 1 << 14
"""A product of fewer floating point operations, of operands of at most so many elements, is left to one thread: the
second of two gains less than it takes to wake it (two of 64x64 by 64x64: 17.2 us with two threads, 16.9 with one; of
twice as many rows 18.9 and 20.8). A row by a large matrix has few operations, and its time is that of reading. Inductor
shares every product."""
IDENTITY = "".join(
    (
        *GCC,
        f"{LONGEST} {HIGHEST} {LEAST_SHARED} {MOST_READ}",
        IN_PARTS,
        inductor_prefetch.IDENTITY,
    )
)
"""Of the kernels that are measured and kept."""


@contextlib.contextmanager
def made_our_way() -> Iterator[None]:
    """Kernels that Inductor makes inside."""
    with (
        _registers_used(),
        _larger_blocks(),
        _small_ones_on_one_thread(),
        sums_in_parts(),
        fetching_ahead(),
    ):
        yield


@contextlib.contextmanager
def _registers_used() -> Iterator[None]:
    builder: Any = cpp_builder
    flags_of = builder._get_os_related_cpp_cflags

    def flags(compiler: str) -> list[str]:
        ours = () if builder._is_clang(compiler) or not builder._is_gcc(compiler) else GCC
        return [*flags_of(compiler), *ours]

    with replaced(builder, "_get_os_related_cpp_cflags", flags):
        yield


@contextlib.contextmanager
def _larger_blocks() -> Iterator[None]:
    """Where Inductor cuts products into blocks. See Note [Blocks of a Zen 5]."""
    template: Any = cpp_gemm_template.CppGemmTemplate
    torchs = getattr(template, "_cache_blocking", None)
    if torchs is None or "AMD" not in cpu_model() or inductor_config.cpp.gemm_cache_blocking is not None:
        yield
        return

    def blocks(product: Any, num_threads: int) -> Any:
        cut, whole = torchs(product, num_threads), product.thread_blocking(num_threads)
        tile = product.register_blocking
        return type(cut)(
            max(cut.block_m, min(whole.block_m, HIGHEST // tile.block_m)),
            cut.block_n,
            max(cut.block_k, min(whole.block_k, LONGEST // tile.block_k)),
        )

    with replaced(template, "_cache_blocking", blocks):
        yield


@contextlib.contextmanager
def _small_ones_on_one_thread() -> Iterator[None]:
    module: Any = cpp_gemm_template
    add = module.CppGemmTemplate.__dict__["add_choices"].__func__

    def add_choices(
        cls: Any, choices: list[Any], layout: Any, operands: Sequence[Any], *more: Any, **named: Any
    ) -> Any:
        used = [operands[place] for place in named.get("input_indices") or range(len(operands))]
        alone = replaced(module, "parallel_num_threads", lambda: 1)
        with alone if _is_small(layout, used) else contextlib.nullcontext():
            return add(cls, choices, layout, operands, *more, **named)

    with replaced(module.CppGemmTemplate, "add_choices", classmethod(add_choices)):
        yield


def _is_small(layout: Any, operands: Sequence[Any]) -> bool:
    """Not where a size is a symbol."""
    try:
        read = [[int(size) for size in operand.get_size()] for operand in operands]
        results = math.prod(int(size) for size in layout.size)
    except TypeError:
        return False
    inner = max(sizes[-1] for sizes in read)  # or the columns: rather shared than not
    return 2 * results * inner < LEAST_SHARED and sum(map(math.prod, read)) <= MOST_READ
