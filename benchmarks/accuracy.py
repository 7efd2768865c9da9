"""How far results are from those of the same model in double precision.

The error is ‖got - wanted‖ / ‖wanted‖, Euclidean norms over the elements of all floating-point results of all steps
together (the normwise relative error: Higham, Accuracy and Stability of Numerical Algorithms, 1.1 and 6.2): one number
that does not depend on the scale of the results, nor on the luck of a single element.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only


class _Widened(TorchDispatchMode):
    """Models that compute a norm or a softmax in float32, whatever their dtype is, do so in float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*tree_map(_wide, args), **tree_map(_wide, kwargs or {}))


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def in_double(module: torch.nn.Module, inputs: Sequence[Sequence[Any]]) -> list[Any]:
    """The results of each step of a copy of `module`, one step after the other, in float64."""
    wide = copy.deepcopy(module).double()
    with torch.no_grad(), _Widened():
        return [_copied(wide(*tree_map_only(torch.Tensor, _double, list(step)))) for step in inputs]


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x.clone()


def _copied(value: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.clone, value)


def error(wanted: Any, got: Any) -> float | None:
    """Of one step or of a sequence of them; None where they have no floating-point numbers, or other shapes than
    `wanted`."""
    pairs = [
        (a.flatten(), b.flatten().double())
        for a, b in zip(tree_leaves(wanted), tree_leaves(got), strict=True)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
    ]
    if not pairs or any(a.shape != b.shape for a, b in pairs):
        return None
    off = torch.cat([a - b for a, b in pairs]).norm()
    return float(off / torch.cat([a for a, _ in pairs]).norm())
