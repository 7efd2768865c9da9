"""Passes and plan as edits of named nodes: the graph before and after each pass, compared. Knows no pass by name.

Every freezing is proven where it is made: the edits, applied to the graph as it was, must give the graph that the
passes gave, to the last character and the same fingerprint, or the pass is refused by name.
"""

from __future__ import annotations

import ast
import copy
import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import fx

from npucompose.errors import ConfigError
from npucompose.graphs import fingerprint, printed
from npucompose.passes.pipeline import Labelled, PassPipeline
from npucompose.recipe.carried import GraphEdit, graph_fingerprint
from npucompose.recipe.python_text import call, dotted, item, literal
from npucompose.schema.capabilities import Capabilities


@frozen(kw_only=True)
class FrozenGraph:
    """The edits that passes make in one graph: `{"stream_plan": ("edit.move('mm', after='x')", …)}`, in order."""

    fingerprint: str
    """`carried.graph_fingerprint` of the graph before the passes."""
    nodes: int
    edits: Mapping[str, tuple[str, ...]]


class Unfreezable(Exception):
    """A change that the edits cannot say; the text says which."""


def freeze(module: fx.GraphModule, passes: Sequence[Labelled], can: Capabilities) -> FrozenGraph:
    """Run `passes` on `module`, in place, and say what they did as edits. ConfigError names a pass that cannot be."""
    before, found = copy.deepcopy(module), graph_fingerprint(module.graph)
    nodes = len(module.graph.nodes)
    edits: dict[str, tuple[str, ...]] = {}
    for label, a_pass in passes:
        start = _Snapshot(module.graph)
        PassPipeline(passes=((label, a_pass),), can=can)(module)
        try:
            lines = start.edits_to(module.graph)
            _prove(before, lines, module)
        except Unfreezable as why:
            raise ConfigError(
                f"pass '{a_pass.name}' @ passes.{label} cannot be frozen into a script: {why}. Eject without it "
                f"(~passes.{label}), or run the experiment with npucompose."
            ) from None
        edits[label] = lines
    return FrozenGraph(fingerprint=found, nodes=nodes, edits=edits)


def _prove(before: fx.GraphModule, lines: Sequence[str], wanted: fx.GraphModule) -> None:
    """Apply the edits to `before`, which is `wanted` as it was, and compare with what the pass made."""
    scope = {"edit": GraphEdit(before.graph), "torch": torch, "operator": operator}
    try:
        for line in lines:
            eval(line, scope)  # our own lines, made above from names and plain values
        before.graph.lint()
    except Exception as error:
        raise Unfreezable(f"its edits cannot be repeated ({type(error).__name__}: {error})") from error
    same = [n.name for n in before.graph.nodes] == [n.name for n in wanted.graph.nodes]
    if (
        not same
        or printed(before.graph) != printed(wanted.graph)
        or fingerprint(before.graph) != fingerprint(wanted.graph)
    ):
        raise Unfreezable("it changes something that no edit of nodes says")


class _Snapshot:
    """A graph as it was, by node: what a pass does to the node objects shows against it."""

    def __init__(self, graph: fx.Graph) -> None:
        self.order = list(graph.nodes)
        self.was = {node: (node.op, node.target, node.args, dict(node.kwargs)) for node in self.order}

    def edits_to(self, graph: fx.Graph) -> tuple[str, ...]:
        after = list(graph.nodes)
        removed = set(self.order) - set(after)
        lines = self._placed(after)
        replaced = self._replaced(after, removed)
        lines += [_edit("replace", old.name, by=new.name) for old, new in replaced.items()]
        for node in after:
            if node not in self.was:
                continue
            op, target, args, kwargs = self.was[node]
            if (op, target) != (node.op, node.target):
                raise Unfreezable(f"it changes the operator of '{node.name}'")
            swapped = fx.map_arg((args, kwargs), lambda n: replaced.get(n, n))
            if not _same(swapped, (node.args, dict(node.kwargs))):
                more = (_literal(dict(node.kwargs)),) if node.kwargs else ()
                lines.append(_edit("arguments", node.name, _literal(node.args), *more))
        gone = [node.name for node in reversed(self.order) if node in removed]
        return (*lines, *([_edit("remove", *gone)] if gone else ()))

    def _placed(self, after: Sequence[fx.Node]) -> list[str]:
        """Insertions and moves, from the first node to the last, each behind its predecessor."""
        place = {node: index for index, node in enumerate(self.order)}
        staying = _longest_rise([node for node in after if node in place], place.__getitem__)
        lines: list[str] = []
        for previous, node in zip([None, *after], after, strict=False):
            if node in staying:
                continue
            if previous is None:
                raise Unfreezable(f"it puts '{node.name}' before the first node")
            if node in place:
                lines.append(_edit("move", node.name, after=previous.name))
            else:
                lines.append(_insertion(node, previous))
        return lines

    def _replaced(self, after: Sequence[fx.Node], removed: set[fx.Node]) -> dict[fx.Node, fx.Node]:
        """{removed node: who stands in for it}, where it is one and the same everywhere."""
        found: dict[fx.Node, set[fx.Node]] = {}
        for node in after:
            if node not in self.was:
                continue
            _, _, args, kwargs = self.was[node]
            old, new = _nodes((args, kwargs)), _nodes((node.args, dict(node.kwargs)))
            if len(old) == len(new):
                for a, b in zip(old, new, strict=True):
                    if a in removed:
                        found.setdefault(a, set()).add(b)
        return {node: next(iter(found[node])) for node in self.order if len(found.get(node, ())) == 1}


def _nodes(arguments: Any) -> list[fx.Node]:
    """Every use of a node, in the order of the arguments, repetitions included."""
    uses: list[fx.Node] = []
    fx.map_arg(arguments, uses.append)
    return uses


def _same(one: Any, other: Any) -> bool:
    """Equal values of equal types: `(1,)` is not `(True,)`, and a slice is compared by its ends."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and (one is other or repr(one) == repr(other))


def _longest_rise(nodes: Sequence[fx.Node], place: Callable[[fx.Node], int]) -> set[fx.Node]:
    """The most nodes that can stay where they are while the others move: a longest increasing subsequence."""
    ends: list[int] = []
    last: list[fx.Node] = []
    before: dict[fx.Node, fx.Node | None] = {}
    for node in nodes:
        at = bisect_left(ends, place(node))
        before[node] = last[at - 1] if at else None
        ends[at : at + 1], last[at : at + 1] = [place(node)], [node]
    staying: set[fx.Node] = set()
    node = last[-1] if last else None
    while node is not None:
        staying.add(node)
        node = before[node]
    return staying


def _insertion(node: fx.Node, previous: fx.Node) -> str:
    if node.op != "call_function":
        raise Unfreezable(f"it adds '{node.name}', which is a {node.op} and no operator")
    arguments: list[Any] = [node.name, _target(node)]
    if node.args or node.kwargs:
        arguments.append(_literal(node.args))
    if node.kwargs:
        arguments.append(_literal(dict(node.kwargs)))
    return _edit("insert", *arguments, after=previous.name)


def _edit(method: str, *arguments: Any, **keywords: Any) -> str:
    return ast.unparse(call(f"edit.{method}", *arguments, **keywords))


def _target(node: fx.Node) -> ast.expr:
    if isinstance(node.target, torch._ops.OpOverload) and all(map(str.isidentifier, str(node.target).split("."))):
        return dotted(f"torch.ops.{node.target}")
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        return dotted(f"operator.{name}")
    raise Unfreezable(f"it adds '{node.name}', which calls {node.target!r} and no operator of torch.ops")


def _literal(value: Any) -> ast.expr:
    """A value as a script writes it: nodes as `edit['name']`, dtypes by name."""
    if isinstance(value, fx.Node):
        return item("edit", value.name)
    if isinstance(value, tuple):
        return literal(tuple(map(_literal, value)))
    if isinstance(value, list):
        return literal(list(map(_literal, value)))
    if isinstance(value, Mapping):
        return literal({key: _literal(part) for key, part in value.items()})
    if isinstance(value, slice):
        return call("slice", *map(_literal, (value.start, value.stop, value.step)))
    if value is None or isinstance(value, (bool, int, float, str)):
        return literal(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return dotted(str(value))
    raise Unfreezable(f"it gives an operator {value!r} ({type(value).__name__}), which a script cannot write")
