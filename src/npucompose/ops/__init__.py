"""Operators that NPU model code and stream plans use, so that both run on a machine without an NPU.

Operators of other frameworks are extensions; nothing here knows a model, a graph or a target. Importing this loads no
torch; `define()` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType

from npucompose.registry import Registry

OPERATORS: Registry[FunctionType] = Registry(
    kind="namespace of operators", base=FunctionType, group="npucompose.operators", values=True
)
"""What defines the operators of a namespace that an installed package brings."""
OWN = frozenset({"aten", "prims", "air", "npu", "npugraph_ex"})


def define() -> None:
    """Make `torch.ops.air.*` and our part of `torch.ops.npu.*` exist; a second call does nothing.

    Only what is missing is added, so what torch_npu and torchair define stays theirs. Where those packages are wanted,
    import them first: their C++ libraries do not tolerate that somebody else has defined their operators.
    """
    from npucompose.ops import air, attention, fused

    air.define()
    attention.define()
    fused.define()


def define_installed(names: Iterable[str]) -> None:
    """Make those of these operators exist that an installed package brings: `["paddle.relu_grad.default"]`."""
    for namespace in dict.fromkeys(name.partition(".")[0] for name in names):
        if namespace not in OWN and namespace in OPERATORS.names():
            OPERATORS.get(namespace)()
