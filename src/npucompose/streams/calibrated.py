"""How long kernels take by the table of times of this machine, which knows operators' families and sizes.

A kernel's family and size are read off it in one way, when the table is made and when a graph is looked up in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen
from torch import fx

from npucompose.schema.cost_table import CostTable, Estimate
from npucompose.streams.cost import ResultSizes, flops_of, name_of, rows_of
from npucompose.streams.simulate import Work

_OPERATORS: Mapping[str, str] = {
    "normalisation": """
        _softmax _log_softmax native_layer_norm native_group_norm native_batch_norm _fused_rms_norm
        _native_batch_norm_legit _native_batch_norm_legit_no_training""",
    "reduction": """
        sum mean amax amin max min argmax argmin prod var std var_mean std_mean any all norm linalg_vector_norm cumsum
        cumprod logsumexp logcumsumexp count_nonzero max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d""",
    "selection": "topk sort argsort kthvalue median multinomial nonzero",
    "gather": "embedding index index_select gather take grid_sampler_2d",
    "update": """
        scatter scatter_ scatter_add scatter_reduce index_put index_put_ index_add index_copy masked_scatter
        slice_scatter select_scatter as_strided_scatter""",
    "copy": """
        clone copy cat stack _to_copy constant_pad_nd fill fill_ zero_ zeros zeros_like ones ones_like full full_like
        empty empty_like new_zeros new_full arange scalar_tensor repeat roll flip tril triu lift_fresh_copy""",
    "transcendental": """
        exp exp2 expm1 log log2 log10 log1p tanh sigmoid gelu silu mish erf erfc erfinv pow sin cos tan asin acos atan
        atan2 sinh cosh softplus elu celu logit log_sigmoid_forward lgamma digamma hardswish""",
}
"""{family: its operators}; any other operator is taken to be pointwise."""
FAMILY = {name: family for family, names in _OPERATORS.items() for name in names.split()}
FEW_ROWS = 8
"""A product of so few rows reads its matrix once and does little with it: memory is what takes its time."""


@frozen
class Feature:
    family: str
    operator: str
    size: float


def features(kernel: fx.Node, sizes: ResultSizes) -> tuple[Feature, ...]:
    """What the kernel's time may depend on; the longest of them counts (a roofline).

    `aten.mm` of 1 x 512 by 512 x 512 is a "product of few rows" of its bytes; of 64 rows a "product" of 2 * 64 * 512 *
    512 operations that is no shorter than reading its bytes as the other one. A pointwise operator moves bytes.
    """
    name = name_of(kernel)
    made = sizes[kernel][1]
    read = sum(sizes[source][1] for source in kernel.all_input_nodes)
    flops = flops_of(kernel, sizes[kernel][0])
    if flops is not None:
        return _product(kernel, name, flops, read + made)
    family = FAMILY.get(name, "pointwise")
    if family in ("reduction", "selection"):
        return (Feature(family, name, max(read, made)),)
    if family == "update":  # the rest of what is updated is not touched, where it need not be kept
        return (Feature(family, name, sum(sizes[source][1] for source in kernel.all_input_nodes[1:])),)
    if family in ("gather", "transcendental"):
        return (Feature(family, name, 2 * made),)  # of a table that is looked up only what is found
    return (Feature(family, name, read + made),)


def _product(kernel: fx.Node, name: str, flops: float, nbytes: float) -> tuple[Feature, ...]:
    if "attention" in name:
        return (Feature("attention", name, flops),)
    if "convolution" in name:
        return (Feature("convolution", name, flops),)
    rows = Feature("product of few rows", name, nbytes)
    return (rows,) if rows_of(kernel) <= FEW_ROWS else (rows, Feature("product", name, flops))


MODEL_DOUBT = 0.15
"""No table is surer of a graph: its kernels run on other shapes, in warmer or colder caches, and beside each other."""


@frozen
class Calibrated:
    """The work of a graph's kernels, and by which share its time may be longer than they say."""

    work: tuple[Work, ...]
    spread: float


def calibrated(kernels: Sequence[fx.Node], table: CostTable, sizes: ResultSizes) -> Calibrated:
    """By the table: one thread for a kernel of a stream, all of torch's threads where kernels run one by one."""
    found = [_estimate(kernel, table, sizes) for kernel in kernels]
    whole = sum(one.one_us for one in found)
    doubt = sum(one.one_us * one.doubt for one in found) / whole if whole else 0.0
    return Calibrated(
        work=tuple(Work(us=one.one_us, in_a_row_us=one.all_us, vector=1) for one in found),
        spread=max(doubt, MODEL_DOUBT),
    )


def _estimate(kernel: fx.Node, table: CostTable, sizes: ResultSizes) -> Estimate:
    estimates = [table.estimate(one.family, one.operator, one.size) for one in features(kernel, sizes)]
    if name_of(kernel) == "copy_":  # a replay writes to where it would copy
        return Estimate(0.0, 0.0, 0.0)
    found = [one for one in estimates if one is not None]
    return max(found, key=lambda one: one.one_us) if found else Estimate(0.0, 0.0, 0.0)
