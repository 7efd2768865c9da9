"""Operators that NPU model code and stream plans use, so that both run on a machine without an NPU.

Operators of other frameworks are extensions; nothing here knows a model, a graph or a target. Importing this loads no
torch; `define()` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType

from npucompose.ops.catalogue import Catalogue
from npucompose.registry import Registry

OPERATORS: Registry[FunctionType] = Registry(
    kind="namespace of operators", base=FunctionType, group="npucompose.operators", values=True
)
"""What defines the operators of a namespace that an installed package brings."""
OWN = frozenset({"aten", "prims", "air", "npu", "npugraph_ex"})


def define(
    catalogue: Catalogue | None = None, *, locate: Callable[[], Path] | None = None, soc: str | None = None
) -> None:
    """Make `torch.ops.air.*` and every operator of torch_npu exist; what is there already stays.

    `catalogue`: the operators of another version than the list that npucompose brings. `locate` finds the unpacked
    wheel that knows their shapes, on the system on chip `soc`, or raises ConfigError that says why there is none. Where
    torch_npu and torchair are wanted, import them first: their C++ libraries do not tolerate that somebody else has
    defined their operators.
    """
    from npucompose.ops import air, npu

    air.define()
    npu.define(catalogue, locate=locate, soc=soc)


def define_installed(names: Iterable[str]) -> None:
    """Make those of these operators exist that an installed package brings: `["paddle.relu_grad.default"]`."""
    for namespace in dict.fromkeys(name.partition(".")[0] for name in names):
        if namespace not in OWN and namespace in OPERATORS.names():
            OPERATORS.get(namespace)()
