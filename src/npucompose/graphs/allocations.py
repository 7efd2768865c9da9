"""The memory that a graph's kernels make: who made each piece, who holds it, who touches it.

# Note [Alias sets]
A value is not a piece of memory: `r = relu_(c)` is c's memory under another name, and so are a view of it and what a
getitem takes out of a tuple. A piece of memory lives as long as *something* that certainly lies in it is mentioned, and
everything that *may* lie in it may touch it. The two differ where only the schema speaks (a reshape that may copy, an
operator without schema): such a value counts among those that touch a piece, and not among those that hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.graphs import effects
from npucompose.graphs.dependence import Dependence, storage_of
from npucompose.graphs.scopes import control

Pieces = frozenset[int]
NONE: Pieces = frozenset()


@frozen(kw_only=True, eq=False)
class Allocation:
    """One piece of memory that the graph makes and that no input or constant owns.

    For `c = clone(x); r = relu_(c); v = r.view(-1); n = neg(v)`: made by clone, held by c, r and v, touched by relu_
    and neg, last mentioned at neg.
    """

    maker: fx.Node
    storage: int | None
    """Of the fake value; None where a node has none."""
    holders: Sequence[fx.Node]
    """The nodes whose values certainly lie in it, in the graph's order."""
    touched_by: Sequence[fx.Node]
    """The kernels beside its maker that may read or write it, in the graph's order."""
    mentioned: fx.Node
    """Where the graph names a holder for the last time."""
    returned: bool
    """The graph's caller gets it, or a view of it."""


def allocations(graph: fx.Graph, needed: Dependence) -> list[Allocation]:
    """Every piece of memory of a graph, by maker; `needed` may be of the graph before scopes and events came in.

    A wait for a tensor does not hold it: TorchAir puts a record in its place.
    """
    walk = _Walk(needed)
    for node in graph.nodes:
        if control(node) is None:
            walk.node(node)
    return [
        Allocation(
            maker=piece.maker,
            storage=piece.storage,
            holders=piece.holders,
            touched_by=piece.touched_by,
            mentioned=piece.mentioned,
            returned=piece.returned,
        )
        for piece in walk.pieces
    ]


@define(eq=False)
class _Piece:
    maker: fx.Node
    storage: int | None
    mentioned: fx.Node
    holders: list[fx.Node] = field(factory=list)
    touched_by: list[fx.Node] = field(factory=list)
    returned: bool = False


class _Walk:
    def __init__(self, needed: Dependence) -> None:
        self.aliases, self.kernels = needed.aliases, frozenset(needed.kernels)
        self.pieces: list[_Piece] = []
        self.held: dict[fx.Node, Pieces] = {}
        self.maybe: dict[fx.Node, Pieces] = {}
        """A superset of `held`."""

    def node(self, node: fx.Node) -> None:
        sources = node.all_input_nodes
        for source in sources:
            for number in self.held.get(source, NONE):
                self.pieces[number].mentioned = node
                self.pieces[number].returned |= node.op == "output"
        if node in self.kernels:
            for number in self._given(sources):
                self.pieces[number].touched_by.append(node)
            held, maybe = self._of_kernel(node)
        elif self.aliases.is_view(node):
            held, maybe = self._of_view(node)
        else:
            return
        self.held[node], self.maybe[node] = held, maybe
        for number in held:
            self.pieces[number].holders.append(node)

    def _of_view(self, node: fx.Node) -> tuple[Pieces, Pieces]:
        given = self._given(node.all_input_nodes)
        # A pass that replaces a value leaves the fake values of its views on the old storage: then one piece is it.
        held = self._within(given, _storages(node)) or (given if len(given) == 1 else NONE)
        return held, held or given

    def _of_kernel(self, node: fx.Node) -> tuple[Pieces, Pieces]:
        own, facts = _storages(node), effects.op_facts(node)
        if facts is not None and facts.makes_only:
            made = self._made(node, own)
            return made, made
        if _returns_what_it_writes(node):
            written = self._given(effects.written_by(node))
            return (written if len(written) == 1 else self._within(written, own)), written
        sources, keys = node.all_input_nodes, self.aliases.keys
        fresh = own - self.aliases.of_all(sources)
        held = self._within(self._given(sources), own)
        if fresh or not own:
            held |= self._made(node, fresh)
        return held, held | self._given(source for source in sources if not keys[node].isdisjoint(keys[source]))

    def _given(self, sources: Iterable[fx.Node]) -> Pieces:
        return frozenset(number for source in sources for number in self.maybe.get(source, NONE))

    def _within(self, pieces: Pieces, storages: frozenset[int]) -> Pieces:
        return frozenset(number for number in pieces if self.pieces[number].storage in storages)

    def _made(self, node: fx.Node, storages: frozenset[int]) -> Pieces:
        """A piece for each of the value's `storages`; one for a value that shows none, unless it holds no tensor."""
        if "val" in node.meta and not effects.holds_tensor(node.meta["val"]):
            return NONE
        begin = len(self.pieces)
        self.pieces += [_Piece(node, storage, node) for storage in storages or (None,)]
        return frozenset(range(begin, len(self.pieces)))


def _storages(node: fx.Node) -> frozenset[int]:
    tensors = effects.tensors_in(node.meta.get("val"))
    return frozenset(storage for storage in map(storage_of, tensors) if storage is not None)


def _returns_what_it_writes(node: fx.Node) -> bool:
    """`relu_(c)` is c."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    aliases = [result.alias_info for result in node.target._schema.returns]
    return [alias is not None and alias.is_write for alias in aliases] == [True]
