"""The operators whose kernels the native replayer keeps set up, as a header for its sources.

`HELD` names operators whose structured kernel is kept set up from capture on, so that a replay calls only its `impl()`.
One line each: the overload that a plan calls, and ATen's class in `ATen/ops/<operator>_native.h`. A class that the
installed torch does not have is left out when the extension is built; its operator is then called like any other.
`python benchmarks/replay.py MODEL --steps` shows what each line brings.
"""

from __future__ import annotations

import re
from pathlib import Path

HELD: dict[str, str] = {
    "aten::add.out": "structured_ufunc_add_CPU",
    "aten::sub.out": "structured_sub_out",
    "aten::mul.out": "structured_mul_out",
    "aten::div.out": "structured_div_out",
    "aten::neg.out": "structured_neg_out",
    "aten::exp.out": "structured_exp_out",
    "aten::sin.out": "structured_sin_out",
    "aten::cos.out": "structured_cos_out",
    "aten::sqrt.out": "structured_sqrt_out",
    "aten::rsqrt.out": "structured_rsqrt_out",
    "aten::reciprocal.out": "structured_reciprocal_out",
    "aten::sigmoid.out": "structured_sigmoid_out",
    "aten::tanh.out": "structured_tanh_out",
    "aten::silu.out": "structured_silu_out",
    "aten::gelu.out": "structured_gelu_out_cpu",
    "aten::clamp_min.out": "structured_clamp_min_out",
    "aten::maximum.out": "structured_maximum_out",
    "aten::minimum.out": "structured_minimum_out",
    "aten::pow.Tensor_Scalar_out": "structured_pow_Tensor_Scalar_out",
    "aten::mean.out": "structured_mean_out",
    "aten::sum.IntList_out": "structured_sum_out",
    "aten::_softmax.out": "structured_softmax_cpu_out",
    "aten::mm.out": "structured_mm_out_cpu",
    "aten::bmm.out": "structured_bmm_out_cpu",
    "aten::addmm.out": "structured_addmm_out_cpu",
    "aten::scatter_.src": "structured_scatter_src_out",
}


def header(include: Path) -> str:
    """`held_kernels.inc` for the torch whose headers lie in `include`: includes, the table, the names it lacks."""
    # scatter_ stands beside scatter
    names = {operator: operator.removeprefix("aten::").split(".")[0].rstrip("_") for operator in HELD}
    paths = {operator: f"ATen/ops/{name}_native.h" for operator, name in names.items()}
    found = {operator: path for operator, path in paths.items() if _declares(include / path, HELD[operator])}
    lacking = [operator for operator in HELD if operator not in found]
    includes = "\n".join(f"#include <{path}>" for path in dict.fromkeys(found.values()))
    table = " \\\n".join(f'  X("{operator}", {HELD[operator]})' for operator in found)
    return "\n".join(
        (
            "#pragma once",
            includes,
            "#define NPUCOMPOSE_HELD(X) \\",
            table,
            f'#define NPUCOMPOSE_LACKING "{" ".join(lacking)}"',
            "",
        )
    )


def _declares(file: Path, kernel: str) -> bool:
    return file.is_file() and re.search(rf"struct TORCH_API {kernel}\b", file.read_text()) is not None
