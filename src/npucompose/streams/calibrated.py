"""How long kernels take by a table: of this machine's times, or of an NPU's profile, whose entries are named.

What a kernel's time depends on, its family and one size, is read off a node of a graph and off a row of a profile in
one way, when the table is made and when a graph is looked up in it. The size is in bytes: what is moved, or for a
matrix product of an NPU, where that is more, its operations divided by how many the device does while it moves one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen
from torch import fx

from npucompose.results.streams import ProfileUse
from npucompose.schema.cost_table import CostTable, Estimate
from npucompose.schema.profile_table import ProfileEstimate, ProfileTable
from npucompose.streams.cost import ResultSizes, flops_of, name_of, roofline, rows_of
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

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
class Tabled:
    """The work of a graph's kernels, and by which share its time may be longer than they say."""

    work: tuple[Work, ...]
    spread: float
    use: ProfileUse | None = None
    """Of a profile: its files, and which of its rows were used."""


def calibrated(kernels: Sequence[fx.Node], table: CostTable, sizes: ResultSizes) -> Tabled:
    """By the table: one thread for a kernel of a stream, all of torch's threads where kernels run one by one."""
    found = [_estimate(kernel, table, sizes) for kernel in kernels]
    whole = sum(one.one_us for one in found)
    doubt = sum(one.one_us * one.doubt for one in found) / whole if whole else 0.0
    return Tabled(
        work=tuple(Work(us=one.one_us, in_a_row_us=one.all_us, vector=1) for one in found),
        spread=max(doubt, MODEL_DOUBT),
    )


def _estimate(kernel: fx.Node, table: CostTable, sizes: ResultSizes) -> Estimate:
    estimates = [table.estimate(one.family, one.operator, one.size) for one in features(kernel, sizes)]
    if name_of(kernel) == "copy_":  # a replay writes to where it would copy
        return Estimate(0.0, 0.0, 0.0)
    found = [one for one in estimates if one is not None]
    return max(found, key=lambda one: one.one_us) if found else Estimate(0.0, 0.0, 0.0)


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


def profiled(kernels: Sequence[fx.Node], table: ProfileTable, model: DeviceModel, sizes: ResultSizes) -> Tabled:
    """A profiled kernel keeps the cores that its shapes say, and takes the launch and the time of the table; one of
    whose family the table has nothing takes what the roofline says, and counts as sure as the others."""
    work: list[Work] = []
    entries: dict[str, int] = {}
    whole = doubt = 0.0
    found = 0
    for kernel, shaped in zip(kernels, roofline(kernels, model, sizes), strict=True):
        feature = of_node(kernel, sizes, table.flops_per_byte)
        guess = table.estimate(feature.family, feature.operator, feature.size)
        if guess is None:
            work.append(shaped)
            continue
        found += 1
        work.append(_timed(shaped, guess, model))
        entries.update(_entries(table, feature.family, guess))
        whole += guess.middle_us
        doubt += guess.high_us - guess.middle_us
    use = ProfileUse(
        files=table.files,
        soc=table.soc,
        cann=table.cann,
        digest=table.digest,
        kernels=found,
        by_shapes=len(kernels) - found,
        rows=sum(entries.values()),
        entries=entries,
    )
    return Tabled(tuple(work), max(doubt / whole if whole else 0.0, MODEL_DOUBT), use)


def _timed(shaped: Work, guess: ProfileEstimate, model: DeviceModel) -> Work:
    """A profile's duration is the kernel's alone; the launch lies between two of them. Arithmetic and memory are in the
    proportion of the roofline."""
    us = model.launch_us + guess.middle_us
    busy = shaped.us - shaped.fixed_us
    scale = guess.middle_us / busy if busy > 0 else 0.0
    divided = guess.middle_us if shaped.divided_us is None else shaped.divided_us * scale
    return evolve(
        shaped,
        us=us,
        in_a_row_us=None,
        fixed_us=model.launch_us,
        divided_us=divided,
        bandwidth=min(shaped.bandwidth * shaped.us * scale / us, 1.0),
    )


def _entries(table: ProfileTable, family: str, guess: ProfileEstimate) -> dict[str, int]:
    """{`mm at 4194304 bytes`: rows of the profile}."""
    known = table.families[family]
    rows = {(name, entry.size): entry.rows for name, entries in known.items() for entry in entries}
    return {f"{name} at {size:.0f} bytes": rows[name, size] for name, size in guess.samples}
