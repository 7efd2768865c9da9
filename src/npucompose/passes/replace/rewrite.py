"""Puts a pattern's replacement in the place of what was found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from attrs import define
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.graphs import Aliases
from npucompose.graphs.effects import written_by
from npucompose.graphs.matching import Occurrence, Subgraph, value_of
from npucompose.passes.base import Outcome
from npucompose.passes.metadata import fake_like, fake_mode_of, fake_result, inherited, same_form
from npucompose.passes.proof import PartProofs, Promise, part
from npucompose.passes.replace import Pattern
from npucompose.results.graphs import RuleFacts


def replace_all(graph: fx.Graph, patterns: Sequence[Pattern], *, check: bool = False) -> Outcome:
    """Every place of every pattern, the first pattern that fits a place winning; one entry of facts for each.

    With `check` each place is held to its pattern's tolerance by itself (PassError names the pattern).
    """
    proofs = PartProofs() if check else None
    whole = _Whole.of(graph)
    counts = {pattern.name: _replaced(whole, pattern, proofs) for pattern in patterns}
    return facts_of(counts, patterns, errors=proofs.errors if proofs is not None else {})


def facts_of(
    counts: Mapping[str, int], patterns: Sequence[Pattern], *, errors: Mapping[str, float] | None = None, way: str = ""
) -> Outcome:
    """What so many places of each pattern make of a graph; `errors` of those whose places were compared."""
    used = [pattern for pattern in patterns if counts.get(pattern.name)]
    return Outcome(
        matches=sum(counts.values()),
        exact=not used,
        rtol=max((pattern.rtol for pattern in used), default=0.0),
        atol=max((pattern.atol for pattern in used), default=0.0),
        rules=tuple(
            RuleFacts(
                rule=pattern.name,
                kind="replace",
                op=pattern.name,
                matches=counts[pattern.name],
                rtol=pattern.rtol,
                atol=pattern.atol,
                max_abs_err=(errors or {}).get(pattern.name),
                way=way,
            )
            for pattern in used
        ),
    )


@define(eq=False)
class _Whole:
    """The graph, read once for all places: a walk over it for each of them would make the cost grow with its square."""

    graph: fx.Graph
    order: dict[fx.Node, float]
    """Places in the list; what is put in stands between those that were there."""
    written: frozenset[fx.Node]
    """Nodes that name memory which somebody writes."""

    @classmethod
    def of(cls, graph: fx.Graph) -> _Whole:
        order = {node: float(at) for at, node in enumerate(graph.nodes)}
        if not any(written_by(node) for node in graph.nodes):
            return cls(graph, order, frozenset())
        aliases = Aliases.from_graph(graph)
        return cls(graph, order, frozenset(n for n in order if not aliases.is_quiet(n)))

    def put_in(self, nodes: Sequence[fx.Node], before: fx.Node) -> None:
        """`nodes` were put in front of `before`, one behind the other."""
        high = self.order[before]
        low = self.order.get(nodes[0].prev, high - 1) if nodes else high
        for at, node in enumerate(nodes):
            self.order[node] = low + (high - low) * (at + 1) / (len(nodes) + 1)


def _replaced(whole: _Whole, pattern: Pattern, proofs: PartProofs | None) -> int:
    """How many places of one pattern were replaced."""
    count = 0
    for search in searches(type(pattern)):
        anchors = [node for node in whole.graph.nodes if node.target == search.anchor.target]
        for anchor in anchors:
            found = None if anchor._erased else search.at(anchor)
            if (
                found is not None
                and _fits(pattern, search, found)
                and _rewritten(whole, pattern, search, found, proofs)
            ):
                count += 1
    return count


@functools.cache
def searches(pattern: type[Pattern]) -> tuple[Subgraph, ...]:
    """Every way in which a pattern may be written, traced once in a process."""
    made = pattern()
    return tuple(_search(made, find, dtype) for find, dtype in made.finds())


def _search(pattern: Pattern, find: Callable[..., Any], dtype: torch.dtype) -> Subgraph:
    inputs = [tensor.to("meta", dtype) for tensor in pattern.inputs()]
    return Subgraph.from_graph(traced(lambda *given: find(*given, *pattern.scalars.values()), inputs), pattern.scalars)


def traced(function: Callable[..., Any], inputs: Sequence[Any], mode: Literal["real", "fake"] = "real") -> fx.Graph:
    """The graph of `function`; passes run while torch traces itself, and that is put away meanwhile.

    In mode "real" torch notes each value without its storage offset.
    """
    with _disable_current_modes(), torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*inputs).graph


def _fits(pattern: Pattern, search: Subgraph, found: Occurrence) -> bool:
    values = [found.nodes[tensor].meta.get("val") for tensor in search.tensors]
    return all(isinstance(value, torch.Tensor) for value in values) and pattern.fits(values, found.numbers)


def _rewritten(whole: _Whole, pattern: Pattern, search: Subgraph, found: Occurrence, proofs: PartProofs | None) -> bool:
    """The new calls stand where the first result stood, so that everybody who reads one comes after them."""
    graph, order = whole.graph, whole.order
    outputs = [found.nodes[output] for output in search.outputs]
    tensors = [found.nodes[tensor] for tensor in search.tensors]
    first = min(outputs, key=order.__getitem__)
    if any(order[tensor] >= order[first] for tensor in tensors):
        return False
    if not whole.written.isdisjoint(found.nodes.values()):
        return False  # somebody writes memory that the pattern reads or makes: its place in the order counts
    new_nodes, made = _traced(graph, first, pattern, tensors, found)
    forms = zip(made, outputs, strict=True)
    if not all(same_form(new.meta["val"], old.meta["val"]) for new, old in forms):
        for node in reversed(new_nodes):
            graph.erase_node(node)
        return False
    whole.put_in(new_nodes, first)
    old_nodes = sorted(set(found.nodes.values()) - set(tensors), key=order.__getitem__)
    if proofs is not None:
        name, promise = pattern.name, Promise(exact=False, rtol=pattern.rtol, atol=pattern.atol)
        where = f"pattern '{name}' (node {outputs[0].name})"
        proofs.hold(name, where, part(tensors, old_nodes, outputs), part(tensors, new_nodes, made), promise)
    for new, old in zip(made, outputs, strict=True):
        old.replace_all_uses_with(new)
    for node in reversed(old_nodes):
        if not node.users:
            graph.erase_node(node)
    return True


def _traced(
    graph: fx.Graph, before: fx.Node, pattern: Pattern, tensors: Sequence[fx.Node], found: Occurrence
) -> tuple[list[fx.Node], list[fx.Node]]:
    """(the replacement's calls in front of `before`, those of them that are its results)."""
    numbers = tuple(found.numbers[name] for name in pattern.scalars)
    fakes = [tensor.meta["val"] for tensor in tensors]
    forms = tuple((tuple(f.shape), tuple(f.stride()), f.dtype) for f in fakes)
    static = all(isinstance(size, int) for shape, strides, _ in forms for size in (*shape, *strides))
    small = _replacement(type(pattern), numbers, forms) if static else traced(_bound(pattern, numbers), fakes)
    mode = fake_mode_of(before)
    known: dict[fx.Node, fx.Node] = dict(zip((n for n in small.nodes if n.op == "placeholder"), tensors, strict=True))
    new_nodes: list[fx.Node] = []
    results: Any = ()
    for node in small.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node.op == "call_function":
            with graph.inserting_before(before):
                new = graph.node_copy(node, known.__getitem__)
            new.meta = inherited(before)
            new.meta["val"] = _like(node.meta["val"], fakes[0]) if static else _value(new, mode)
            known[node] = new
            new_nodes.append(new)
    given = results if isinstance(results, (list, tuple)) else (results,)
    return new_nodes, [known[result] for result in given]


@functools.lru_cache(maxsize=256)
def _replacement(pattern: type[Pattern], numbers: tuple[float, ...], forms: tuple[Any, ...]) -> fx.Graph:
    """What a pattern becomes for tensors of those forms: the same for every layer of a model."""
    metas = [torch.empty_strided(shape, strides, dtype=dtype, device="meta") for shape, strides, dtype in forms]
    return traced(_bound(pattern(), numbers), metas, mode="fake")


def _bound(pattern: Pattern, numbers: Sequence[float]) -> Callable[..., Any]:
    return lambda *given: pattern.replace(*given, *numbers)


def _like(value: Any, model: Any) -> Any:
    """A fake value of the graph's own kind with the form of one that was traced apart."""
    if isinstance(value, (list, tuple)):
        return type(value)(_like(item, model) for item in value)
    return fake_like(model, value.shape, value.dtype, strides=value.stride(), offset=value.storage_offset())


def _value(node: fx.Node, mode: Any) -> Any:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return fake_result(target, node.args, node.kwargs, mode)
    return target(*fx.map_arg(node.args, value_of))  # getitem
