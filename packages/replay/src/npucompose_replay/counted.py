"""Numbers that a graph only counts: a position comes in as `n` and goes out as `n + 1`, and no kernel reads it.

They are no part of a signature. A recording has the numbers that the graph was traced with, and what a call's own
numbers become is computed beside it: so count the layers with a window of transformers' caches the steps of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from npucompose.graphs.effects import has_effect, is_host, tensors_in

Sources = dict[fx.Node, frozenset[fx.Node]]
"""{node: the placeholders that it is computed of}."""


@frozen(kw_only=True, eq=False)
class CountedNumbers:
    inputs: tuple[int, ...]
    traced: tuple[int, ...]
    """The number of each when the graph was traced."""
    symbols: frozenset[str]
    outputs: tuple[int, ...]
    count: Callable[..., Sequence[Any]]
    """Of the inputs' numbers the outputs'."""

    @classmethod
    def from_graph(cls, graph: fx.Graph) -> CountedNumbers | None:
        """Those of a graph of AOTAutograd's; None where it has none."""
        places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
        counted = [node for node in places if _symbol(node.meta.get("val")) is not None]
        if not counted:
            return None
        counted = _unread_by_kernels(graph, counted)
        if not counted:
            return None
        sources = _sources(graph, counted)
        results = list(graph.output_node().args[0])  # pyright: ignore[reportArgumentType]
        outputs = tuple(k for k, node in enumerate(results) if isinstance(node, fx.Node) and node in sources)
        return cls(
            inputs=tuple(places[node] for node in counted),
            traced=tuple(node.meta["val"].node.hint for node in counted),
            symbols=frozenset(str(_symbol(node.meta["val"])) for node in counted),
            outputs=outputs,
            count=_arithmetic(sources, [results[k] for k in outputs]),
        )

    def differ(self, inputs: Sequence[Any]) -> bool:
        """Whether a call has other numbers than the graph was traced with."""
        return tuple([inputs[i] for i in self.inputs]) != self.traced

    def beside(self, call: Callable[[list[Any]], list[Any]], inputs: Sequence[Any]) -> list[Any]:
        """The outputs of `call` for `inputs`, which is called with the numbers of the trace."""
        numbers, given = [inputs[i] for i in self.inputs], list(inputs)
        for i, number in zip(self.inputs, self.traced, strict=True):
            given[i] = number
        outputs = list(call(given))
        for k, number in zip(self.outputs, self.count(*numbers), strict=True):
            outputs[k] = number
        return outputs

    def inputs_of(self, graph: fx.Graph) -> frozenset[int]:
        """The inputs of Dynamo's graph, of which the graph was made, that are these numbers."""
        found = [_symbol(node.meta.get("example_value")) for node in graph.find_nodes(op="placeholder")]
        return frozenset(i for i, symbol in enumerate(found) if symbol is not None and str(symbol) in self.symbols)


def _symbol(value: Any) -> Any:
    """Of a number that is a symbol by itself; None of all else."""
    if not isinstance(value, torch.SymInt) or value.node.hint is None:
        return None
    return value.node.expr if value.node.expr.is_Symbol else None


def _unread_by_kernels(graph: fx.Graph, numbers: Sequence[fx.Node]) -> list[fx.Node]:
    """Those of `numbers` that nothing reads but arithmetic on them whose results the graph returns."""
    of_tensors = {
        symbol for node in graph.nodes for one in tensors_in(node.meta.get("val")) for symbol in free_symbols(one)
    }
    left = [node for node in numbers if _symbol(node.meta["val"]) not in of_tensors]
    while True:
        sources = _sources(graph, left)
        read = {one for node in graph.nodes if not _only_counts(node, sources) for one in _fed_by(node, sources)}
        if not read:
            return left
        left = [node for node in left if node not in read]


def _sources(graph: fx.Graph, numbers: Sequence[fx.Node]) -> Sources:
    sources: Sources = {node: frozenset((node,)) for node in numbers}
    for node in graph.nodes:
        if node.all_input_nodes and all(one in sources for one in node.all_input_nodes) and _is_number(node):
            sources[node] = _fed_by(node, sources)
    return sources


def _fed_by(node: fx.Node, sources: Sources) -> frozenset[fx.Node]:
    return frozenset().union(*(sources.get(one, ()) for one in node.all_input_nodes))


def _only_counts(node: fx.Node, sources: Sources) -> bool:
    if node.op == "output":
        results = node.args[0]
        return isinstance(results, (list, tuple)) and all(
            isinstance(one, (fx.Node, int, type(None))) for one in results
        )
    return node in sources


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, torch.SymInt) and is_host(node) and not has_effect(node)


def _arithmetic(sources: Sources, results: Sequence[fx.Node]) -> Callable[..., Sequence[Any]]:
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in sources:  # the inputs stand first, and then all in the graph's order
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[node] for node in results))
    return fx.GraphModule(torch.nn.Module(), graph).forward
