"""Casts behind casts: what widens and narrows again is dropped, what narrows stays."""

from __future__ import annotations

import torch
from torch import fx

from npucompose.passes.cancel_moves.editor import Editor
from npucompose.passes.cancel_moves.moves import is_cast, moves_of, source_of
from npucompose.passes.dtypes import is_integer, loses_nothing

aten = torch.ops.aten


def drop(graph: fx.Graph, writes: bool, relaxed: bool) -> int:
    """`cast(cast(x: f16, f32), f16)` is x, `cast(cast(x: f16, f32), f64)` is one cast; how many places changed."""
    editor = Editor(graph, writes)
    for node in moves_of(graph):
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
    if first.is_floating_point and is_integer(last):
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
