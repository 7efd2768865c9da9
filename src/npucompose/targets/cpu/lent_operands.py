"""The operands of an operator that is not torch's own: ordinary tensors, as eager would give it, which it may keep.

native/src/lent_operands.h is the same for the replayer in C++; its Note [An operator may keep what it is given] says
why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from npucompose.targets.cpu.plan import Layout, mapped


def lending(op: OpOverload) -> Callable[..., Any]:
    """`op`, called with copies of the tensors that it reads: portable executors look for nobody who keeps them.

    Tensors that it writes are given as they are; their memory is a caller's own.
    """
    names = [argument.name for argument in op._schema.arguments]
    written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            lent = {name: mapped(_plain if name in written else _copied, value) for name, value in given.items()}
            return op(*(lent[name] for name in names[: len(args)]), **{name: lent[name] for name in kwargs})

    return call


def _plain(value: Any) -> Any:
    return Layout.of(value).over(value.untyped_storage()) if isinstance(value, torch.Tensor) else value


def _copied(value: Any) -> Any:
    return Layout.of(value).over(value.untyped_storage().clone()) if isinstance(value, torch.Tensor) else value
