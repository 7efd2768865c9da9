"""Weights in a layout of a library's own, by how they were made: the plain weight, and for how many rows.

Nobody can look into one and no file can hold it; packing is quick, and what it gives follows from the two. Before that
is relied on, a product by the weight packed again is compared with one by the weight at hand, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from attrs import frozen

from npucompose.replay.operands import same_bytes
from npucompose.replay.plan import PlanSlot, Step

PACKED = 1
"""The argument that is the weight, of both products."""


@frozen(kw_only=True, eq=False)
class PackedWeight:
    """`packing[library](plain, rows)` is the weight."""

    library: str
    plain: torch.Tensor
    rows: int


def _by_mkl(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkl._mkl_reorder_linear_weight(plain, rows)


def _by_onednn(plain: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(plain, rows)


packing: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {"mkl": _by_mkl, "onednn": _by_onednn}


def is_opaque(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_mkldnn


def how_packed(step: Step, position: int) -> PackedWeight | None:
    """How the argument of a step was made; None where that is not known, or would give other bits."""
    name, x, packed = step.op._schema.name, step.args[0], step.args[position]
    if position != PACKED or not isinstance(x, PlanSlot):
        return None
    if name == "mkl::_mkl_linear":
        found = PackedWeight(library="mkl", plain=_tensor(step.args[2]), rows=step.args[4])
    elif name == "mkldnn::_linear_pointwise":
        found = PackedWeight(library="onednn", plain=packed.to_dense(), rows=prod(x.layout.shape[:-1]))
    else:
        return None
    given = torch.rand(x.layout.shape, dtype=torch.float32).to(x.layout.dtype)
    again = packing[found.library](found.plain, found.rows)
    products = [_product(found, given, weight) for weight in (packed, again)]
    return found if same_bytes(*products) else None


def _tensor(value: Any) -> torch.Tensor:
    return value.layout.over(value.root.contents.untyped_storage()) if isinstance(value, PlanSlot) else value


def _product(found: PackedWeight, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if found.library == "mkl":
        return torch.ops.mkl._mkl_linear(x, weight, found.plain, None, found.rows)
    none: Sequence[Any] = ()
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", none, "")
