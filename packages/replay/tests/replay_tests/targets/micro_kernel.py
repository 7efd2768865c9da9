"""Inductor's micro kernel for float32 products, as the torch at hand writes it or as a block around the call has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor.codecache import CppCodeCache
from torch._inductor.codegen.cpp_micro_gemm import CppMicroGemmFP32Vec
from torch._inductor.codegen.cpp_utils import GemmBlocking


def loaded(around: str, rows: int, columns: int) -> Any:
    """The library of `around`, C++ in which the kernel, called `product`, stands for %s; `rows` x `columns` is its
    tile."""
    blocking = GemmBlocking(rows, columns, 1)
    kernel = CppMicroGemmFP32Vec("product", *[torch.float32] * 4, blocking, tail_n=True)
    words: Any = SimpleNamespace(assert_function="TORCH_CHECK")
    return CppCodeCache.load(around % kernel.codegen_define(words))
