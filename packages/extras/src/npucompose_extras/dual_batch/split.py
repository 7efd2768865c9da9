"""Finds what a graph does row by row with a batch, and writes it twice, for the first half of the rows and the second.

What is read whole outside of that (a reduction over the batch, an output) is put together by a `cat` at its edge. The
halves stand side by side in the list, in the place of what they are halves of, so that the order of collectives is the
same on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx

from npucompose.graphs import Aliases, Dependence
from npucompose.graphs.effects import is_collective, is_getitem, op_facts, tensors_in
from npucompose.graphs.matching import with_arguments
from npucompose.passes.metadata import call_before
from npucompose_extras.dual_batch.rows import Batch, Found, MixesRows, PerRow, keeps_bits, per_row

aten = torch.ops.aten


@frozen(kw_only=True, eq=False)
class Region:
    """The calls that work row by row, in the graph's order, from one or several inputs on."""

    items: int
    """Of the batch."""
    seeds: Mapping[fx.Node, Batch]
    calls: Mapping[fx.Node, PerRow]
    ends: tuple[str, ...]
    """Where rows are mixed: `sum_1 (it reduces the batch)`."""

    def kernels(self, needed: Dependence) -> list[fx.Node]:
        return [node for node in needed.kernels if node in self.calls]

    def keeps_bits(self, graph: fx.Graph) -> bool:
        """Whether every result certainly has the bits that it had, however the inputs lie in memory.

        What reads both halves put together reads another layout than before where the inputs had one of their own, so
        that a sum may go another way: it counts too.
        """
        reached = set(self.calls)
        for node in graph.nodes:
            if node.op != "output" and not reached.isdisjoint(node.all_input_nodes):
                reached.add(node)
        return all(map(keeps_bits, reached))


def region_of(graph: fx.Graph, seeds: Mapping[fx.Node, Batch], aliases: Aliases, banned: frozenset[fx.Node]) -> Region:
    """What follows from `seeds` row by row; a call that is `banned` is left whole."""
    first = next(iter(seeds))
    items = int(first.meta["val"].shape[seeds[first].dim])
    known: dict[fx.Node, Found] = dict(seeds)
    calls: dict[fx.Node, PerRow] = {}
    ends: list[str] = []
    for node in graph.nodes:
        if node.op == "output" or not any(source in known for source in node.all_input_nodes):
            continue
        try:
            found = _call(node, known, items, aliases, banned)
        except MixesRows as why:
            if node.users or not is_getitem(node):  # what nobody reads ends nothing
                ends.append(f"{node.name} ({why})")
            continue
        calls[node] = found
        known[node] = found.result
    return Region(items=items, seeds=seeds, calls=calls, ends=tuple(ends))


def _call(
    node: fx.Node, known: Mapping[fx.Node, Found], items: int, aliases: Aliases, banned: frozenset[fx.Node]
) -> PerRow:
    if node in banned:
        raise MixesRows("halves of it do not fit together as the whole lies in memory")
    if any(not isinstance(size, int) for tensor in tensors_in([node.meta.get("val")]) for size in tensor.shape):
        raise MixesRows("its sizes are symbols")
    if is_getitem(node):
        parts: Any = known[node.all_input_nodes[0]]
        index: Any = node.args[1]
        if not isinstance(parts, tuple) or parts[index] is None:
            raise MixesRows("it is no result of each row")
        return PerRow(result=parts[index])
    if not aliases.is_quiet(node, *node.all_input_nodes):
        raise MixesRows("its memory is written")
    found = per_row(node, known, items)
    for operand, batch in found.sliced.items():
        size = operand.meta["val"].shape[batch.dim]
        if not isinstance(size, int) or size != items * batch.rows:
            raise MixesRows(f"'{operand.name}' has other rows")
    return found


@define(eq=False)
class _HalvesWriter:
    """Writes a region twice; `halves[node]` are the two nodes in its place."""

    graph: fx.Graph
    region: Region
    halves: dict[fx.Node, tuple[fx.Node, fx.Node]] = field(factory=dict)
    parts: dict[tuple[fx.Node, Batch], tuple[fx.Node, fx.Node]] = field(factory=dict)

    @property
    def counts(self) -> tuple[int, int]:
        """Items of the first half and of the second; of an odd number one more in the first."""
        return (self.region.items + 1) // 2, self.region.items // 2

    def write(self) -> None:
        """`Misplaced` where halves do not fit together as the whole lies; the graph is then not to be used."""
        for node in self.region.calls:
            for unread in [user for user in node.users if is_getitem(user) and not user.users]:
                if unread not in self.region.calls:
                    self.graph.erase_node(unread)
        for node, call in self.region.calls.items():
            pair = tuple(self._half(node, call, which) for which in (0, 1))
            self.halves[node] = (pair[0], pair[1])
        for node, call in reversed([*self.region.calls.items()]):
            if node.users and isinstance(call.result, Batch) and not self._is_replayed(node):
                self._join(node, call.result)
            if not node.users:
                self.graph.erase_node(node)

    def _is_replayed(self, node: fx.Node) -> bool:
        """A view of something whole is made again of that; its users read it as before."""
        return not is_getitem(node) and self.aliases.is_view(node)

    aliases: Aliases = field(kw_only=True)

    def _half(self, node: fx.Node, call: PerRow, which: int) -> fx.Node:
        def of(source: fx.Node) -> fx.Node:
            if source in self.halves:
                return self.halves[source][which]
            batch = self.region.seeds.get(source) or call.sliced.get(source)
            return source if batch is None else self._part(source, batch, node)[which]

        args, kwargs = fx.map_arg(node.args, of), fx.map_arg(node.kwargs, of)
        target: Any = node.target
        if call.sizes is not None and isinstance(call.result, Batch):
            args, kwargs = self._sized(node, call.result, call.sizes, args, kwargs, which)
        try:
            made = call_before(node, target, args, kwargs, origin=node)
        except Exception as error:
            raise Misplaced(node.name) from error
        self._check(node, made, call.result, which)
        return made

    def _sized(self, node: fx.Node, batch: Batch, name: str, args: Any, kwargs: Any, which: int) -> tuple[Any, Any]:
        """The arguments with the half's number of rows among the sizes; -1 stays."""
        target: Any = node.target
        at = next(i for i, argument in enumerate(target._schema.arguments) if argument.name == name)
        given: Any = node.args[at] if at < len(node.args) else node.kwargs[name]
        sizes = list(given)
        if sizes[batch.dim] != -1:
            sizes[batch.dim] = self.counts[which] * batch.rows
        return with_arguments(target, args, kwargs, {name: sizes})

    def _part(self, source: fx.Node, batch: Batch, before: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The rows of a half, as views; they stand where the first call reads them."""
        if (source, batch) not in self.parts:
            at, end = self.counts[0] * batch.rows, self.region.items * batch.rows
            spans = ((0, at), (at, end))
            made = [
                call_before(before, aten.slice.Tensor, (source, batch.dim, *span), {}, origin=before) for span in spans
            ]
            self.parts[source, batch] = (made[0], made[1])
        return self.parts[source, batch]

    def _check(self, node: fx.Node, made: fx.Node, result: Found, which: int) -> None:
        """The half has the shape that the rule says; a rule that is wrong about an operator ends here."""
        whole, half = list(tensors_in([node.meta["val"]])), list(tensors_in([made.meta["val"]]))
        for one, other, batch in zip(whole, half, result if isinstance(result, tuple) else [result], strict=True):
            expected = list(one.shape)
            if batch is not None:
                expected[batch.dim] = self.counts[which] * batch.rows
            if list(other.shape) != expected or other.dtype != one.dtype:
                raise Misplaced(node.name)

    def _join(self, node: fx.Node, batch: Batch) -> None:
        """Both halves in one, which lies in memory as the whole did."""
        if is_collective(node):  # nobody has waited for the halves
            raise Misplaced(node.name)
        value = node.meta["val"]
        order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), dim))
        pair: Sequence[fx.Node] = self.halves[node]
        straight = order == list(range(value.dim()))
        if not straight:
            pair = [call_before(node, aten.permute.default, (half, order), {}, origin=node) for half in pair]
        joined = call_before(node, aten.cat.default, (list(pair), order.index(batch.dim)), {}, origin=node)
        if not straight:
            back = [order.index(dim) for dim in range(value.dim())]
            joined = call_before(node, aten.permute.default, (joined, back), {}, origin=node)
        strides = zip(value.shape, value.stride(), joined.meta["val"].stride(), strict=True)
        if any(size > 1 and own != other for size, own, other in strides):
            raise Misplaced(node.name)
        node.replace_all_uses_with(joined)


class Misplaced(Exception):
    """The node of this name is not done for half of the rows, or its halves do not fit together as the whole lies in
    memory."""


def aliases_of(graph: fx.Graph) -> Aliases:
    """A wait for a collective fills what the collective returned: each half has its own wait, so that is no write."""
    return Aliases.from_graph(graph, copies=lambda node: op_facts(node).waits)


def split(graph: fx.Graph, region: Region) -> None:
    """Write the region twice, in place; raises Misplaced, and the graph is then not to be used."""
    _HalvesWriter(graph=graph, region=region, aliases=aliases_of(graph)).write()
    graph.lint()
