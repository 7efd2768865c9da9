"""What moves data without computing (permutes, copies, casts) and how many bytes, which operators a permute can move
through, and the changes to a graph that keep what a caller can see of its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx

from npucompose.graphs.effects import op_facts
from npucompose.graphs.matching import arguments_of, with_arguments
from npucompose.passes.metadata import call_before, same_form
from npucompose.passes.simplify import Visible
from npucompose.results.graphs import MoveFacts

aten = torch.ops.aten
_MOVES: frozenset[Any] = frozenset(
    (aten.permute.default, aten.transpose.int, aten.t.default, aten.clone.default, aten._to_copy.default)
)
Perm = tuple[int, ...]
CONTIGUOUS = torch.contiguous_format


_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "neg", "abs", "sqrt", "square", "sign")
_ROUNDING = ("floor", "ceil", "round", "trunc")
_CHOOSING = ("relu", "maximum", "minimum", "clamp", "clamp_min", "clamp_max", "threshold_backward", "where")
_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
_LOGICAL = (
    "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not",
    "bitwise_xor",
)  # fmt: skip
EXACT_NAMES = frozenset((*_ARITHMETIC, *_ROUNDING, *_CHOOSING, *_COMPARING, *_LOGICAL))
"""Element-wise functions whose vector and scalar code give the same bits: the rest may differ with the order in memory,
because a vectorised exp is another function than the scalar one."""
SOFTMAX = (aten._softmax.default, aten._log_softmax.default)
EXTREMES = (aten.amax.default, aten.amin.default)
SUMS = (aten.sum.dim_IntList, aten.mean.dim)
REDUCTIONS = (*EXTREMES, *SUMS)


def perm_of(node: fx.Node) -> Perm | None:
    """The order of dimensions of `permute`, `transpose` and `t`, counted from 0; None for any other node."""
    target, value = node.target, node.meta.get("val")
    if target is aten.permute.default:
        dims: Any = node.args[1]
        return tuple(dim % len(dims) for dim in dims)
    if target not in (aten.transpose.int, aten.t.default) or not isinstance(value, torch.Tensor):
        return None
    order = list(range(value.dim()))
    if target is aten.transpose.int:
        first, second = (int(dim) % value.dim() for dim in node.args[1:3])  # type: ignore[call-overload]
        order[first], order[second] = order[second], order[first]
    elif value.dim() == 2:
        order.reverse()
    return tuple(order)


def is_identity(perm: Perm) -> bool:
    return perm == tuple(range(len(perm)))


def inverse(perm: Perm) -> Perm:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def after(first: Perm, then: Perm) -> Perm:
    """One order for two: permute(permute(x, first), then) is permute(x, after(first, then))."""
    return tuple(first[dim] for dim in then)


def is_copy(node: fx.Node) -> bool:
    return node.target is aten.clone.default


def lays_down(node: fx.Node) -> bool:
    """A copy into dense memory in the order of the dimensions, whatever the order was before."""
    return is_copy(node) and node.kwargs.get("memory_format") is CONTIGUOUS


def is_cast(node: fx.Node) -> bool:
    """`_to_copy` that changes the dtype and nothing else."""
    if node.target is not aten._to_copy.default or node.kwargs.get("dtype") is None:
        return False
    return all(value is None or value is False for key, value in node.kwargs.items() if key != "dtype")


def is_move(node: fx.Node) -> bool:
    return perm_of(node) is not None or is_copy(node) or is_cast(node)


def moves_of(graph: fx.Graph) -> list[fx.Node]:
    """Every move of a graph, in order."""
    return [node for node in graph.nodes if node.target in _MOVES and is_move(node)]


def source_of(node: fx.Node) -> fx.Node:
    found = node.args[0]
    assert isinstance(found, fx.Node)
    return found


def bytes_of(value: Any) -> int:
    """How large a tensor is; a size that is a symbol counts with its hint."""
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(_hint(size) for size in value.shape) * value.dtype.itemsize


def _hint(size: Any) -> int:
    hint = size if isinstance(size, int) else size.node.hint
    return 1 if hint is None else int(hint)


def moved(node: fx.Node) -> int:
    """Bytes that a move reads and writes; a copy right behind a permute is one movement with it."""
    value = node.meta.get("val")
    if perm_of(node) is not None:
        return 2 * bytes_of(value)
    if is_copy(node):
        return 0 if perm_of(source_of(node)) is not None else 2 * bytes_of(value)
    return bytes_of(value) + bytes_of(source_of(node).meta.get("val")) if is_cast(node) else 0


def counted(graph: fx.Graph) -> tuple[int, int, int]:
    """(permutes, casts, bytes) of a graph."""
    nodes = moves_of(graph)
    permutes = sum(perm_of(node) is not None for node in nodes)
    casts = sum(is_cast(node) for node in nodes)
    return permutes, casts, sum(moved(node) for node in nodes)


def facts(before: tuple[int, int, int], now: tuple[int, int, int]) -> MoveFacts:
    return MoveFacts(
        permutes_before=before[0],
        permutes_after=now[0],
        casts_before=before[1],
        casts_after=now[1],
        bytes_before=before[2],
        bytes_after=now[2],
    )


def absorbs(node: fx.Node, relaxed: bool) -> bool:
    """One tensor out, of the rank of every tensor in that is no scalar; any order of dimensions will do for it."""
    target: Any = node.target
    found, value = op_facts(node), node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(value, torch.Tensor):
        return False
    if value.dim() < 2 or value.layout is not torch.strided:
        return False
    if found.writes or found.random or found.effect or found.view:
        return False
    inputs = [source.meta.get("val") for source in node.all_input_nodes]
    if not all(isinstance(given, torch.Tensor) and given.dim() in (0, value.dim()) for given in inputs):
        return False
    if is_copy(node):
        return node.kwargs.get("memory_format") in (None, CONTIGUOUS, torch.preserve_format)
    if is_cast(node) or target is aten.cat.default:
        return True
    if target in REDUCTIONS:
        return arguments_of(node)["keepdim"] and (relaxed or is_exact_reduction(node))
    if target in SOFTMAX:
        return relaxed
    return torch.Tag.pointwise in target.tags and (relaxed or _is_exact(node, target))


def _is_exact(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    alpha: Any = node.kwargs.get("alpha", 1)
    if target._schema.name.removeprefix("aten::") not in EXACT_NAMES or target.namespace != "aten":
        return False
    return set(node.kwargs) <= {"alpha"} and not isinstance(alpha, fx.Node) and alpha == 1


def is_exact_reduction(node: fx.Node) -> bool:
    """Its bits do not depend on the order: a largest or smallest element, a sum of integers."""
    value = node.meta["val"]
    rounds: bool = value.is_floating_point() or value.is_complex()
    return node.target in EXTREMES or (node.target is aten.sum.dim_IntList and not rounds)


def drops_rank(node: fx.Node, relaxed: bool) -> bool:
    """A reduction that removes the dimensions it reduces and may see them in another order."""
    if node.target not in REDUCTIONS or arguments_of(node)["keepdim"]:
        return False
    return relaxed or is_exact_reduction(node)


def reduced_dims(node: fx.Node, rank: int) -> tuple[int, ...]:
    """Which dimensions a reduction reduces; all where it names none."""
    given = arguments_of(node).get("dim")
    return tuple(int(dim) % rank for dim in given) if given else tuple(range(rank))


def turned(
    node: fx.Node, perm: Perm, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, those of turned inputs given: dimension d of the old world is perm[d] of the new one."""
    target: Any = node.target
    by_dim = target is aten.cat.default or target in SOFTMAX
    given = arguments_of(node, defaults=False) if by_dim or target in REDUCTIONS else {}
    if "dim" not in given:
        return tuple(args), dict(kwargs)
    new = perm[given["dim"] % len(perm)] if by_dim else [perm[dim] for dim in reduced_dims(node, len(perm))]
    return with_arguments(target, args, kwargs, {"dim": new})


class Editor:
    """One walk's view of a graph; `changed` counts what was done."""

    def __init__(self, graph: fx.Graph, writes: bool) -> None:
        """`writes`: somebody in the graph writes memory."""
        self.graph, self.writes = graph, writes
        self.changed = 0
        self._born: set[fx.Node] = set()

    @cached_property
    def visible(self) -> Visible:
        """Made when somebody asks: it reads the whole graph, and most clean-ups of most graphs find nothing."""
        return Visible(self.graph)

    def quiet(self, *nodes: fx.Node) -> bool:
        """Nobody writes the memory of these."""
        if not self.writes:
            return True
        aliases = self.visible.aliases
        known = [memory for node in nodes if (memory := self._memory(node)) is not None]
        return aliases.is_quiet(*known)

    def call(
        self, before: fx.Node, like: fx.Node, target: Any, *args: Any, value: Any = None, **kwargs: Any
    ) -> fx.Node:
        """A new node in front of `before` with the origin of `like`; `value` is its fake value where it is known."""
        made = call_before(before, target, args, kwargs, origin=like, value=value)
        self._born.add(made)
        return made

    def permuted(self, before: fx.Node, like: fx.Node, source: fx.Node, perm: Perm) -> fx.Node:
        """`source` in that order: itself where the order is its own."""
        return source if is_identity(perm) else self.call(before, like, aten.permute.default, source, list(perm))

    def may_stand_for(self, stays: fx.Node, gone: fx.Node) -> bool:
        """`gone` can be replaced by `stays`: same form, and nobody can tell that they are one memory."""
        if not same_form(stays.meta.get("val"), gone.meta.get("val")):
            return False
        mine, other = self._memory(stays), self._memory(gone)
        if mine is None or other is None or mine is other:
            return not (_is_output(gone) and {stays, gone} <= self.visible.outputs)
        if {stays, gone} <= self.visible.outputs:
            return False
        return self.quiet(mine, other) and self.visible.may_join(mine, other)

    def stand_for(self, stays: fx.Node, gone: fx.Node) -> bool:
        """Replace `gone` by `stays` where it may; whether it did."""
        if not self.may_stand_for(stays, gone):
            return False
        mine, other = self._memory(stays), self._memory(gone)
        if mine is not None and other is not None and mine is not other:
            self.visible.join(mine, other)
        if _is_output(gone):
            self.visible.outputs.add(stays)
        gone.replace_all_uses_with(stays)
        self.changed += 1
        self.sweep([gone])
        return True

    def _memory(self, node: fx.Node) -> fx.Node | None:
        """The node of the graph as it was whose memory a node is; None for memory that was made since.

        Permutes are followed, because the fake value of one may still name the memory of a value that was replaced.
        """
        while perm_of(node) is not None:
            node = source_of(node)
        return None if node in self._born else node

    def sweep(self, nodes: Sequence[fx.Node]) -> None:
        """Erase moves that nobody reads any more, and those that only they read."""
        todo = list(nodes)
        while todo:
            node = todo.pop()
            if node.users or node._erased or not is_move(node):
                continue
            source = source_of(node)
            self.graph.erase_node(node)
            todo.append(source)

    def laid_down(self, before: fx.Node, node: fx.Node) -> fx.Node:
        return self.call(before, node, aten.clone.default, node, memory_format=CONTIGUOUS)


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)
