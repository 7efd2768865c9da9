"""Weights and inputs that depend on a seed and on nothing that ran before; the global generators keep their state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch's CPU generator, `random` and numpy's global one start from `seed`; then they are restored."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed the devices, whose state fork_rng does not restore here.
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def generator(seed: int, step: int) -> torch.Generator:
    """The source of the inputs of one step: `generator(0, 0)`, `generator(0, 1)` and `generator(1, 0)` all differ."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step + 1) % 2**63)


def inference(module: nn.Module) -> nn.Module:
    """The module in eval mode, its parameters without grad."""
    return module.eval().requires_grad_(False)
