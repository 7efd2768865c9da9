"""Which dtypes hold every value of which others."""

from __future__ import annotations

import torch

_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_EXPONENT = {torch.float64: 11, torch.float32: 8, torch.float16: 5, torch.bfloat16: 8}
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32}


def loses_nothing(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Every value of `narrow` is one of `wide`: float16 in float32, int32 in float64, not int64 in float64."""
    if narrow == wide or narrow is torch.bool:
        return True
    if wide in _PARTS:
        return loses_nothing(_PARTS.get(narrow, narrow), _PARTS[wide])
    if wide in _DIGITS:
        if narrow in _DIGITS:
            return _DIGITS[narrow] <= _DIGITS[wide] and _EXPONENT[narrow] <= _EXPONENT[wide]
        return is_integer(narrow) and _bits(narrow) <= _DIGITS[wide]
    if not (is_integer(narrow) and is_integer(wide)):
        return False
    return torch.iinfo(wide).min <= torch.iinfo(narrow).min and torch.iinfo(narrow).max <= torch.iinfo(wide).max


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _bits(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).max.bit_length()
