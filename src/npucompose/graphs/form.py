"""The form of a tensor: everything about it but its values."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def same_form(a: Any, b: Any) -> bool:
    """Two dense tensors of the same shape, strides, offset, dtype, device, conjugate and negative bit, for certain."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if (a.dtype, a.device, a.layout, a.dim()) != (b.dtype, b.device, b.layout, b.dim()):
        return False
    if a.layout is not torch.strided or a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return False
    sizes = zip((*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset()), strict=True)
    return all(statically_known_true(mine == other) for mine, other in sizes)
