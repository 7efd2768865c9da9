"""Computes once what is computed twice (common subexpression elimination)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities

if TYPE_CHECKING:
    from torch import fx

    from npucompose.passes.outputs import Visible


@frozen(kw_only=True)
class Cse(Pass):
    """Let two equal calls be one: same operator, same arguments, same shape, strides and dtype.

    before:  a = relu(x);  b = relu(x);  return a * b
    after:   a = relu(x);  return a * a

    Left alone: calls that write memory, draw random numbers, have side effects or are unknown; calls that read or make
    memory that some call of the graph writes; factories without a value (`empty`); calls whose merging would let two
    outputs, or an output and an input, share memory (Note [Outputs keep their aliases]); a graph with stream scopes,
    where the first call need not be done before the second one's readers.
    """

    name: ClassVar[str] = "cse"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs import is_planned

        return 0 if is_planned(graph) else merge_equal(graph, lambda node: True)


def merge_equal(graph: fx.Graph, wanted: Callable[[fx.Node], bool]) -> int:
    """Merge equal calls among the nodes that `wanted` names; how many are gone."""
    from npucompose.graphs import Aliases
    from npucompose.passes.outputs import Visible

    visible: Visible | None = None  # made when two equal calls are found: it reads the whole graph
    first: dict[Any, list[fx.Node]] = {}
    merged = 0
    for node in list(graph.nodes):
        if not wanted(node) or not _mergeable(node):
            continue
        same = first.setdefault(_key(node), [])
        if same:
            visible = visible or Visible(graph, Aliases.from_graph(graph))
        kept = next((earlier for earlier in same if visible and _may_join(visible, earlier, node)), None)
        if kept is None:
            same.append(node)
            continue
        assert visible is not None
        visible.merge(kept, node)
        merged += 1
    return merged


def _mergeable(node: fx.Node) -> bool:
    from npucompose.graphs.effects import is_removable

    return node.op == "call_function" and is_removable(node) and "empty" not in str(node.target)


def _may_join(visible: Visible, kept: fx.Node, gone: fx.Node) -> bool:
    aliases = visible.aliases
    quiet = aliases.written.isdisjoint(aliases.of_all((kept, gone, *gone.all_input_nodes)))
    return quiet and visible.may_join(kept, gone)


def _key(node: fx.Node) -> Any:
    """Equal for calls that give equal bits: 1, 1.0 and True differ here, and so do -0.0 and 0.0."""
    return node.target, _frozen(node.args), _frozen(node.kwargs), _form(node.meta.get("val"))


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return "dict", tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return "slice", tuple(_frozen(part) for part in (value.start, value.stop, value.step))
    return (type(value).__name__, repr(value)) if isinstance(value, (bool, int, float, complex)) else value


def _form(value: Any) -> Any:
    """Shape, strides, dtype, device as text: symbols compare by name."""
    import torch

    if isinstance(value, (list, tuple)):
        return tuple(_form(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = str(value.stride()) if value.layout is torch.strided else str(value.layout)
    return str(tuple(value.shape)), strides, value.dtype, value.device
