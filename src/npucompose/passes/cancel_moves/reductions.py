"""A permute in front of a reduction moves behind it, where there is less to permute, or nothing."""

from __future__ import annotations

from torch import fx

from npucompose.graphs.form import same_form
from npucompose.passes.cancel_moves.absorb import drops_rank, reduced_dims
from npucompose.passes.cancel_moves.editor import Editor
from npucompose.passes.cancel_moves.moves import is_copy, moves_of, perm_of, source_of


def hoist(graph: fx.Graph, writes: bool, relaxed: bool) -> int:
    """`amax(permute(x, p), [d])` is amax(x, [p[d]]), permuted as the dimensions that are left stand."""
    editor = Editor(graph, writes)
    for node in [user for move in moves_of(graph) for user in move.users if drops_rank(user, relaxed)]:
        _one(editor, node)
    return editor.changed


def _one(editor: Editor, node: fx.Node) -> None:
    source = source_of(node)
    permute = source_of(source) if is_copy(source) and len(source.users) == 1 else source
    perm = perm_of(permute)
    alone = len(source.users) == 1 and len(permute.users) == 1
    if perm is None or not alone or not editor.quiet(node, source, permute, source_of(permute)):
        return
    base, old = source_of(permute), node.meta["val"]
    dims = sorted(perm[dim] for dim in reduced_dims(node, len(perm)))
    left = [dim for dim in range(len(perm)) if dim not in dims]
    order = tuple(left.index(perm[dim]) for dim in range(len(perm)) if perm[dim] not in dims)
    made = editor.call(node, node, node.target, base, dims, *node.args[2:], **_kept(node))
    back = editor.permuted(node, node, made, order)
    if not same_form(back.meta["val"], old):
        if not old.is_contiguous():
            editor.graph.erase_node(back) if back is not made else None
            editor.graph.erase_node(made)
            return
        back = editor.laid_down(node, back)
    node.replace_all_uses_with(back)
    editor.graph.erase_node(node)
    editor.changed += 1
    editor.sweep([source])


def _kept(node: fx.Node) -> dict[str, object]:
    return {key: value for key, value in node.kwargs.items() if key != "dim"}
