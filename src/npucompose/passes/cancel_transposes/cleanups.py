"""The clean-ups one after the other until none finds anything.

Permutes behind permutes become one, and copies behind copies; what comes back to where it was is dropped. Casts that
widen and narrow again are dropped, what narrows stays. A permute in front of a reduction moves behind it, where there
is less to permute, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npucompose.graphs.effects import written_by
from npucompose.graphs.matching import with_arguments
from npucompose.passes.base import Outcome
from npucompose.passes.cancel_transposes.moves import (
    Editor,
    Perm,
    after,
    counted,
    drops_rank,
    facts,
    is_cast,
    is_copy,
    is_identity,
    is_move,
    lays_down,
    moves_of,
    perm_of,
    reduced_dims,
    source_of,
)
from npucompose.passes.cancel_transposes.regions import turn
from npucompose.passes.metadata import is_integer, loses_nothing, same_form
from npucompose.passes.simplify import merge_equal

aten = torch.ops.aten
ROUNDS = 20
"""Each round wins bytes or removes a node, so that the end comes by itself; this many were never seen."""


def cancel(graph: fx.Graph, *, relaxed: bool) -> Outcome:
    """Rewrite in place; the facts say what was there before and what is left."""
    before = counted(graph)
    if before[2] == 0:
        return Outcome(matches=0, moves=facts(before, before))
    writes = any(True for node in graph.nodes if written_by(node))
    changed = 0
    for _ in range(ROUNDS):
        found = merge_equal(graph, is_move)
        found += sum(_cleaned(graph, writes, relaxed, clean_up) for clean_up in (_permutes, _casts, _reductions))
        found += turn(graph, writes, relaxed)
        changed += found
        if not found:
            break
    return Outcome(matches=changed, exact=not (relaxed and changed), moves=facts(before, counted(graph)))


def _cleaned(graph: fx.Graph, writes: bool, relaxed: bool, clean_up: Callable[[Editor, fx.Node, bool], None]) -> int:
    """`clean_up` at every move of the graph: how many places changed."""
    editor = Editor(graph, writes)
    for node in moves_of(graph):
        if not node._erased:
            clean_up(editor, node, relaxed)
    return editor.changed


def _permutes(editor: Editor, node: fx.Node, relaxed: bool) -> None:
    """Every value keeps its form, so that nothing behind it sees a difference."""
    perm = perm_of(node)
    if perm is not None:
        _permute(editor, node, perm)
    elif lays_down(node):
        _copy(editor, node)


def _permute(editor: Editor, node: fx.Node, perm: Perm) -> None:
    """`permute(permute(x, p), q)`: views both, so one permute of x has the same form."""
    source = source_of(node)
    first = perm_of(source)
    if first is not None:
        base, perm = source_of(source), after(first, perm)
        if is_identity(perm) and editor.stand_for(base, node):
            return
        made = editor.permuted(node, node, base, perm)
        if made is not base:
            if editor.stand_for(made, node):
                return
            editor.sweep([made])
    elif is_identity(perm) and editor.stand_for(source, node):
        return
    base, perm = _behind_copies(node)
    if base is not source and is_identity(perm):
        editor.stand_for(base, node)


def _copy(editor: Editor, node: fx.Node) -> None:
    """A copy in the order of the dimensions has one form, so only the values of its source count."""
    source = source_of(node)
    base, perm = _behind_copies(node)
    if not editor.quiet(base, source, node):
        return
    if is_identity(perm) and editor.stand_for(base, node):
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


def _casts(editor: Editor, node: fx.Node, relaxed: bool) -> None:
    """`cast(cast(x: f16, f32), f16)` is x, `cast(cast(x: f16, f32), f64)` is one cast."""
    if not is_cast(node):
        return
    source = source_of(node)
    if editor.stand_for(source, node) or not is_cast(source):
        return
    base = source_of(source)
    first, middle, last = (n.meta["val"].dtype for n in (base, source, node))
    rounding = relaxed and all(dtype.is_floating_point for dtype in (first, middle, last))
    if not (loses_nothing(first, middle) or rounding) or not editor.quiet(base, source, node):
        return
    if first.is_floating_point and is_integer(last):
        return  # what a value out of range becomes is nobody's promise, and differs between float types
    if editor.stand_for(base, node):
        return
    # A cast keeps the order of a dense tensor in memory, so one cast has the form of two; where not, they stay.
    made = editor.call(node, node, aten._to_copy.default, base, dtype=last)
    if not editor.stand_for(made, node):
        editor.sweep([made])


def _reductions(editor: Editor, node: fx.Node, relaxed: bool) -> None:
    """`amax(permute(x, p), [d])` is amax(x, [p[d]]), permuted as the dimensions that are left stand."""
    for user in list(node.users):
        if drops_rank(user, relaxed):
            _reduction(editor, user)


def _reduction(editor: Editor, node: fx.Node) -> None:
    source = source_of(node)
    permute = source_of(source) if is_copy(source) and len(source.users) == 1 else source
    perm = perm_of(permute)
    one_reader = len(source.users) == 1 and len(permute.users) == 1
    if perm is None or not one_reader or not editor.quiet(node, source, permute, source_of(permute)):
        return
    base, old = source_of(permute), node.meta["val"]
    dims = sorted(perm[dim] for dim in reduced_dims(node, len(perm)))
    left = [dim for dim in range(len(perm)) if dim not in dims]
    order = tuple(left.index(perm[dim]) for dim in range(len(perm)) if perm[dim] not in dims)
    target: Any = node.target
    args, kwargs = with_arguments(target, (base, *node.args[1:]), node.kwargs, {"dim": dims})
    made = editor.call(node, node, target, *args, **kwargs)
    back = editor.permuted(node, node, made, order)
    if not same_form(back.meta["val"], old):
        if not old.is_contiguous():
            for new in dict.fromkeys((back, made)):
                editor.graph.erase_node(new)
            return
        back = editor.laid_down(node, back)
    node.replace_all_uses_with(back)
    editor.graph.erase_node(node)
    editor.changed += 1
    editor.sweep([source])
