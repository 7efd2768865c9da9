"""The operators by which TorchAir says streams and order inside an FX graph; here they compute nothing.

Signatures: Ascend/torchair, python/torchair/scope/_scope.py and python/torchair/ops/_record_wait.py. A region is
`scope_enter(['_user_stream_label'], ['stream1'])` … `scope_exit()`; an order is `r = record()` … `wait([r])`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from npucompose.ops.definitions import define_missing

SCHEMAS = {
    "scope_enter": "scope_enter(str[] keys, str[] values, bool need_execute=False) -> None",
    "scope_exit": "scope_exit(bool need_execute=False) -> None",
    "record": "record(*, Device? device=None) -> Tensor",
    "wait": "wait(Tensor[] x) -> ()",
}


def define() -> None:
    """Define those of the four operators that nobody has defined, and keep all four through dead-code elimination."""
    define_missing("air", SCHEMAS, {name: (kernel, None) for name, kernel in _KERNELS.items()})
    for name in SCHEMAS:
        # Shipped TorchAir marks scope_enter, scope_exit and wait only, so dead-code elimination removes a record that
        # no wait names. Here a record is kept: a plan's text shall not depend on which passes ran before.
        has_side_effect(getattr(torch.ops.air, name).default)


def _scope_enter(keys: Sequence[str], values: Sequence[str], need_execute: bool = False) -> None:
    """Opens a region in the graph. Shipped TorchAir's kernel acts only with need_execute, at its own tracing time."""


def _scope_exit(need_execute: bool = False) -> None:
    """Closes the innermost region."""


def _record(*, device: torch.device | None = None) -> torch.Tensor:
    """An empty tensor that stands for "everything before me on my stream is done"."""
    return torch.empty(0, device=device)


def _wait(x: Sequence[torch.Tensor]) -> None:
    """What follows on this stream starts after every tensor of `x` is there: on a device of one stream, always so."""


_KERNELS: dict[str, Any] = {
    "scope_enter": _scope_enter,
    "scope_exit": _scope_exit,
    "record": _record,
    "wait": _wait,
}
