"""Memory from torch's allocator, and storages laid over it. What it does not give is an error in words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from npucompose.errors import CaptureError

_ASKED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
"""How torch's allocator for CPUs says it (c10/core/impl/alloc_cpu.cpp)."""
_CPU = torch.device("cpu")
_construct: Any = torch._C._construct_storage_from_data_pointer


@contextlib.contextmanager
def told_of_memory() -> Iterator[None]:
    """CaptureError where torch's allocator finds no memory; whatever was made by then goes with the error."""
    try:
        yield
    except RuntimeError as error:
        if (found := _ASKED.search(str(error))) is None:
            raise
        raise CaptureError(
            f"cannot capture: there is no memory for a buffer of {found[1]} bytes. "
            "Use smaller inputs, fewer signatures (capture_limit) or mode=eager."
        ) from error


def zeros(nbytes: int) -> torch.Tensor:
    """Zeros, not whatever was there: a denormal left in fresh memory slows a kernel down a hundredfold."""
    with told_of_memory():
        return torch.zeros(nbytes, dtype=torch.uint8)


def over(address: int, nbytes: int) -> torch.UntypedStorage:
    """A storage object over memory that somebody else keeps alive."""
    if not nbytes:
        return torch.UntypedStorage(0)
    return _construct(address, _CPU, nbytes)
