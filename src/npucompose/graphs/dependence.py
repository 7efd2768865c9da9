"""The order that a graph's kernels must keep: for data, for memory that is written, for random numbers, for effects.

Knows no stream. After AOTAutograd a graph is functional except for `aten.copy_(placeholder, value)` and operators
without a functional form, but nothing here relies on that: memory is followed through the storages of the fake tensors
in `node.meta["val"]` and the alias annotations of the operators' schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from attrs import frozen
from torch import fx

from npucompose.graphs import effects
from npucompose.graphs.scopes import control

Why = Literal[
    "data", "read after write", "write after read", "write after write", "random order", "effect order", "asked for"
]


def storage_of(tensor: torch.Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # a sparse tensor has none: the schema alone tells what it shares
        return None


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
            found = effects.op_facts(node)
            value = node.meta.get("val")
            if found is not None and found.makes_only and isinstance(value, torch.Tensor):
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

    def is_view(self, node: fx.Node) -> bool:
        """A call that starts no kernel because its result is memory that one of its inputs already has."""
        if effects.is_getitem(node):
            return True
        found = effects.op_facts(node)
        if found is None or not found.view:
            return False
        return not found.may_copy or any(self.keys[node] <= self.keys[source] for source in node.all_input_nodes)


def _keys(
    node: fx.Node, changed: Iterable[fx.Node], known: Mapping[fx.Node, frozenset[int]], number: int
) -> frozenset[int]:
    """The storages of the fake value, and those of the inputs that the operator has `changed` or is a view of.

    Both, because a pass that replaces a value by an equal one leaves the fake values of its views on the old storage.
    """
    value = node.meta.get("val")
    tensors = list(effects.tensors_in(value))
    if value is not None and not tensors:
        return frozenset()
    own = frozenset(storage for storage in map(storage_of, tensors) if storage is not None)
    named = {key for source in changed for key in known[source]}
    found = effects.op_facts(node)
    if effects.is_getitem(node) or (found is not None and found.view):
        shared = frozenset(key for source in node.all_input_nodes for key in known[source])
        if own.isdisjoint(shared):
            named |= shared
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
        self.last_random: fx.Node | None = None
        self.last_effect: fx.Node | None = None

    def read(self, graph: fx.Graph) -> Dependence:
        for node in graph.nodes:
            if control(node) is not None:
                self.origins[node] = ()
                continue
            needed = [kernel for source in node.all_input_nodes for kernel in self.origins[source]]
            found = effects.op_facts(node)
            if found is not None and found.makes_only:
                self._kernel(node, needed)
                self._memory(node)
                continue
            if effects.is_host(node) or self.aliases.is_view(node):
                self.origins[node] = tuple(dict.fromkeys(needed))
                continue
            self._kernel(node, needed)
            self._memory(node)
            self._order(node)
        edges = tuple(Edge(first, then, why) for (first, then), why in self.edges.items())
        return Dependence(kernels=tuple(self.kernels), edges=edges, origins=self.origins, aliases=self.aliases)

    def _kernel(self, node: fx.Node, needed: Iterable[fx.Node]) -> None:
        self.kernels.append(node)
        self.origins[node] = (node,)
        for kernel in needed:
            self._edge(kernel, node, "data")

    def _edge(self, first: fx.Node, then: fx.Node, why: Why) -> None:
        if first is not then:
            self.edges.setdefault((first, then), why)

    def _memory(self, node: fx.Node) -> None:
        if not self.aliases.written:
            return
        writes = self.aliases.of_all(effects.written_by(node))
        reads = self.aliases.of_all(node.all_input_nodes)  # what it writes among them
        for key in reads:
            if key in self.writer:
                self._edge(self.writer[key], node, "write after write" if key in writes else "read after write")
        for key in reads:
            self.readers.setdefault(key, []).append(node)
        for key in writes:
            for reader in self.readers.pop(key, ()):
                self._edge(reader, node, "write after read")
            self.writer[key] = node

    def _order(self, node: fx.Node) -> None:
        if effects.is_random(node):
            if self.last_random is not None:
                self._edge(self.last_random, node, "random order")
            self.last_random = node
        if effects.has_effect(node):
            if self.last_effect is not None:
                self._edge(self.last_effect, node, "effect order")
            self.last_effect = node
