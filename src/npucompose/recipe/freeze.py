"""Passes and plan as edits of named nodes: the graph before and after each pass, compared. Knows no pass by name.

Every freezing is proven where it is made: the edits, applied to the graph as it was, must give the graph that the
passes gave, to the last character and the same fingerprint, or the pass is refused by name.
"""

from __future__ import annotations

import copy
import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import fx
from torch.fx.experimental.symbolic_shapes import guard_bool, guard_int

from npucompose.compose.check import Checked
from npucompose.compose.session import Session
from npucompose.errors import ConfigError
from npucompose.graphs import fingerprint, printed
from npucompose.passes.base import Stage
from npucompose.passes.pipeline import Labelled, PassPipeline
from npucompose.recipe.carried import GraphEdit, graph_fingerprint
from npucompose.recipe.python_text import Code, call, dotted, item, literal
from npucompose.schema.capabilities import Capabilities
from npucompose.table.modes import GE
from npucompose.targets.backend import Backend
from npucompose.targets.compilation import Compilation
from npucompose.targets.npu import NpuTarget
from npucompose.targets.null_device import NullDevice

GEARS = "dim_gears"
"""The attribute in which TorchAir keeps the gears of a tensor."""


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
    return str(call(f"edit.{method}", *arguments, **keywords))


def _target(node: fx.Node) -> Code:
    if isinstance(node.target, torch._ops.OpOverload) and all(map(str.isidentifier, str(node.target).split("."))):
        return dotted(f"torch.ops.{node.target}")
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        return dotted(f"operator.{name}")
    raise Unfreezable(f"it adds '{node.name}', which calls {node.target!r} and no operator of torch.ops")


def _of_torch(value: Any) -> Code:
    if isinstance(value, fx.Node):
        return item("edit", value.name)
    if isinstance(value, slice):
        return call("slice", *map(_literal, (value.start, value.stop, value.step)))
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return dotted(str(value))
    raise Unfreezable(f"it gives an operator {value!r} ({type(value).__name__}), which a script cannot write")


_literal = partial(literal, other=_of_torch)
"""A value as a script writes it: nodes as `edit['name']`, dtypes by name."""


def freezing_session(checked: Checked) -> tuple[Session, list[dict[Stage, FrozenGraph]]]:
    """The experiment on the null device, with a backend that freezes every graph on its way into the list."""
    session = Session(attrs.evolve(checked, target=_LikeNpu()))
    made = session.materialised
    backend = _Freezing(
        target=made.backend.target,
        mode=made.backend.mode,
        compiler=made.backend.compiler,
        options=made.backend.options,
        pre=made.backend.pre,
        post=made.backend.post,
    )
    session.materialised = attrs.evolve(made, backend=backend)
    return session, backend.found


@frozen(kw_only=True)
class _LikeNpu(NullDevice):
    """The null device with what an NPU can do, which decides plans and rules; gears leave the marks that
    torchair.inference.set_dim_gears leaves. The script itself chooses the namespace of the scopes.
    """

    def capabilities(self, mode: str) -> Capabilities:
        return attrs.evolve(NpuTarget().capabilities(mode), scope_namespace="air")

    def set_gears(self, mode: str) -> Callable[[Any, dict[int, list[int]]], None] | None:
        return _set_gears if mode == GE else None


def _set_gears(tensor: Any, gears: dict[int, list[int]]) -> None:
    for dim in gears:
        torch._dynamo.mark_dynamic(tensor, dim)
    setattr(tensor, GEARS, gears)


class _Freezing(Backend):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.found: list[dict[Stage, FrozenGraph]] = []
        self._gears: dict[int, Mapping[int, Sequence[int]]] = {}
        """{input, counted from the end (parameters come first): its gears} of the Dynamo graph under compilation."""

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Any:
        last = len(example_inputs)
        self._gears = {n - last: getattr(t, GEARS) for n, t in enumerate(example_inputs) if hasattr(t, GEARS)}
        return super().__call__(graph_module, example_inputs, **keywords)

    def rewrite(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compilation:
        _guard(example_inputs, self._gears)
        stages: dict[Stage, FrozenGraph] = {}
        module = copy.deepcopy(graph_module)
        for pipeline in (self.pre, self.post):
            if pipeline.passes:
                stages[pipeline.passes[0][1].stage] = freeze(module, pipeline.passes, pipeline.can)
        self.found.append(stages)
        return super().rewrite(graph_module, example_inputs)


def _guard(inputs: Sequence[Any], gears: Mapping[int, Mapping[int, Sequence[int]]]) -> None:
    """With gears, TorchAir makes every other size of every tensor a number before its first hook, and keeps each
    size that has gears between its neighbours (torch_npu 2.13.0, torchair/inference/_gear_utils.py,
    guard_gears_shape). So do the graphs that are frozen here, or their fingerprint would be another one.
    """
    if not gears:
        return
    for at, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            continue
        own = gears.get(at - len(inputs), {})
        for dim, size in enumerate(tensor.size()):
            if dim in own:
                _between(size, sorted(set(own[dim])))
            else:
                guard_int(size)


def _between(size: Any, sizes: Sequence[int]) -> None:
    guard_bool((size >= sizes[0]) & (size <= sizes[-1]))
    for left, right in pairwise(sizes):
        guard_bool((size <= left) | (size >= right))
