"""What the benchmark table compares candidates on, and what a candidate is when it is ready to be called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, frozen

Call = Callable[..., Any]


class Unavailable(Exception):
    """Why there is no such candidate for this model on this machine."""


@frozen(kw_only=True, eq=False)
class Subject:
    """A model with its example inputs, and how many threads everybody gets."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    threads: int

    def apart(self) -> Subject:
        """The same over parameters of its own. Who reads the module's would find them in the cache, where the others
        that read them left them, and who keeps a packed copy would not."""
        return evolve(self, module=copy.deepcopy(self.module))

    def own(self) -> torch.nn.Module:
        """The module over the same parameters with buffers of its own, so that states do not mix."""
        return copy.deepcopy(self.module, memo={id(p): p for p in self.module.parameters()})


@frozen(kw_only=True, eq=False)
class Ready:
    """Something to call, with what is known beside its time."""

    call: Call
    module: torch.nn.Module | None = None
    """Whose buffers the call updates; None where a library keeps a copy of its own."""
    pool_bytes: int | None = None
    packed_bytes: int | None = None
    """Of weights that are kept beside the module's own."""
    floor: Callable[[], float] | None = None
    """Measures the raw kernel floor once, in µs."""
