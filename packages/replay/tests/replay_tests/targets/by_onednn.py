"""What holds for whatever oneDNN computes in max-autotune, and nowhere else."""

from __future__ import annotations

import torch
from torch import nn

import npucompose
from npucompose.bits import same_bytes

FUSED = ("mode=max-autotune", "inductor.max_autotune=null", "target.measuring=never")


def computed_alike_by_the_wrapper(model: nn.Module, x: torch.Tensor) -> bool:
    """Whether Inductor's wrapper gives the bits of the recording."""
    replayed = npucompose.compile(model, *FUSED, "target.linear=onednn").detach(x)(x).clone()
    torch._dynamo.reset()
    fast = npucompose.compile(model, *FUSED, "target.linear=onednn", "inductor.replay=wrapper")
    return torch.equal(fast(x), replayed)


def keeps_bits_in_other_modes(model: nn.Module, x: torch.Tensor) -> bool:
    handle = npucompose.compile(model, "mode=reduce-overhead", "target.linear=onednn").detach(x)
    return same_bytes(handle(x), model(x))
