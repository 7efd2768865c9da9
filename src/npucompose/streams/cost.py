"""How much work a kernel is, roughly: it decides which of two branches stays on the default stream, nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npucompose.graphs.effects import tensors_in

_CONTRACTIONS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""{operator: position of the left matrix, whose last dimension is summed over}"""


def cost(node: fx.Node) -> float:
    """Elements read and written, and the multiplications of a matrix product or a convolution.

    An mm of two 64 x 64 matrices is 3 * 64**2 + 64**3; `abs` of one is 2 * 64**2. A symbolic size counts as its hint.
    """
    outputs = list(tensors_in(node.meta.get("val")))
    inputs = [t for source in node.all_input_nodes for t in tensors_in(source.meta.get("val"))]
    elements = sum(_elements(t) for t in (*inputs, *outputs))
    return max(1.0, elements + _multiplications(node, outputs))


def _multiplications(node: fx.Node, outputs: list[torch.Tensor]) -> float:
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    if not outputs:
        return 0.0
    if name in _CONTRACTIONS and len(node.args) > _CONTRACTIONS[name]:
        left = node.args[_CONTRACTIONS[name]]
        shapes = [t.shape for t in tensors_in(left.meta.get("val"))] if isinstance(left, fx.Node) else []
        return _elements(outputs[0]) * _size(shapes[0][-1]) if shapes else 0.0
    if name == "convolution" and isinstance(node.args[1], fx.Node):
        weight = node.args[1].meta.get("val")
        return (
            _elements(outputs[0]) * _elements(weight) / max(1.0, _size(weight.shape[0])) if weight is not None else 0.0
        )
    return 0.0


def _elements(tensor: torch.Tensor) -> float:
    count = 1.0
    for size in tensor.shape:
        count *= _size(size)
    return count


def _size(size: Any) -> float:
    if isinstance(size, torch.SymInt):
        return float(size.node.hint) if size.node.has_hint() else 1.0
    return float(size)
