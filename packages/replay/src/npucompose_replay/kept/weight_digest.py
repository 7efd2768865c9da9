"""The values of weights as a key: what is made of frozen weights is good for these values and no others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.machine import cpu_model
from npucompose_replay import gate
from npucompose_replay.kept.weight_pages import file_mappings, pieces

MOST_BYTES = 1 << 28
"""Of the weights of a graph that is kept: as much again may lie on the disk, in the forms that kernels want it in."""


def digest_of(weights: Sequence[torch.Tensor]) -> str | None:
    """Of the values of weights, in order, and of what kernels are timed on; None where they are too many, or odd."""
    if sum(weight.nbytes for weight in weights if not gate.why_not(weight)) > MOST_BYTES:
        return None
    found = hashlib.blake2b(f"{cpu_model()}, {torch.get_num_threads()} threads".encode())
    mappings = file_mappings()
    with _disable_current_modes(), torch.no_grad():
        for weight in weights:
            if gate.why_not(weight):
                return None
            plain = weight.detach().contiguous()
            found.update(repr((weight.dtype, tuple(weight.shape), weight.stride())).encode())
            for piece in pieces(plain.data_ptr(), plain.nbytes, mappings):
                found.update(piece)
    return found.hexdigest()
