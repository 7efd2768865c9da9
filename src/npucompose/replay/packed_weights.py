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

from npucompose.replay.operands import flat, same_bytes
from npucompose.replay.plan import Plan, PlanSlot, Step

_PRODUCTS = {
    ("mkl::_mkl_linear", ""): (0, 1),
    ("mkldnn::_linear_pointwise", ""): (0, 1),
    ("mkldnn::_convolution_pointwise", ""): (0, 1),
    ("mkldnn::_convolution_pointwise", "binary"): (0, 2),
    ("mkldnn::_convolution_pointwise_", "binary"): (1, 2),
}
"""{operator and overload: which of its arguments is x, and which the weight}."""


@frozen(kw_only=True, eq=False)
class PackedWeight:
    """`packing[way](plain, *given)` is the weight."""

    way: str
    plain: torch.Tensor
    given: tuple[Any, ...]
    """Rows of x; of a convolution padding, stride, dilation, groups and the sizes of x."""


def _by_mkl(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkl._mkl_reorder_linear_weight(plain, rows)


def _by_onednn(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(plain, rows)


def _filter_by_onednn(plain: torch.Tensor, *given: Any) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_convolution_weight(plain, *given)


packing: dict[str, Callable[..., torch.Tensor]] = {
    "mkl": _by_mkl,
    "onednn": _by_onednn,
    "onednn convolution": _filter_by_onednn,
}


def is_opaque(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_mkldnn


def packed_in(plan: Plan) -> list[torch.Tensor]:
    """The packed weights of a plan, each once."""
    return list({id(leaf): leaf for step in plan.steps for leaf in flat(step.args) if is_opaque(leaf)}.values())


def how_packed(step: Step, position: int) -> PackedWeight | None:
    """How the argument of a step was made; None where that is not known, or would give other bits."""
    name = step.op._schema.name
    of_x, of_weight = _PRODUCTS.get((name, step.op._schema.overload_name), (0, -1))
    x, packed = step.args[of_x], step.args[position]
    if position != of_weight or not isinstance(x, PlanSlot):
        return None
    shape = x.layout.shape
    if name == "mkl::_mkl_linear":
        found = PackedWeight(way="mkl", plain=_tensor(step.args[2]), given=(step.args[4],))
    elif name == "mkldnn::_linear_pointwise":
        found = PackedWeight(way="onednn", plain=packed.to_dense(), given=(prod(shape[:-1]),))
    else:
        padding, stride, dilation, groups = step.args[of_weight + 2 : of_weight + 6]
        given = (list(padding), list(stride), list(dilation), groups, list(shape))
        found = PackedWeight(way="onednn convolution", plain=packed.to_dense(), given=given)
    sample = torch.rand(shape, dtype=torch.float32).to(x.layout.dtype)
    again = packing[found.way](found.plain, *found.given)
    products = [_product(found, sample, weight) for weight in (packed, again)]
    return found if same_bytes(*products) else None


def _tensor(value: Any) -> torch.Tensor:
    return value.layout.over(value.root.contents.untyped_storage()) if isinstance(value, PlanSlot) else value


def _product(found: PackedWeight, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if found.way == "mkl":
        return torch.ops.mkl._mkl_linear(x, weight, found.plain, None, *found.given)
    none: Sequence[Any] = ()
    if found.way == "onednn":
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", none, "")
    return torch.ops.mkldnn._convolution_pointwise(x, weight, None, *found.given[:4], "none", none, "")
