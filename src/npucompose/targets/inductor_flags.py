"""Flags of the C++ compiler that Inductor's kernels are built with here, beside Inductor's own.

Knows where Inductor makes a command line (torch/_inductor/cpp_builder.py; torch 2.7 to 2.13).

# Note [Sums of a product stay in registers]
The kernel of Inductor's templates for products (codegen/cpp_micro_gemm.py) keeps its sums in an array that nested
lambdas take by reference. GCC (12) splits an array into registers only while nothing has its address, so with these
lambdas not inlined every round of the inner loop writes all sums back to the stack, at a third of the speed on a Zen 5
(64x64 by 64x64: 6.0 us, and 2.0 with these flags, which are 260 GFLOP/s; 200x1536 by 1536x384: 2.5 ms, and 0.98). So
two limits of its inliner are raised, the size of what is inlined early and the frame that a function may get by it, and
no function is copied for its constant arguments before it is inlined. What is computed, and in which order, is the
same. Clang needs nothing of the kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._inductor import cpp_builder

from npucompose.targets.inductor_cache import replaced

GCC = ("-param=early-inlining-insns=10000", "-param=large-stack-frame=100000", "fno-ipa-cp-clone")
"""Without the hyphen that Inductor sets before each of its flags. See Note [Sums of a product stay in registers]."""
IDENTITY = "".join(GCC)
"""Of the kernels that were measured: which one is faster depends on the flags."""


@contextlib.contextmanager
def registers_used() -> Iterator[None]:
    """Kernels that Inductor compiles inside are built with these flags too, where its compiler takes them."""
    builder: Any = cpp_builder
    flags_of = builder._get_os_related_cpp_cflags

    def flags(compiler: str) -> list[str]:
        ours = () if builder._is_clang(compiler) or not builder._is_gcc(compiler) else GCC
        return [*flags_of(compiler), *ours]

    with replaced(builder, "_get_os_related_cpp_cflags", flags):
        yield
