"""Passes that take out what a graph can do without: what is computed twice, read by nobody, or changes nothing.

# Note [Outputs keep their aliases]
AOTAutograd decides before our passes which outputs are views of inputs or of one another, and its wrapper rebuilds
exactly that. A rewrite that makes two outputs, or an output and an input, one memory would let a caller's in-place
write reach the other. So a rewrite that joins two memories asks `Visible` first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import frozen

from npucompose.passes.base import Pass
from npucompose.schema.capabilities import Capabilities

if TYPE_CHECKING:
    from torch import fx

    from npucompose.graphs import Aliases


@frozen(kw_only=True)
class DeadCode(Pass):
    """Remove calls whose result nobody reads, and then what only they read.

    before:  a = relu(x);  b = mm(a, a);  r = rand([2]);  return x + 1
    after:   r = rand([2]);  return x + 1

    Kept: inputs, whatever writes memory, has a side effect or is unknown, and operators that draw random numbers
    (without `r` a later draw would get other numbers). A removed call can no longer raise (an index out of range,
    say). A graph with stream scopes stays as it is: its records stand behind calls that may be dead.
    """

    name: ClassVar[str] = "dead_code"
    skips_planned: ClassVar[bool] = True

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs.effects import is_removable

        dead = [node for node in reversed(graph.nodes) if not node.users and is_removable(node)]
        removed = 0
        while dead:
            node = dead.pop()
            inputs = node.all_input_nodes
            graph.erase_node(node)
            removed += 1
            dead += [source for source in inputs if not source.users and is_removable(source)]
        return removed


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
    skips_planned: ClassVar[bool] = True

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        return merge_equal(graph, lambda node: True)


def merge_equal(graph: fx.Graph, wanted: Callable[[fx.Node], bool]) -> int:
    """Merge equal calls among the nodes that `wanted` names; how many are gone."""
    from npucompose.graphs.effects import is_removable

    visible: Visible | None = None  # made when two equal calls are found: it reads the whole graph
    first: dict[Any, list[fx.Node]] = {}
    merged = 0
    for node in list(graph.nodes):
        mergeable = wanted(node) and node.op == "call_function" and is_removable(node)
        if not mergeable or "empty" in str(node.target):
            continue
        same = first.setdefault(_key(node), [])
        if same:
            visible = visible or Visible(graph)
        earlier = next((one for one in same if visible and _may_merge(visible, one, node)), None)
        if visible is None or earlier is None:
            same.append(node)
            continue
        visible.merge(earlier, node)
        merged += 1
    return merged


def _may_merge(visible: Visible, stays: fx.Node, gone: fx.Node) -> bool:
    return visible.aliases.is_quiet(stays, gone, *gone.all_input_nodes) and visible.may_join(stays, gone)


def _key(node: fx.Node) -> Any:
    """Equal for calls that give equal bits: 1, 1.0 and True differ here, and so do -0.0 and 0.0."""
    from npucompose.graphs.describe import argument_text, value_text

    given = argument_text((node.args, dict(sorted(node.kwargs.items()))), str)
    return node.target, given, value_text(node.meta.get("val"), stride=True)


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
    skips_planned: ClassVar[bool] = True

    def rewrite(self, graph: fx.Graph, can: Capabilities) -> int:
        from npucompose.graphs.effects import op_facts

        if any(op_facts(node).changes_metadata for node in graph.nodes):
            return 0
        visible = Visible(graph)
        removed = 0
        for node in list(graph.nodes):
            source = _same(node, visible.aliases)
            if source is not None and visible.may_join(source, node):
                visible.merge(source, node)
                removed += 1
        return removed


def _same(node: fx.Node, aliases: Aliases) -> fx.Node | None:
    """The input whose bits and form the node's result has, or None."""
    import torch
    from torch import fx

    from npucompose.passes.metadata import same_form

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
    return source if _keeps_bits(node, name) and aliases.is_quiet(node, source) else None


_NEUTRAL = {"mul": 1, "add": 0, "sub": 0, "repeat": 1, "constant_pad_nd": 0}
"""{operator: the second argument that changes nothing}."""


def _keeps_bits(node: fx.Node, name: str) -> bool:
    """An operator that makes new memory puts the bits of its first argument there, forms being equal."""
    if name in ("clone", "cat"):
        return True
    if name == "_to_copy":
        return not node.kwargs.get("pin_memory")
    if name not in _NEUTRAL:
        return False
    second = node.args[1]
    if name in ("repeat", "constant_pad_nd"):
        return isinstance(second, (list, tuple)) and all(_is_neutral(name, item) for item in second)
    result: Any = node.meta["val"]
    rounds = result.is_floating_point() or result.is_complex()
    return not rounds and len(node.args) == 2 and _is_neutral(name, second)


def _is_neutral(name: str, value: Any) -> bool:
    return type(value) is int and value == _NEUTRAL[name]


class Visible:
    """What a caller can see of each memory, kept up to date while memories are joined.

    `may_join(a, b)` is asked before `b` is replaced by `a`; `join(a, b)` writes down that it was, or `merge(a, b)` does
    it. A view of `b` is a view of `a` from then on, so joined memories count as one.
    """

    def __init__(self, graph: fx.Graph) -> None:
        from npucompose.graphs import Aliases

        self.aliases = Aliases.from_graph(graph)
        self.joined: dict[int, int] = {}
        self.outputs = set(graph.find_nodes(op="output")[0].all_input_nodes)
        inputs = (node for node in graph.nodes if node.op in ("placeholder", "get_attr"))
        self.seen_out, self.seen_in = set(self.aliases.of_all(self.outputs)), set(self.aliases.of_all(inputs))

    def may_join(self, stays: fx.Node, gone: fx.Node) -> bool:
        """Both handed out as they are: never. Otherwise joining is seen only where an output shares `gone`'s memory."""
        if gone in self.outputs and (stays in self.outputs or stays.op in ("placeholder", "get_attr")):
            return False
        mine, other = self._memory(stays), self._memory(gone)
        if mine == other or self.seen_out.isdisjoint(other):
            return True
        return self.seen_out.isdisjoint(mine) and self.seen_in.isdisjoint(mine)

    def join(self, stays: fx.Node, gone: fx.Node) -> None:
        if gone in self.outputs:
            self.outputs.add(stays)
        together = self._memory(stays) | self._memory(gone)
        if not together:
            return  # numbers lie nowhere
        root = min(together)
        self.joined.update(dict.fromkeys(together - {root}, root))
        for seen in (self.seen_out, self.seen_in):
            if not seen.isdisjoint(together):
                seen.add(root)

    def merge(self, stays: fx.Node, gone: fx.Node) -> None:
        """`stays` takes the place of `gone`, which leaves the graph."""
        self.join(stays, gone)
        gone.replace_all_uses_with(stays)
        gone.graph.erase_node(gone)

    def _memory(self, node: fx.Node) -> frozenset[int]:
        return frozenset(self._root(key) for key in self.aliases.keys[node])

    def _root(self, key: int) -> int:
        while key in self.joined:
            key = self.joined[key]
        return key
