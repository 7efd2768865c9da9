"""Tensors from files that somebody else wrote: .npy without pickles, .pt by a reader of what torch.save writes."""

from __future__ import annotations

import math
import os
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_free.foreign_files import UnusableFile, open_regular
from npucompose.errors import ConfigError
from npucompose_devtools.device_files import torch_files
from npucompose_devtools.device_files.torch_files import Refused, shape_problem

if TYPE_CHECKING:
    import torch

MOST_BYTES = 2**30
"""Of one tensor, and of the file that it lies in."""
MOST_DIMENSIONS = 32
"""As numpy 1 has them; numpy 2 takes 64 and torch any number."""


def load(path: Path) -> torch.Tensor:
    """The tensor, on the CPU; ConfigError for a file that is not there, too large, cut off, or holds anything else."""
    try:
        with open_regular(path, MOST_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            return _npy(file, size) if path.suffix == ".npy" else torch_files.read(file, size, MOST_BYTES)
    except (Refused, UnusableFile) as error:
        raise ConfigError(f"{path} {error}.") from error
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def _npy(file: BinaryIO, size: int) -> torch.Tensor:
    """The head is read first: a file that says more elements than it has would ask for their memory."""
    import numpy as np
    import torch

    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, column_order, dtype = read(file, max_header_size=10_000)
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
            RecursionError, MemoryError, tokenize.TokenError) as error:  # fmt: skip
        raise Refused(f"is no .npy file ({type(error).__name__})") from error
    if dtype.hasobject or dtype.kind not in "biufc":
        raise Refused(f"holds {dtype.name[:40]} and no numbers: it is not read")
    if shape_problem(shape, dtype.itemsize, 2**62) or len(shape) > MOST_DIMENSIONS:
        raise Refused(f"says a shape that no tensor has: {str(shape)[:80]}")
    needed, has = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed != has:
        raise Refused(f"says {needed:,} bytes of elements and has {has:,}: it is cut off")
    flat = np.frombuffer(bytearray(file.read(needed)), dtype=dtype)
    array = flat.reshape(shape, order="F" if column_order else "C")
    try:
        return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
    except TypeError as error:
        raise Refused(f"holds {dtype.name}, which torch has not") from error
