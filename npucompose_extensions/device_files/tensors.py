"""Tensors from files that somebody else wrote: .npy without pickles, .pt by torch's weights-only unpickler."""

from __future__ import annotations

import math
import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npucompose.errors import ConfigError

if TYPE_CHECKING:
    import torch

MOST_BYTES = 2**30
"""Of one tensor, and of the file that it lies in."""
MOST_DIMENSIONS = 32
"""As numpy 1 has them; numpy 2 takes 64 and torch any number."""
MOST_PICKLED = 2**20
"""Of what describes the tensors in a .pt, without their bytes."""


def load(path: Path) -> torch.Tensor:
    """The tensor, on the CPU; ConfigError for a file that is not there, too large, cut off, or holds anything else."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file.")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes; a tensor of more than {MOST_BYTES:,} is not read.")
        return _npy(path, size) if path.suffix == ".npy" else _pt(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def _npy(path: Path, size: int) -> torch.Tensor:
    """The head is read first: a file that says more elements than it has would ask for their memory."""
    import numpy as np
    import torch

    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, column_order, dtype = read(file, max_header_size=10_000)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise ConfigError(f"{path} is no .npy file ({type(error).__name__}).") from error
        if dtype.hasobject or dtype.kind not in "biufc":
            raise ConfigError(f"{path} holds {dtype.name[:40]} and no numbers: it is not read.")
        needed = math.prod(shape) * dtype.itemsize
        if len(shape) > MOST_DIMENSIONS or any(length < 0 for length in shape):
            raise ConfigError(f"{path} says a shape that no tensor has: {str(shape)[:80]}.")
        if needed != size - file.tell():
            raise ConfigError(
                f"{path} says {needed:,} bytes of elements and has {size - file.tell():,}: it is cut off."
            )
        flat = np.frombuffer(bytearray(file.read(needed)), dtype=dtype)
    array = flat.reshape(shape, order="F" if column_order else "C")
    try:
        return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))
    except TypeError as error:
        raise ConfigError(f"{path} holds {dtype.name}, which torch has not.") from error


def _pt(path: Path) -> torch.Tensor:
    """Only what `torch.save` writes of one tensor: an archive that nothing in is packed."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        raise ConfigError(f"{path} is no file of torch.save, or one of before torch 1.6: save it anew.") from error
    if any(one.compress_type != zipfile.ZIP_STORED or one.file_size > MOST_BYTES for one in inside):
        raise ConfigError(f"{path} holds packed or overlong parts, as torch.save writes none: it is not read.")
    if any(one.filename.endswith("data.pkl") and one.file_size > MOST_PICKLED for one in inside):
        raise ConfigError(f"{path} describes its tensors in more than {MOST_PICKLED:,} bytes: it is not read.")
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        IndexError,
        EOFError,
    ) as error:
        raise ConfigError(
            f"{path} is not loaded: it holds something else than tensors ({type(error).__name__})."
        ) from error
    if not isinstance(found, torch.Tensor) or found.layout != torch.strided or found.device.type != "cpu":
        raise ConfigError(f"{path} holds a {type(found).__name__}, and one dense tensor is read.")
    if found.numel() * found.element_size() > MOST_BYTES:
        raise ConfigError(f"{path} holds a tensor of more than {MOST_BYTES:,} bytes: it is not read.")
    return found.detach()
