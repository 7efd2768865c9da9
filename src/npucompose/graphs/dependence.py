"""The order that a graph's kernels must keep (for data, for memory that is written, for random numbers, for effects),
and the pieces of memory that they make.

Knows no stream. After AOTAutograd a graph is functional except for `aten.copy_(placeholder, value)` and operators
without a functional form, but nothing here relies on that: memory is followed through the storages of the fake tensors
in `node.meta["val"]` and the alias annotations of the operators' schemas.

# Note [Alias sets]
A value is not a piece of memory: `r = relu_(c)` is c's memory under another name, and so are a view of it and what a
getitem takes out of a tuple. A piece of memory lives as long as *something* that certainly lies in it is mentioned, and
everything that *may* lie in it may touch it. The two differ where only the schema speaks (a reshape that may copy, an
operator without schema): such a value counts among those that touch a piece, and not among those that hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.graphs import effects
from npucompose.graphs.effects import control

Why = Literal[
    "data", "read after write", "write after read", "write after write", "random order", "effect order", "asked for"
]

Pieces = frozenset[int]
NONE: Pieces = frozenset()


def storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # a sparse tensor has none: the schema alone tells what it shares
        return None


def _storages(node: fx.Node) -> frozenset[int]:
    """Of the tensors in a node's fake value."""
    tensors = effects.tensors_in(node.meta.get("val"))
    return frozenset(storage for storage in map(storage_of, tensors) if storage is not None)


@frozen(kw_only=True, eq=False)
class Aliases:
    """Which nodes may name the same memory: two nodes do when their keys meet."""

    keys: Mapping[fx.Node, frozenset[int]]
    written: frozenset[int]
    """The keys of all memory that some node of the graph changes."""

    @classmethod
    def from_graph(cls, graph: fx.Graph, copies: Callable[[fx.Node], bool] = lambda _: False) -> Aliases:
        """Of a node that `copies`, it is known that it changes copies of its inputs only."""
        keys: dict[fx.Node, frozenset[int]] = {}
        written: set[int] = set()
        for number, node in enumerate(graph.nodes):
            value = node.meta.get("val")
            if effects.op_facts(node).makes_only and isinstance(value, torch.Tensor):
                storage = storage_of(value)
                keys[node] = frozenset((-1 - number if storage is None else storage,))
                continue
            changed = () if copies(node) else effects.written_by(node)
            keys[node] = _keys(node, changed, keys, number)
            for target in changed:
                written |= keys[target]
        return cls(keys=keys, written=frozenset(written))

    def shares(self, a: fx.Node, b: fx.Node) -> bool:
        return not self.keys[a].isdisjoint(self.keys[b])

    def of_all(self, nodes: Iterable[fx.Node]) -> frozenset[int]:
        return frozenset(key for node in nodes for key in self.keys[node])

    def is_quiet(self, *nodes: fx.Node) -> bool:
        """Nobody writes the memory of these."""
        return self.written.isdisjoint(self.of_all(nodes))

    def is_view(self, node: fx.Node) -> bool:
        """A call that starts no kernel because its result is memory that one of its inputs already has."""
        found = effects.op_facts(node)
        return found.view and (
            not found.may_copy or any(self.keys[node] <= self.keys[source] for source in node.all_input_nodes)
        )


def written_inputs(graph: fx.Graph) -> frozenset[int]:
    """The placeholders, by their number, that a graph writes to, or to memory that may be theirs."""
    aliases = Aliases.from_graph(graph)
    given = enumerate(graph.find_nodes(op="placeholder"))
    return frozenset(i for i, node in given if not aliases.keys[node].isdisjoint(aliases.written))


def _keys(
    node: fx.Node, changed: Iterable[fx.Node], known: Mapping[fx.Node, frozenset[int]], number: int
) -> frozenset[int]:
    """The storages of the fake value, and those of the inputs that the operator has `changed` or is a view of.

    Both, because a pass that replaces a value by an equal one leaves the fake values of its views on the old storage,
    and those of the views of these views.
    """
    value = node.meta.get("val")
    if value is not None and not effects.holds_tensor(value):
        return frozenset()
    own = _storages(node)
    named = {key for source in changed for key in known[source]}
    if effects.op_facts(node).view:
        shared = {key for source in node.all_input_nodes for key in known[source]}
        views = (source for source in node.all_input_nodes if effects.op_facts(source).view)
        named |= shared if own.isdisjoint(shared) else {key for one in views for key in known[one] - _storages(one)}
    return own | named or frozenset((-1 - number,))


@frozen
class Edge:
    first: fx.Node
    then: fx.Node
    why: Why


@frozen(kw_only=True, eq=False)
class Dependence:
    """The kernels of a graph and the order they must keep.

    For `mm = x @ x; v = mm.view(-1); r = relu(v)` the kernels are mm and relu, the one edge is (mm, relu, "data"):
    views, getitem, arithmetic on sizes, inputs and constants start no kernel and belong to what they are made of.
    """

    kernels: tuple[fx.Node, ...]
    """Nodes that start something, in the graph's order."""
    edges: tuple[Edge, ...]
    """Each goes forward in the graph's order; at most one for a pair of kernels."""
    origins: Mapping[fx.Node, tuple[fx.Node, ...]]
    """The kernels that a node's result needs to be there: itself for a kernel, none for an input."""
    aliases: Aliases
    awaited: Mapping[fx.Node, tuple[fx.Node, ...]] = field(factory=dict)
    """{kernel that waits: the collectives whose results it waits for}."""

    @classmethod
    def from_graph(cls, graph: fx.Graph) -> Dependence:
        return _Reader(Aliases.from_graph(graph)).read(graph)

    def home(self, node: fx.Node) -> fx.Node | None:
        """The kernel that a node without one belongs to: for a view the maker of its memory; None for an input."""
        for source in node.all_input_nodes:
            if self.origins.get(source) and (self.aliases.shares(node, source) or effects.is_getitem(node)):
                return self.origins[source][0]
        return None


class _Reader:
    """One walk over a graph; remembers who wrote and who read each piece of memory last."""

    def __init__(self, aliases: Aliases) -> None:
        self.aliases = aliases
        self.kernels: list[fx.Node] = []
        self.edges: dict[tuple[fx.Node, fx.Node], Why] = {}
        self.origins: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self.writer: dict[int, fx.Node] = {}
        self.readers: dict[int, list[fx.Node]] = {}
        self.last: dict[Why, fx.Node] = {}
        """Who drew random numbers, and who had an effect, last."""
        self.awaited: dict[fx.Node, list[fx.Node]] = {}

    def read(self, graph: fx.Graph) -> Dependence:
        for node in graph.nodes:
            if control(node) is not None:
                self.origins[node] = ()
                continue
            needed = [kernel for source in node.all_input_nodes for kernel in self.origins[source]]
            found = effects.op_facts(node)
            if not found.makes_only and (found.host or self.aliases.is_view(node)):
                self.origins[node] = tuple(dict.fromkeys(needed))
                continue
            self.kernels.append(node)
            self.origins[node] = (node,)
            for kernel in needed:
                self._edge(kernel, node, "data")
            self._memory(node)
            self._ordered(node, "random order", found.random)
            self._ordered(node, "effect order", found.effect)
            for wait in effects.waits_for(node) if found.collective else ():
                self.awaited.setdefault(wait, []).append(node)
        awaited = {wait: tuple(collectives) for wait, collectives in self.awaited.items()}
        edges = tuple(Edge(first, then, why) for (first, then), why in self.edges.items())
        return Dependence(
            kernels=tuple(self.kernels), edges=edges, origins=self.origins, aliases=self.aliases, awaited=awaited
        )

    def _edge(self, first: fx.Node, then: fx.Node, why: Why) -> None:
        if first is not then:
            self.edges.setdefault((first, then), why)

    def _memory(self, node: fx.Node) -> None:
        if not self.aliases.written:
            return
        writes = self.aliases.of_all(effects.written_by(node))
        sources = dict.fromkeys(node.all_input_nodes)  # what it writes among them
        for collective in self.awaited.get(node, ()):
            sources.update(dict.fromkeys(collective.all_input_nodes))
        reads = self.aliases.of_all(sources)
        for key in reads:
            if key in self.writer:
                self._edge(self.writer[key], node, "write after write" if key in writes else "read after write")
        for key in reads:
            self.readers.setdefault(key, []).append(node)
        for key in writes:
            for reader in self.readers.pop(key, ()):
                self._edge(reader, node, "write after read")
            self.writer[key] = node

    def _ordered(self, node: fx.Node, why: Why, counts: bool) -> None:
        if counts:
            self._edge(self.last.get(why, node), node, why)
            self.last[why] = node


@define(kw_only=True, eq=False)
class Allocation:
    """One piece of memory that the graph makes and that no input or constant owns.

    For `c = clone(x); r = relu_(c); v = r.view(-1); n = neg(v)`: made by clone, held by c, r and v, touched by relu_
    and neg, last mentioned at neg.
    """

    maker: fx.Node
    storage: int | None
    """Of the fake value; None where a node has none."""
    mentioned: fx.Node
    """Where the graph names a holder for the last time."""
    holders: list[fx.Node] = field(factory=list)
    """The nodes whose values certainly lie in it, in the graph's order."""
    touched_by: list[fx.Node] = field(factory=list)
    """The kernels beside its maker that may read or write it, in the graph's order."""
    returned: bool = False
    """The graph's caller gets it, or a view of it."""


def allocations(graph: fx.Graph, needed: Dependence) -> list[Allocation]:
    """Every piece of memory of a graph, by maker; `needed` may be of the graph before scopes and events came in.

    A wait for a tensor does not hold it: TorchAir puts a record in its place.
    """
    walk = _DependenceWalk(needed)
    for node in graph.nodes:
        if control(node) is None:
            walk.node(node)
    return walk.pieces


class _DependenceWalk:
    def __init__(self, needed: Dependence) -> None:
        self.aliases, self.kernels = needed.aliases, frozenset(needed.kernels)
        self.awaited = needed.awaited
        self.pieces: list[Allocation] = []
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
            for number in self._given([*sources, *self._read_until(node)]):
                self.pieces[number].touched_by.append(node)
            held, maybe = self._of_kernel(node)
        elif self.aliases.is_view(node):
            held, maybe = self._of_view(node)
        else:
            return
        self.held[node], self.maybe[node] = held, maybe
        for number in held:
            self.pieces[number].holders.append(node)

    def _read_until(self, wait: fx.Node) -> list[fx.Node]:
        """What collectives read for as long as nobody has waited for them."""
        return [source for collective in self.awaited.get(wait, ()) for source in collective.all_input_nodes]

    def _of_view(self, node: fx.Node) -> tuple[Pieces, Pieces]:
        given = self._given(node.all_input_nodes)
        # A pass that replaces a value leaves the fake values of its views on the old storage: then one piece is it.
        held = self._within(given, _storages(node)) or (given if len(given) == 1 else NONE)
        return held, held or given

    def _of_kernel(self, node: fx.Node) -> tuple[Pieces, Pieces]:
        own, found = _storages(node), effects.op_facts(node)
        if found.makes_only:
            made = self._made(node, own)
            return made, made
        if found.in_place:
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
        self.pieces += [Allocation(maker=node, storage=storage, mentioned=node) for storage in storages or (None,)]
        return frozenset(range(begin, len(self.pieces)))
