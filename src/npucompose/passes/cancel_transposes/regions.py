"""Permutes move through whole groups of operators at once, where fewer bytes are moved in the end.

A region is a connected group of operators that absorb a permute. To turn it by p means: each of its values y becomes y'
with y = permute(y', p). A permute by p that enters is then not needed, nor is its inverse where a value leaves; any
other value that enters or leaves needs one. A region is turned when that balance is won, and as a whole, so that the
pass never wanders back and forth and a second run finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from npucompose.passes.cancel_transposes.moves import (
    Editor,
    Perm,
    absorbs,
    after,
    bytes_of,
    inverse,
    is_copy,
    is_identity,
    lays_down,
    moved,
    moves_of,
    perm_of,
    source_of,
    turned,
)
from npucompose.passes.metadata import fake_like, fake_mode_of, fake_result, same_form

CANDIDATES = 3
"""Orders tried for a region: the most frequent ones at its border."""


def turn(graph: fx.Graph, writes: bool, relaxed: bool) -> int:
    """How many regions were turned."""
    editor = Editor(graph, writes)
    turns = 0
    for members in _regions(graph, editor, relaxed):
        plans = [plan for perm in _candidates(members) if (plan := _Turn(editor, members, perm)).promises()]
        won = [plan for plan in plans if plan.works()]
        if won:
            max(won, key=lambda plan: plan.gain).apply()
            turns += 1
    return turns


def _regions(graph: fx.Graph, editor: Editor, relaxed: bool) -> list[list[fx.Node]]:
    """Connected groups of absorbing nodes that touch a permute, each in the graph's order."""
    known: dict[fx.Node, bool] = {}

    def member(node: fx.Node, rank: int) -> bool:
        if node not in known:
            known[node] = absorbs(node, relaxed) and editor.quiet(node, *node.all_input_nodes)
        return known[node] and node.meta["val"].dim() == rank

    seen: set[fx.Node] = set()
    found: list[list[fx.Node]] = []
    for permute in moves_of(graph):
        perm = perm_of(permute)
        for start in (source_of(permute), *permute.users) if perm is not None else ():
            if start not in seen and perm is not None and member(start, len(perm)):
                found.append(_flooded(start, len(perm), member, seen))
    order = {node: at for at, node in enumerate(graph.nodes)} if found else {}
    return [sorted(members, key=order.__getitem__) for members in found]


def _flooded(start: fx.Node, rank: int, member: Callable[[fx.Node, int], bool], seen: set[fx.Node]) -> list[fx.Node]:
    """`start` and all members that are connected with it."""
    seen.add(start)
    todo, members = [start], list[fx.Node]()
    while todo:
        node = todo.pop()
        members.append(node)
        for near in (*node.all_input_nodes, *node.users):
            if near not in seen and member(near, rank):
                seen.add(near)
                todo.append(near)
    return members


def _border(members: Sequence[fx.Node]) -> Iterator[Perm]:
    """The orders that would cancel a permute at the border."""
    inside = set(members)
    for node in members:
        rank = node.meta["val"].dim()
        for source in node.all_input_nodes:
            perm = perm_of(source) if source not in inside else None
            if perm is not None and len(perm) == rank:
                yield perm
        for user in node.users:
            perm = perm_of(user) if user not in inside else None
            if perm is not None:
                yield inverse(perm)


def _candidates(members: Sequence[fx.Node]) -> list[Perm]:
    counts = Counter(perm for perm in _border(members) if not is_identity(perm))
    return [perm for perm, _ in counts.most_common(CANDIDATES)]


class _Turn:
    """One region and one order: what it would win, and the doing of it."""

    def __init__(self, editor: Editor, members: Sequence[fx.Node], perm: Perm) -> None:
        self.editor, self.members, self.perm = editor, members, perm
        self.inside, self.mode = set(members), fake_mode_of(members[0])
        self.values: dict[fx.Node, Any] = {}
        self.gain = 0
        outside = (source for node in members for source in node.all_input_nodes if source not in self.inside)
        self.entering = {source: self._base(source) for source in outside if source.meta["val"].dim() == len(perm)}
        self.leaving = {node: self._outside(node) for node in members}
        self.behind = {
            user: after(perm, order)
            for users in self.leaving.values()
            for user in users
            if (order := perm_of(user)) is not None
        }
        """{permute that leaves: which permute of the new value it is}."""

    def _base(self, source: fx.Node) -> tuple[fx.Node, Perm]:
        """What a value that enters is in the new order: a node and a permute of it."""
        own, back = perm_of(source), inverse(self.perm)
        if own is None or not (own == self.perm or self._dies(source)):
            return source, back
        return source_of(source), after(own, back)

    def _outside(self, node: fx.Node) -> list[fx.Node]:
        return [user for user in node.users if user not in self.inside]

    def _dies(self, source: fx.Node) -> bool:
        return not self._outside(source)

    def _turns_back(self, node: fx.Node) -> bool:
        """Somebody outside wants the value as it was, and not permuted."""
        return any(user not in self.behind for user in self.leaving[node])

    def promises(self) -> bool:
        """Whether it could win anything at best; cheap."""
        saved = sum(moved(s) for s in self.entering if perm_of(s) == self.perm and self._dies(s))
        saved += sum(moved(user) for user, perm in self.behind.items() if is_identity(perm))
        costs = sum(2 * bytes_of(s.meta["val"]) for s, (base, _) in self.entering.items() if base is s)
        return saved > costs + sum(2 * bytes_of(node.meta["val"]) for node in self.members if self._turns_back(node))

    def works(self) -> bool:
        """Values in the new order are computed, forms at the border compared, bytes counted; `gain` is the result."""
        for source, (base, perm) in self.entering.items():
            self.values[source] = self._permuted(base.meta["val"], perm)
        for node in self.members:
            self.values[node] = self._turned_value(node)
        costs = [self._cost_of(node) for node in self.members]
        costs += [2 * bytes_of(s.meta["val"]) for s, (_, perm) in self.entering.items() if not is_identity(perm)]
        known = [cost for cost in costs if cost is not None]
        self.gain = sum(moved(node) for node in self._counted()) - sum(known)
        return len(known) == len(costs) and self.gain > 0

    def _counted(self) -> Iterator[fx.Node]:
        yield from (source for source in self.entering if perm_of(source) is not None and self._dies(source))
        yield from self.members
        for user in self.behind:
            yield user
            yield from (reader for reader in user.users if is_copy(reader))

    def _permuted(self, value: Any, perm: Perm) -> Any:
        if is_identity(perm):
            return value
        return fake_result(torch.ops.aten.permute.default, (value, list(perm)), {}, self.mode)

    def _turned_value(self, node: fx.Node) -> Any:
        def known(found: fx.Node) -> Any:
            return self.values.get(found, found.meta["val"])

        old, sources = node.meta["val"], [s for s in node.all_input_nodes if s in self.values]
        first = known(sources[0])
        plain = torch.Tag.pointwise in node.target.tags or lays_down(node)  # type: ignore[union-attr]
        shape = [old.shape[dim] for dim in inverse(self.perm)]
        if plain and all(same_form(known(s), first) for s in sources[1:]) and list(first.shape) == shape:
            quick = fake_like(first, shape, old.dtype, laid_down=lays_down(node))
            if quick is not None:
                return quick
        args, kwargs = turned(node, self.perm, fx.map_arg(node.args, known), fx.map_arg(node.kwargs, known))
        return fake_result(node.target, args, kwargs, self.mode)

    def _cost_of(self, node: fx.Node) -> int | None:
        """Bytes moved by a member and behind it in the new order; None where a reader would see another form."""
        value, cost = self.values[node], moved(node)
        if is_copy(node):
            source = source_of(node)
            behind_permute = source in self.entering and not is_identity(self.entering[source][1])
            dropped = lays_down(node) and same_form(self.values[source], value)
            cost = 0 if behind_permute or dropped else _moved_by_copy(node)
        if self._turns_back(node):
            cost += 2 * bytes_of(value)
            old = node.meta["val"]
            if not (same_form(self._permuted(value, self.perm), old) or old.is_contiguous()):
                return None
        costs = [self._cost_behind(user, value) for user in self.leaving[node] if user in self.behind]
        known = [one for one in costs if one is not None]
        return cost + sum(known) if len(known) == len(costs) else None

    def _cost_behind(self, user: fx.Node, value: Any) -> int | None:
        """Of a permute that leaves."""
        perm = self.behind[user]
        seen = self._permuted(value, perm)
        if not same_form(seen, user.meta["val"]) and not all(lays_down(reader) for reader in user.users):
            return None
        if not is_identity(perm):
            return moved(user)
        copies = [reader for reader in user.users if is_copy(reader)]
        return sum(0 if same_form(seen, reader.meta["val"]) else _moved_by_copy(reader) for reader in copies)

    def apply(self) -> None:
        """New members in front of the old ones, permutes at the border, and the old ones go."""
        editor, new = self.editor, dict[fx.Node, fx.Node]()

        def placed(source: fx.Node) -> fx.Node:
            return new.get(source, source)

        for source, (base, perm) in self.entering.items():
            first = next(node for node in self.members if source in node.all_input_nodes)
            new[source] = editor.permuted(first, source, base, perm)
        for node in self.members:
            args, kwargs = turned(node, self.perm, fx.map_arg(node.args, placed), fx.map_arg(node.kwargs, placed))
            new[node] = editor.call(node, node, node.target, *args, value=self.values[node], **kwargs)
            self._leave(node, new[node])
        for node in reversed(self.members):
            editor.graph.erase_node(node)
        editor.sweep(list(self.entering))

    def _leave(self, node: fx.Node, new: fx.Node) -> None:
        editor, others = self.editor, list[fx.Node]()
        for user in self._outside(node):  # those that the entering values brought among them
            perm = perm_of(user)
            if perm is None:
                others.append(user)
                continue
            user.replace_all_uses_with(editor.permuted(node, user, new, after(self.perm, perm)))
            editor.graph.erase_node(user)
        if others:
            back = editor.permuted(node, node, new, self.perm)
            if not same_form(back.meta["val"], node.meta["val"]):
                back = editor.laid_down(node, back)
            for user in others:
                user.replace_input_with(node, back)


def _moved_by_copy(node: fx.Node) -> int:
    return 2 * bytes_of(node.meta["val"])
