"""Removes calls that change nothing, down to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities

if TYPE_CHECKING:
    import torch
    from torch import fx

    from npucompose.graphs import Aliases


@frozen(kw_only=True)
class RemoveNoop(Pass):
    """Replace a call by its input where result and input are the same bits in the same form.

    before:  v = view(x, [2, 3]);  c = clone(v);  return relu(c)          (x is already [2, 3])
    after:   return relu(x)

    Same form: shape, strides, offset, dtype, device, conjugate and negative bit. Then these change nothing:
    - views of the same form (view, expand, permute, slice, squeeze, alias, detach, …): the same memory;
    - copies: clone, _to_copy (same dtype, device and layout), cat of one tensor, constant_pad_nd by zeros, repeat by
      ones: bits are moved, never computed with; only where nobody writes the original or the copy;
    - on integers only, x * 1, x + 0, x - 0: exact there. On floats they are not: -0.0 + 0 is 0.0, 1 * NaN makes a
      signalling NaN quiet, and bfloat16 rounding replaces a NaN's payload.

    Left alone: what would let an output share memory (Note [Outputs keep their aliases]); a graph with stream scopes,
    where a record may stand behind the call.
    """

    name: ClassVar[str] = "remove_noop"

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs import Aliases, is_planned
        from npucompose.graphs.effects import op_facts
        from npucompose.passes.outputs import Visible

        changes_form = any(found.changes_metadata for found in map(op_facts, graph.nodes) if found is not None)
        if is_planned(graph) or changes_form:
            return 0
        aliases = Aliases.from_graph(graph)
        visible = Visible(graph, aliases)
        removed = 0
        for node in list(graph.nodes):
            source = _same(node, aliases)
            if source is None or not visible.may_join(source, node):
                continue
            visible.merge(source, node)
            removed += 1
        return removed


def _same(node: fx.Node, aliases: Aliases) -> fx.Node | None:
    """The input whose bits and form the node's result has, or None."""
    import torch
    from torch import fx

    from npucompose.graphs.form import same_form

    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or node.target._schema.is_mutable:
        return None
    name = node.target.name().partition(".")[0].removeprefix("aten::")
    source = node.args[0]
    if name == "cat" and isinstance(source, (list, tuple)) and len(source) == 1:
        source = source[0]
    if not isinstance(source, fx.Node) or not same_form(node.meta.get("val"), source.meta.get("val")):
        return None
    if aliases.is_view(node):
        return source
    copies = _COPIES.get(name)
    if copies is None or not copies(node):
        return None
    quiet = aliases.written.isdisjoint(aliases.of_all((node, source)))
    return source if quiet else None


def _integer_identity(neutral: int) -> Callable[[fx.Node], bool]:
    def holds(node: fx.Node) -> bool:
        result: torch.Tensor = node.meta["val"]
        exact = not (result.is_floating_point() or result.is_complex())
        return exact and len(node.args) == 2 and type(node.args[1]) is int and node.args[1] == neutral

    return holds


def _zeros(node: fx.Node) -> bool:
    padding = node.args[1]
    return isinstance(padding, (list, tuple)) and all(type(width) is int and width == 0 for width in padding)


def _ones(node: fx.Node) -> bool:
    repeats = node.args[1]
    return isinstance(repeats, (list, tuple)) and all(type(count) is int and count == 1 for count in repeats)


_COPIES: dict[str, Callable[[fx.Node], bool]] = {
    "clone": lambda node: True,
    "_to_copy": lambda node: not node.kwargs.get("pin_memory"),
    "cat": lambda node: True,  # whose only tensor it was compared with
    "constant_pad_nd": _zeros,
    "repeat": _ones,
    "mul": _integer_identity(1),
    "add": _integer_identity(0),
    "sub": _integer_identity(0),
}
"""{operator that makes new memory: when it holds the same bits as its first argument, forms being equal}"""
