"""Weights in a layout of a library's own, by how they were made: the plain weight, and for which inputs.

Nobody can look into one and no file can hold it; packing is quick, and what it gives follows from the two. Before that
is relied on, a product (or a convolution) by the weight packed again is compared with one by the weight at hand, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from attrs import frozen

from npucompose.bits import same_bytes
from npucompose_replay.operands import flat
from npucompose_replay.plan import Plan, PlanSlot, Step

_PRODUCTS = {
    ("mkl::_mkl_linear", ""): (0, 1, "mkl"),
    ("mkldnn::_linear_pointwise", ""): (0, 1, "onednn"),
    ("mkldnn::_convolution_pointwise", ""): (0, 1, "onednn convolution"),
    ("mkldnn::_convolution_pointwise", "binary"): (0, 2, "onednn convolution"),
    ("mkldnn::_convolution_pointwise_", "binary"): (1, 2, "onednn convolution"),
    ("mkldnn::_convolution_transpose_pointwise", ""): (0, 1, "onednn transposed convolution"),
}
"""{operator and overload: which of its arguments is x, which the weight, and the way the weight was packed}."""
_LISTS = {"onednn convolution": 3, "onednn transposed convolution": 4}
"""Padding, output padding of the transposed, stride, dilation: before the groups."""


@frozen(kw_only=True, eq=False)
class PackedWeight:
    """`packing[way](plain, *given)` is the weight."""

    way: str
    plain: torch.Tensor
    given: tuple[Any, ...]
    """Rows of x; of a convolution what follows the filter (padding and so on) up to the groups, and the sizes of x."""


def _by_mkl(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkl._mkl_reorder_linear_weight(plain, rows)


def _by_onednn(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(plain, rows)


def _filter_by_onednn(plain: torch.Tensor, *given: Any) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_convolution_weight(plain, *given)


def _transposed_filter_by_onednn(plain: torch.Tensor, *given: Any) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_convolution_transpose_weight(plain, *given)


packing: dict[str, Callable[..., torch.Tensor]] = {
    "mkl": _by_mkl,
    "onednn": _by_onednn,
    "onednn convolution": _filter_by_onednn,
    "onednn transposed convolution": _transposed_filter_by_onednn,
}


def is_opaque(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_mkldnn


def packed_in(plan: Plan) -> list[torch.Tensor]:
    """The packed weights of a plan, each once."""
    return list({id(leaf): leaf for step in plan.steps for leaf in flat(step.args) if is_opaque(leaf)}.values())


def how_packed(step: Step, position: int) -> PackedWeight | None:
    """How the argument of a step was made; None where that is not known, or would give other bits."""
    schema = step.op._schema
    of_x, of_weight, way = _PRODUCTS.get((schema.name, schema.overload_name), (0, -1, ""))
    x, packed = step.args[of_x], step.args[position]
    if position != of_weight or not isinstance(x, PlanSlot):
        return None
    shape = x.layout.shape
    if way == "mkl":
        found = PackedWeight(way=way, plain=_tensor(step.args[2]), given=(step.args[4],))
    elif way == "onednn":
        found = PackedWeight(way=way, plain=packed.to_dense(), given=(prod(shape[:-1]),))
    else:
        first = of_weight + 2  # past the bias
        *lists, groups = step.args[first : first + _LISTS[way] + 1]
        plain = packed.to_dense() if way == "onednn convolution" else _inputs_first(packed.to_dense(), groups)
        found = PackedWeight(way=way, plain=plain, given=(*map(list, lists), groups, list(shape)))
    sample = torch.rand(shape, dtype=torch.float32).to(x.layout.dtype)
    again = packing[found.way](found.plain, *found.given)
    products = [_product(found, sample, weight) for weight in (packed, again)]
    return found if same_bytes(*products) else None


def _inputs_first(filters: torch.Tensor, groups: int) -> torch.Tensor:
    """Of a transposed convolution: torch's filters have inputs before outputs, oneDNN's outputs before inputs."""
    outputs, inputs, *sizes = filters.shape
    apart = filters.reshape(groups, outputs // groups, inputs, *sizes)
    return apart.transpose(1, 2).reshape(groups * inputs, outputs // groups, *sizes)


def _tensor(value: Any) -> torch.Tensor:
    return value.layout.over(value.root.contents.untyped_storage()) if isinstance(value, PlanSlot) else value


def _product(found: PackedWeight, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if found.way == "mkl":
        return torch.ops.mkl._mkl_linear(x, weight, found.plain, None, *found.given)
    none: Sequence[Any] = ()
    if found.way == "onednn":
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", none, "")
    convolve = (
        torch.ops.mkldnn._convolution_pointwise
        if found.way == "onednn convolution"
        else torch.ops.mkldnn._convolution_transpose_pointwise
    )
    return convolve(x, weight, None, *found.given[:-1], "none", none, "")
