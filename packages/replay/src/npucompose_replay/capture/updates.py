"""Updates in place that AOTAutograd made functional: where they may happen in place again, as the model wrote them.

# Note [Updates and their copies back]
AOTAutograd turns `cache.index_copy_(…)` into `new = index_copy(cache, …)` and `cache.copy_(new)` at the end: two passes
over the whole cache where eager touches a few rows. `find` names the pairs that can be undone. It changes no
graph: the recorder asks it. (Inductor has a pass for this; importing Inductor would cost more than it saves.)

# Note [Operators that write their arguments]
`new = auto_functionalized_v2(op, _x_base_index=0, _all_bases=[x])` is a program that copies x and calls `op` on the
copy. A graph that says so itself, `clone(x)` and `op`, can be recorded; where nobody needs the old x, without the copy.
`write_in_place` makes such graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx
from torch._higher_order_ops import auto_functionalize
from torch._ops import OpOverload

from npucompose.graphs import Aliases
from npucompose.graphs.effects import (
    AUTO_FUNCTIONALIZED,
    is_collective,
    is_functional_call,
    is_getitem,
    nodes_in,
    waits_for,
)

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


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Its users, and where a collective among them is done with it."""
    for user in node.users:
        yield user
        if is_collective(user):
            yield from waits_for(user)


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
    if (
        not update.args
        or update.args[0] is not source
        or any(node in old for node in nodes_in((update.args[1:], update.kwargs)))
    ):
        return False
    reads_old = (user for alias in old for user in _readers(alias) if user is not update and user is not copy)
    if any(order[user] > order[update] for user in reads_old if user.op != "output"):
        return False
    return not any(
        (_writes(user) and user is not copy) or user.op == "output" for a in _aliases(update) for user in a.users
    )


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


_V1 = AUTO_FUNCTIONALIZED[0]


def write_in_place(graph_module: fx.GraphModule) -> int:
    """Take apart every such call that can be, in place; the number of calls.

    before:  a = auto_functionalized_v2(op, y=y, _x_base_index=0, _all_bases=[x]);  copy_(x, a[1]);  return a[1] + 1
    after:   op(x=x, y=y);  return x + 1        or, where the old x is read later, with `clone(x)` in its place
    """
    calls = [node for node in graph_module.graph.nodes if is_functional_call(node)]
    # The last first: what it writes is then an ordinary argument of the one before.
    done = sum(_Call(graph_module.graph, node).take_apart() for node in reversed(calls))
    if done:
        graph_module.graph.lint()
        graph_module.recompile()
    return done


@define(eq=False)
class _Call:
    graph: fx.Graph
    node: fx.Node
    bases: list[fx.Node | None] = field(init=False)
    """What the operator writes, in the order in which the new values are returned."""

    def take_apart(self) -> bool:
        op = self.node.args[0]
        if not isinstance(op, OpOverload) or (op._schema.arguments and any(a.is_out for a in op._schema.arguments)):
            return False
        if any(not is_getitem(user) for user in self.node.users):
            return False
        found = self._written(op)
        if found is None:
            return False
        arguments, self.bases = found
        places = self._places(arguments)
        if places is None:
            return False
        with self.graph.inserting_before(self.node):
            kwargs = {name: self._argument(value, places) for name, value in arguments.items()}
            made = self.graph.call_function(op, (), kwargs)
        made.meta = {key: value for key, value in self.node.meta.items() if key not in ("val", "eager_input_vals")}
        self._replace(op, made, places)
        return True

    def _written(self, op: OpOverload) -> tuple[dict[str, Any], list[fx.Node | None]] | None:
        """The operator's own arguments, each that it writes as a _View of one of the bases; None: another form."""
        kwargs = dict(self.node.kwargs)
        names, types = auto_functionalize.get_mutable_args(op)
        if self.node.target.name() == _V1:  # type: ignore[union-attr]
            given = [kwargs[name] for name in names]
            if not all(isinstance(value, (fx.Node, type(None))) for value in given):
                return None
            arguments = {**kwargs, **{n: _View(i) for i, (n, v) in enumerate(zip(names, given, strict=True)) if v}}
            return arguments, given  # type: ignore[return-value]
        bases: Any = kwargs.pop("_all_bases")
        views = auto_functionalize.read_view_information_from_args(names, types, kwargs, bases)
        for name in names:
            view: Any = views[name]
            made = [_view(one) for one in view] if isinstance(view, list) else _view(view)
            kwargs[name] = made  # type: ignore[assignment]
        return kwargs, list(bases)

    def _places(self, arguments: dict[str, Any]) -> list[fx.Node | None] | None:
        """Where each base is written: in itself, or in a copy of it; None where it cannot be copied as it lies."""
        read = list(nodes_in([value for value in arguments.values() if not isinstance(value, _View)]))
        copied = [base is not None and not self._is_free(base, read) for base in self.bases]
        pairs = list(zip(self.bases, copied, strict=True))
        if any(is_copied and base is not None and not _is_plain(base.meta.get("val")) for base, is_copied in pairs):
            return None
        return [self._copy_of(base) if is_copied and base is not None else base for base, is_copied in pairs]

    def _copy_of(self, base: fx.Node) -> fx.Node:
        with self.graph.inserting_before(self.node):
            copy = self.graph.call_function(aten.clone.default, (base,))
        copy.meta = {"val": base.meta["val"].clone(), "stack_trace": self.node.meta.get("stack_trace")}
        return copy

    def _is_free(self, base: fx.Node, read: Sequence[fx.Node]) -> bool:
        """Whether nobody, not even this call by another argument, needs what lies in `base` after this call.

        An input of the graph is the caller's: it may be written only where the graph copies its last value back.
        """
        aliases = Aliases.from_graph(self.graph, copies=is_functional_call)
        mine = aliases.keys[base]
        others = [other for other in (*read, *self.bases) if other is not None and other is not base]
        if any(aliases.keys[other] & mine for other in others) or self.bases.count(base) > 1:
            return False
        new = self._new_value(base)
        readers = (n for n in self.graph.nodes if is_collective(n) and aliases.of_all(n.all_input_nodes) & mine)
        waits = {wait for collective in readers for wait in waits_for(collective)}
        written_back = False
        after = False
        for node in self.graph.nodes:
            if node is self.node:
                after = True
            elif after and node in waits:
                return False
            elif after and (touching := [n for n in node.all_input_nodes if aliases.keys[n] & mine]):
                if node.target is not aten.copy_.default or node.args != (base, new) or touching != [base]:
                    return False
                written_back = True
        if all(node.op == "call_function" for node, keys in aliases.keys.items() if keys & mine):
            return True
        # What the graph returns is no memory of the caller's input, although it may have the same value.
        returned = self.graph.output_node().all_input_nodes
        return (
            base.op == "placeholder"
            and written_back
            and new is not None
            and not any(aliases.shares(new, node) for node in returned)
        )

    def _new_value(self, base: fx.Node) -> fx.Node | None:
        """The node that reads what the call makes of `base`; None for nobody, and for more than one."""
        op: Any = self.node.args[0]
        index = max(1, len(op._schema.returns)) + self.bases.index(base)
        found = [user for user in self.node.users if user.args[1] == index]
        return found[0] if len(found) == 1 else None

    def _argument(self, value: Any, places: Sequence[fx.Node | None]) -> Any:
        if isinstance(value, list) and any(isinstance(one, _View) for one in value):
            return [self._argument(one, places) for one in value]
        if not isinstance(value, _View):
            return value
        place = places[value.base]
        if place is None or value.operator is None:
            return place
        made = self.graph.call_function(value.operator, (place, *value.rest))
        made.meta["val"] = value.operator(*fx.map_arg(made.args, lambda node: node.meta["val"]))
        return made

    def _replace(self, op: OpOverload, made: fx.Node, places: Sequence[fx.Node | None]) -> None:
        """Readers of the call's results read the operator's, or what it wrote."""
        count = len(op._schema.returns)
        results = max(1, count)
        value: Any = self.node.meta.get("val")
        if value is not None:
            made.meta["val"] = None if count == 0 else value[0] if count == 1 else tuple(value[:count])
        for user in list(self.node.users):
            index: Any = user.args[1]
            if index >= results:
                _substitute(user, places[index - results])
            elif count == 1:
                user.replace_all_uses_with(made)
            elif count > 1:
                user.args = (made, index)
                continue
            self.graph.erase_node(user)
        self.graph.erase_node(self.node)


@define
class _View:
    """Of base number `base`."""

    base: int
    operator: OpOverload | None = None
    """What makes it of the base and the `rest`; None for the base itself."""
    rest: tuple[Any, ...] = ()


def _view(info: Any) -> _View | None:
    if info is None:
        return None
    if isinstance(info, auto_functionalize.AsStridedViewInfo):
        return _View(info.base_index, aten.as_strided.default, (info.size, info.stride, info.storage_offset))
    if isinstance(info, auto_functionalize.SliceViewInfo):
        return _View(info.base_index, aten.slice.Tensor, (info.dim, info.start, info.end))
    return _View(info.base_index, aten.alias.default if isinstance(info, auto_functionalize.AliasViewInfo) else None)


def _is_plain(value: Any) -> bool:
    """Whether `clone` keeps its strides and as_strided means the same of the clone."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    offset: Any = value.storage_offset()
    return isinstance(offset, int) and offset == 0 and value.clone().stride() == value.stride()


def _substitute(user: fx.Node, place: fx.Node | None) -> None:
    """A copy of a value into itself has nothing left to do."""
    if place is None:
        return
    user.replace_all_uses_with(place)
    for copy in [node for node in place.users if node.target is aten.copy_.default and node.args == (place, place)]:
        copy.replace_all_uses_with(place)
        copy.graph.erase_node(copy)
