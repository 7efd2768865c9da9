"""Operators for which TorchAir has no GE converter: what it converts in their place. Importing this loads no torch."""

from __future__ import annotations

ADAPTED = frozenset(
    f"aten.{name}"
    for name in (
        "all.dim", "amax.default", "amin.default", "clamp_max.default", "count_nonzero.dim_IntList", "dot.default",
        "erfc.default", "exp2.default", "frac.default", "hardshrink.default", "index_copy.default", "index_put.default",
        "isnan.default", "isneginf.default", "isposinf.default", "logical_xor.default", "mv.default",
        "silu_backward.default", "softplus.default", "trunc.default",
    )
)  # fmt: skip
"""Operators without a converter that adapt=ascend replaces; a test compares it with that file."""
SCALAR = ("aten._local_scalar_dense.default", "aten.item.default")
ON_DEVICE = "torchair.ops.npu_fused_infer_attention_score, which takes them as a tensor"
NUMBERS = (
    "numbers that the caller gives: a list[int] as an argument of forward, which shapes=dynamic makes symbols; "
    f"for attention also {ON_DEVICE}"
)


def taken_instead(operator: str) -> str:
    """What TorchAir converts in place of `aten.softplus.default`, as far as that is known."""
    if is_scalar(operator):
        return NUMBERS
    if operator in ADAPTED:
        return f"adapt=ascend  # its rules make operators with a converter of {operator.rpartition('.')[0]}"
    name = operator.rpartition(".")[0]
    ways = "mode=npugraph_ex, which captures operators and converts none"
    return f"target.decompose=[{name}]  # torch takes it apart; or {ways}" if _decomposes(operator) else ways


def is_scalar(operator: str) -> bool:
    """Whether it turns data into a number; the name may lack `.default`."""
    return any(operator in (full, full.removesuffix(".default")) for full in SCALAR)


def _decomposes(operator: str) -> bool:
    from torch._decomp import decomposition_table

    return any(str(known) == operator for known in decomposition_table)
