"""What the time of a kernel depends on, where a profile of an NPU says it: its family, and one size.

Read off a node of a graph and off a row of a profile in one way. The size is in bytes: what is moved, or for a matrix
product, where that is more, its operations divided by how many of them the device does while it moves a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen
from torch import fx

from npucompose.streams.calibrated import FAMILY
from npucompose.streams.cost import ResultSizes, flops_of, name_of

PRODUCTS = ("mm", "bmm", "npu_quant_matmul", "npu_weight_quant_batchmatmul")
SAME_KERNEL = {
    "addmm": "mm", "mv": "mm", "addmv": "mm", "baddbmm": "bmm", "_int_mm": "npu_quant_matmul",
    "_scaled_mm": "npu_quant_matmul", "square": "mul", "rsub": "sub", "mul_": "mul", "add_": "add", "sub_": "sub",
    "div_": "div", "relu_": "relu", "copy_": "copy", "fill_": "fill", "zero_": "zeros_like", "zeros": "zeros_like",
    "ones": "ones_like",
}  # fmt: skip
"""{operator of torch: the one whose kernel computes it, too}."""
UNMAPPED = "of its own"
"""The family of kernels that no operator of torch is known for."""


@frozen
class Feature:
    family: str
    operator: str
    size: float


def of_node(kernel: fx.Node, sizes: ResultSizes, flops_per_byte: float) -> Feature:
    name = name_of(kernel)
    operator = SAME_KERNEL.get(name, name)
    reads = [sizes[source][1] for source in kernel.all_input_nodes]
    elements, made = sizes[kernel]
    if operator in PRODUCTS:
        flops = flops_of(kernel, elements) or 0.0
        return Feature("product", operator, max(sum(reads) + made, flops / flops_per_byte))
    family = family_of(operator)
    return Feature(family, operator, _moved(family, reads, made))


def of_row(operator: str | None, type: str, reads: Sequence[float], made: float, flops: float) -> Feature:
    """`flops` are operations divided by `flops_per_byte`; `operator` None: a type that no operator is known for."""
    if operator is None:
        return Feature(UNMAPPED, type, max(sum(reads) + made, 1.0))
    if operator in PRODUCTS:
        return Feature("product", operator, max(sum(reads) + made, flops, 1.0))
    family = family_of(operator)
    return Feature(family, operator, _moved(family, reads, made))


def family_of(operator: str) -> str:
    """`family_of("gelu")` is "transcendental"."""
    if "attention" in operator:
        return "attention"
    return "convolution" if "convolution" in operator else FAMILY.get(operator, "pointwise")


def _moved(family: str, reads: Sequence[float], made: float) -> float:
    """Bytes that decide: of a table that is looked up only what is found, of what is updated only what is written."""
    if family == "gather":
        return max(2 * made, 1.0)
    if family == "update" and len(reads) > 1:
        return max(sum(reads[1:]), 1.0)
    return max(sum(reads) + made, 1.0)


def product_flops(left: Sequence[int], right: Sequence[int], made: Sequence[int]) -> float:
    """Operations of a matrix product, however its operands lie in memory: the product of their sizes and the result's
    is the square of rows x columns x depth. `product_flops((2, 3), (4, 3), (2, 4))` is 48; an empty product has none.
    """
    batch = math.prod(made[:-2]) if len(right) > 2 and len(made) > 2 else 1
    a, b, c = (math.prod(shape) for shape in (left, right, made))
    return 2.0 * math.sqrt(float(a) * float(b) * float(c) / batch) if batch else 0.0
