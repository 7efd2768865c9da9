"""Casts behind casts: what widens and narrows again is dropped, what narrows stays."""

from __future__ import annotations

import torch
from torch import fx

from npucompose.passes.cancel_moves.editor import Editor
from npucompose.passes.cancel_moves.moves import is_cast, source_of

aten = torch.ops.aten
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_EXPONENT = {torch.float64: 11, torch.float32: 8, torch.float16: 5, torch.bfloat16: 8}
_PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32}


def loses_nothing(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Every value of `narrow` is one of `wide`: float16 in float32, int32 in float64, not int64 in float64."""
    if narrow == wide or narrow is torch.bool:
        return True
    if wide in _PARTS:
        return loses_nothing(_PARTS.get(narrow, narrow), _PARTS[wide])
    if wide in _DIGITS:
        if narrow in _DIGITS:
            return _DIGITS[narrow] <= _DIGITS[wide] and _EXPONENT[narrow] <= _EXPONENT[wide]
        return _is_integer(narrow) and _bits(narrow) <= _DIGITS[wide]
    if not (_is_integer(narrow) and _is_integer(wide)):
        return False
    return torch.iinfo(wide).min <= torch.iinfo(narrow).min and torch.iinfo(narrow).max <= torch.iinfo(wide).max


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _bits(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).max.bit_length()


def drop(graph: fx.Graph, relaxed: bool) -> int:
    """`cast(cast(x: f16, f32), f16)` is x, `cast(cast(x: f16, f32), f64)` is one cast; how many places changed."""
    editor = Editor(graph)
    for node in list(graph.nodes):
        if not node._erased and is_cast(node):
            _one(editor, node, relaxed)
    return editor.changed


def _one(editor: Editor, node: fx.Node, relaxed: bool) -> None:
    source = source_of(node)
    if editor.may_stand_for(source, node):
        editor.stand_for(source, node)
        return
    if not is_cast(source):
        return
    base = source_of(source)
    first, middle, last = (n.meta["val"].dtype for n in (base, source, node))
    rounding = relaxed and all(dtype.is_floating_point for dtype in (first, middle, last))
    if not (loses_nothing(first, middle) or rounding) or not editor.quiet(base, source, node):
        return
    if first.is_floating_point and _is_integer(last):
        return  # what a value out of range becomes is nobody's promise, and differs between float types
    if editor.may_stand_for(base, node):
        editor.stand_for(base, node)
        return
    # A cast keeps the order of a dense tensor in memory, so one cast has the form of two; where not, they stay.
    made = editor.call(node, node, aten._to_copy.default, base, dtype=last)
    if editor.may_stand_for(made, node):
        editor.stand_for(made, node)
    else:
        editor.sweep([made])
