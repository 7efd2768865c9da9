"""Finds a small graph inside a large one, backwards from its last node. Changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from attrs import define, field, frozen
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from npucompose.passes.replace.pattern import Pattern

aten = torch.ops.aten
COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor)


@frozen(kw_only=True, eq=False)
class Search:
    """One way to write a pattern, as a graph."""

    pattern: Pattern
    tensors: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    inner: frozenset[fx.Node]
    """Its calls that are no outputs: nobody else may read what they stand for."""

    @classmethod
    def of(cls, pattern: Pattern, find: Callable[..., Any], dtype: torch.dtype) -> Search:
        graph = traced(
            lambda *given: find(*given, *pattern.scalars.values()), [x.to("meta", dtype) for x in pattern.inputs()]
        )
        results: Any = next(node for node in graph.nodes if node.op == "output").args[0]
        outputs = tuple(results) if isinstance(results, (list, tuple)) else (results,)
        return cls(
            pattern=pattern,
            tensors=tuple(node for node in graph.nodes if node.op == "placeholder"),
            outputs=outputs,
            inner=frozenset(n for n in graph.nodes if n.op == "call_function") - frozenset(outputs),
        )

    @property
    def anchor(self) -> fx.Node:
        """The first result: from here the search goes back."""
        return self.outputs[0]


@define
class Found:
    """Nodes of the pattern -> nodes of the graph, scalars by name."""

    nodes: dict[fx.Node, fx.Node] = field(factory=dict)
    numbers: dict[str, float] = field(factory=dict)


@functools.cache
def searches(pattern: type[Pattern]) -> tuple[Search, ...]:
    """Every way in which a pattern may be written, traced once in a process."""
    made = pattern()
    return tuple(Search.of(made, find, dtype) for find, dtype in made.finds())


def traced(function: Callable[..., Any], inputs: Sequence[Any], mode: Literal["real", "fake"] = "real") -> fx.Graph:
    """The graph of `function`; passes run while torch traces itself, and that is put away meanwhile.

    In mode "real" torch notes each value without its storage offset.
    """
    with _disable_current_modes(), torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*inputs).graph


def match(search: Search, node: fx.Node) -> Found | None:
    """What `search` finds with its last call at `node`."""
    found = Found()
    if not _node(search, search.anchor, node, found):
        return None
    if any(output not in found.nodes for output in search.outputs) or len(found.numbers) != len(search.pattern.scalars):
        return None
    mapped = set(found.nodes.values())
    for inner in search.inner:
        if not all(user in mapped for user in found.nodes[inner].users):
            return None
    given = [found.nodes[tensor].meta.get("val") for tensor in search.tensors]
    values = [value for value in given if isinstance(value, torch.Tensor)]
    if len(values) < len(given):
        return None
    return found if search.pattern.fits(values, found.numbers) else None


def _node(search: Search, wanted: fx.Node, node: Any, found: Found) -> bool:
    if not isinstance(node, fx.Node):
        return False
    if wanted in found.nodes:
        return found.nodes[wanted] is node
    if wanted.op == "placeholder":
        found.nodes[wanted] = node
        return True
    if node.op != "call_function" or node.target != wanted.target or len(node.args) != len(wanted.args):
        return False
    found.nodes[wanted] = node
    orders: list[Sequence[Any]] = [node.args]
    if node.target in COMMUTATIVE and len(node.args) == 2:
        orders.append(node.args[::-1])
    before = Found(dict(found.nodes), dict(found.numbers))
    for args in orders:
        found.nodes, found.numbers = dict(before.nodes), dict(before.numbers)
        if _all(search, wanted.args, args, found) and _kwargs(search, wanted.kwargs, node.kwargs, found):
            return True
    return False


def _kwargs(search: Search, wanted: Mapping[str, Any], given: Mapping[str, Any], found: Found) -> bool:
    return wanted.keys() == given.keys() and _all(search, list(wanted.values()), [given[k] for k in wanted], found)


def _all(search: Search, wanted: Sequence[Any], given: Sequence[Any], found: Found) -> bool:
    return len(wanted) == len(given) and all(_one(search, a, b, found) for a, b in zip(wanted, given, strict=True))


def _one(search: Search, wanted: Any, given: Any, found: Found) -> bool:
    if isinstance(wanted, fx.Node):
        return _node(search, wanted, given, found)
    if isinstance(wanted, (list, tuple)):
        return isinstance(given, (list, tuple)) and _all(search, wanted, given, found)
    for name, stands_for in search.pattern.scalars.items():
        if type(wanted) is type(stands_for) and wanted == stands_for:
            return type(given) in (int, float) and found.numbers.setdefault(name, given) == given
    return type(wanted) is type(given) and wanted == given
