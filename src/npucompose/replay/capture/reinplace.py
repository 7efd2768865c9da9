"""Where a functional update of an input may happen in the input again, as the model had written it.

AOTAutograd turns `cache.index_copy_(…)` into `new = index_copy(cache, …)` and `cache.copy_(new)` at the end: two passes
over the whole cache where eager touches a few rows. This analysis finds the pairs that can be undone. It changes no
graph: the recorder asks it. (Inductor has a pass for this; importing Inductor would cost more than it saves.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from attrs import frozen
from torch import fx
from torch._ops import OpOverload

aten = torch.ops.aten

_IN_PLACE: dict[OpOverload, OpOverload] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.masked_fill.Tensor: aten.masked_fill_.Tensor,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}

VIEW_OF_SCATTER: dict[OpOverload, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
"""`slice_scatter(x, src, dim, …)` in place is `slice(x, dim, …).copy_(src)`."""


@frozen(kw_only=True)
class Reinplaced:
    in_place: dict[fx.Node, OpOverload]
    """Functional node -> the in-place operator, or copy_ for the scatters over a view."""
    dropped: frozenset[fx.Node]
    """The `copy_(input, value)` nodes that have nothing left to do."""


def find(graph: fx.Graph, sharing: frozenset[int]) -> Reinplaced:
    """Pairs of an update and its copy back that are safe to undo; inputs in `sharing` overlap others: left alone.

    `u = index_copy(x, …); r = f(u); copy_(x, u); return r`  becomes  `index_copy_(x, …); r = f(x); return r`.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    in_place: dict[fx.Node, OpOverload] = {}
    dropped: set[fx.Node] = set()
    for index, source in enumerate(placeholders):
        if index in sharing:
            continue
        copy = _only_write(source)
        if copy is None:
            continue
        update = copy.args[1]
        if isinstance(update, fx.Node) and _is_safe(source, update, copy, order):
            in_place[update] = _IN_PLACE.get(update.target, aten.copy_.default)  # type: ignore[arg-type]
            dropped.add(copy)
    return Reinplaced(in_place=in_place, dropped=frozenset(dropped))


def _only_write(source: fx.Node) -> fx.Node | None:
    """The one node that writes `source`, when it is `copy_(source, value)` and nobody uses what it returns."""
    writes = {user for alias in _aliases(source) for user in alias.users if _writes(user)}
    if len(writes) != 1:
        return None
    (copy,) = writes
    if copy.target is not aten.copy_.default or copy.args[0] is not source:
        return None
    return copy if all(user.op == "output" for user in copy.users) else None


def _is_safe(source: fx.Node, update: fx.Node, copy: fx.Node, order: dict[fx.Node, int]) -> bool:
    if update.target not in _IN_PLACE and update.target not in VIEW_OF_SCATTER:
        return False
    old = _aliases(source)
    if not update.args or update.args[0] is not source or any(node in old for node in _others(update)):
        return False
    reads_old = (user for alias in old for user in alias.users if user is not update and user is not copy)
    if any(order[user] > order[update] for user in reads_old if user.op != "output"):
        return False
    return not any(
        (_writes(user) and user is not copy) or user.op == "output" for a in _aliases(update) for user in a.users
    )


def _others(update: fx.Node) -> Iterable[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((update.args[1:], update.kwargs), found.append)
    return found


def _aliases(node: fx.Node) -> set[fx.Node]:
    """`node` and everything that may share its memory through views."""
    found, todo = {node}, [node]
    while todo:
        for user in todo.pop().users:
            if user not in found and _may_view(user):
                found.add(user)
                todo.append(user)
    return found


def _may_view(node: fx.Node) -> bool:
    op = node.target
    if not isinstance(op, OpOverload):
        return node.op == "call_function"  # getitem of a list of views
    name = op._schema.name
    return any(r.alias_info is not None for r in op._schema.returns) or name in ("aten::_unsafe_view", "aten::reshape")


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable
