"""Calls recorded one by one, and how often an operator was asked meanwhile."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


def added(extension: ModuleType, name: str, args: list[Any], direct: bool = True, recording: Any = None) -> str:
    op, _, overload = name.partition(".")
    made = recording or extension.Recording()
    return made.add(extension.Operator(f"aten::{op}", overload), args, {}, [], [], [], [], direct)


# Which kernels run without the dispatcher.


class Asked(TorchDispatchMode):
    """How often an operator is called meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.count = name, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func) == f"aten.{self.name}"
        return func(*args, **(kwargs or {}))
