"""Permutes behind permutes become one, and copies behind copies; what comes back to where it was is dropped."""

from __future__ import annotations

from torch import fx

from npucompose.passes.cancel_moves.editor import Editor
from npucompose.passes.cancel_moves.moves import (
    Perm,
    after,
    is_copy,
    is_identity,
    lays_down,
    moves_of,
    perm_of,
    source_of,
)


def compose(graph: fx.Graph, writes: bool) -> int:
    """How many places changed. Every value keeps its form, so that nothing behind it can tell."""
    editor = Editor(graph, writes)
    for node in moves_of(graph):
        if node._erased:
            continue
        perm = perm_of(node)
        if perm is not None:
            _permute(editor, node, perm)
        elif lays_down(node):
            _copy(editor, node)
    return editor.changed


def _permute(editor: Editor, node: fx.Node, perm: Perm) -> None:
    """`permute(permute(x, p), q)`: views both, so one permute of x has the same form."""
    source = source_of(node)
    first = perm_of(source)
    if first is not None:
        base, perm = source_of(source), after(first, perm)
        if is_identity(perm) and editor.may_stand_for(base, node):
            editor.stand_for(base, node)
            return
        made = editor.permuted(node, node, base, perm)
        if made is not base:
            if editor.may_stand_for(made, node):
                editor.stand_for(made, node)
                return
            editor.sweep([made])
    elif is_identity(perm) and editor.may_stand_for(source, node):
        editor.stand_for(source, node)
        return
    base, perm = _behind_copies(node)
    if base is not source and is_identity(perm) and editor.may_stand_for(base, node):
        editor.stand_for(base, node)


def _copy(editor: Editor, node: fx.Node) -> None:
    """A copy in the order of the dimensions has one form, so only the values of its source count."""
    source = source_of(node)
    base, perm = _behind_copies(node)
    if not editor.quiet(base, source, node):
        return
    if is_identity(perm) and editor.may_stand_for(base, node):
        editor.stand_for(base, node)
        return
    shortest = source if base is source else source_of(source) if perm_of(source) is not None else None
    if shortest is base:
        return
    made = editor.permuted(node, node, base, perm)
    node.replace_input_with(source, made)
    editor.changed += 1
    editor.sweep([source])


def _behind_copies(node: fx.Node) -> tuple[fx.Node, Perm]:
    """The value before all permutes and copies that lead to `node`, and the order in which they leave it."""
    order: Perm = tuple(range(node.meta["val"].dim()))
    while True:
        perm = perm_of(node)
        if perm is not None:
            order = after(perm, order)
        elif not is_copy(node):
            return node, order
        node = source_of(node)
