"""Tensors compared bit for bit."""

from __future__ import annotations

import torch


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits: NaN equals the same NaN, 0.0 does not equal -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements read as integers, in a row: [1.0] as float32 is [0x3f800000]."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # `view(-1)` would keep the stride of a single element, which means nothing and has to be 1 for another dtype.
    return plain.as_strided((plain.numel(),), (1,)).view(_BITS[plain.dtype.itemsize])
