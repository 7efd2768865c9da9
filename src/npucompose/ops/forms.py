"""The form of an operator's results by its meta function: in place of values, and beside those that a kernel gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

CHECKED_BY_TORCH = ("aten", "prims", "prim", "air", "npugraph_ex", "_c10d_functional", "c10d", "debugprims")
"""Namespaces whose meta functions torch's own tests hold against their kernels, and such as compute nothing."""


def form(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Zeros in the form of the operator's results; an argument that it returns is the result itself.

    UnsupportedOperatorException where the operator has no meta function.
    """
    if not op._schema.returns:
        return None
    returned = _returned_arguments(op, args, kwargs)
    if returned is not None:
        return returned
    real: dict[int, torch.Tensor] = {}
    found = _by_meta_function(op, args, kwargs, real)
    return tree_map_only(torch.Tensor, lambda one: real[id(one)] if id(one) in real else _zeros(one), found)


def _by_meta_function(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], real: dict[int, torch.Tensor]
) -> Any:
    """Fake results; `real` is filled with {id of a fake argument: the argument}."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        made = mode.from_tensor(tensor, static_shapes=True)
        real[id(made)] = tensor
        return made

    given, named = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
    with mode:
        return op(*given, **named)


def _returned_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of an operator that returns only what it has written: a tensor, a tuple of them; None elsewhere."""
    schema = op._schema
    written = {str(one.alias_info.before_set): at for at, one in enumerate(schema.arguments) if one.alias_info}
    found: list[Any] = []
    for one in schema.returns:
        at = written.get(str(one.alias_info.before_set)) if one.alias_info else None
        if at is None:
            return None
        found.append(args[at] if at < len(args) else kwargs.get(schema.arguments[at].name))
    return found[0] if len(found) == 1 else tuple(found)


def _zeros(fake: torch.Tensor) -> torch.Tensor:
    """In any type, those without arithmetic too."""
    size = 1 + sum((n - 1) * step for n, step in zip(fake.shape, fake.stride(), strict=True)) if fake.numel() else 0
    device = "cpu" if fake.device.type == "meta" else fake.device
    memory = torch.zeros(size * fake.element_size(), dtype=torch.uint8, device=device)
    return memory.view(fake.dtype).as_strided(fake.shape, fake.stride())


def _unchecked(op: Any) -> bool:
    return isinstance(op, torch._ops.OpOverload) and op.namespace not in CHECKED_BY_TORCH


class FormCheck(TorchDispatchMode):
    """Sees the calls of operators that torch has no tests for, and whether kernel and meta function agree."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.contradictions: dict[str, str] = {}
        """{overload: what its kernel gives and what its meta function says}."""

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if _unchecked(func) and str(func) not in self.contradictions:
            with _disable_current_modes():
                said = self._said(func, args, kwargs or {})
            if said is not None and (kernel := _described(found)) != said:
                self.contradictions[str(func)] = (
                    f"the kernel of {func} gives {kernel} and its meta function says {said}: torch.compile goes by "
                    "what the meta function says"
                )
        return found

    def _said(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """What the meta function says; None where that cannot be asked."""
        try:
            return _described(_by_meta_function(func, args, kwargs, {}))
        except Exception:  # noqa: BLE001  a meta function may raise anything; the trace has shown what it says
            return None

    def watched(self, call: Callable[..., Any], graphs: Iterable[fx.Graph]) -> Callable[..., Any]:
        """`call`, which runs these graphs, under this mode where one of them has something to check."""
        if not any(_unchecked(node.target) for graph in graphs for node in graph.nodes):
            return call

        def under(*args: Any, **kwargs: Any) -> Any:
            with self:
                return call(*args, **kwargs)

        return under


def _described(result: Any) -> str:
    """`float32[4, 9], int64[4]`"""
    tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    return ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in tensors)
