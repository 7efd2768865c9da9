"""Operators that NPU model code and stream plans use, so that both run on a machine without an NPU.

Importing this loads no torch; `define()` does. Knows no model, no graph and no target.
"""

from __future__ import annotations


def define() -> None:
    """Make `torch.ops.air.*`, `torch.ops.paddle.*` and our part of `torch.ops.npu.*` exist; a second call does nothing.

    Only what is missing is added, so what torch_npu and torchair define stays theirs. Where those packages are wanted,
    import them first: their C++ libraries do not tolerate that somebody else has defined their operators.
    """
    from npucompose.ops import air, attention, fused, paddle

    air.define()
    attention.define()
    fused.define()
    paddle.define()
