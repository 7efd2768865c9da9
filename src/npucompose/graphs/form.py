"""The form of a tensor: everything about it but its values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_form(a: Any, b: Any) -> bool:
    """Two dense tensors of the same shape, strides, offset, dtype, device, conjugate and negative bit, for certain.

    The stride of a dimension of one element means nothing, and operators choose it freely: it is not compared.
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if (a.dtype, a.device, a.layout, a.dim()) != (b.dtype, b.device, b.layout, b.dim()):
        return False
    if a.layout is not torch.strided or a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return False
    if not all(_equal(mine, other) for mine, other in zip(a.shape, b.shape, strict=True)):
        return False
    strides = zip(a.shape, a.stride(), b.stride(), strict=True)
    return _equal(a.storage_offset(), b.storage_offset()) and all(
        _equal(size, 1) or _equal(mine, other) for size, mine, other in strides
    )


def _equal(a: Any, b: Any) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b)
