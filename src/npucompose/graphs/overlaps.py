"""Operators that read two pieces of one memory which overlap: `x[1:] - x[:-1]`. Knows no device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from npucompose.graphs.recordable import outside_of
from npucompose.schema.partition import Outside

OVERLAP = "two of its arguments are overlapping pieces of one memory."


def overlapping(graph: fx.Graph) -> Iterator[Outside]:
    """The operators in place, or with a form in place, that cannot write over their first argument, in order."""
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        target = node.target
        if node.op != "call_function" or not isinstance(target, OpOverload):
            continue
        given = [argument for argument in node.args if isinstance(argument, fx.Node)]
        if target.is_view and given:
            roots[node] = roots.get(given[0], given[0])
        elif len(given) > 1 and (target._schema.is_mutable or _has_in_place_form(target)):
            first, *others = given
            if any(roots.get(first, first) is roots.get(other, other) and _partly(first, other) for other in others):
                yield outside_of(node, OVERLAP)


def _has_in_place_form(op: OpOverload) -> bool:
    return hasattr(torch.ops.aten, f"{op.overloadpacket.__name__}_")


def _partly(one: fx.Node, other: fx.Node) -> bool:
    """Whether their bytes meet and are not the same; sizes that are symbols count as met."""
    pieces = [_piece(node.meta.get("val")) for node in (one, other)]
    if None in pieces or pieces[0] == pieces[1]:
        return False
    (a, a_end, _), (b, b_end, _) = (piece for piece in pieces if piece is not None)
    return a < b_end and b < a_end


def _piece(value: Any) -> tuple[int, int, tuple[Any, ...]] | None:
    """(first element, the one after the last, the form); None for what is no tensor of known size."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return None
    begin = int(value.storage_offset())
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return begin, begin + last + 1, (tuple(value.shape), value.stride())
