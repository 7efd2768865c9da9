"""Operators that a permute can move through: which, and how their arguments are then written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from npucompose.graphs.effects import op_facts
from npucompose.passes.cancel_transposes.moves import Perm, is_cast, is_copy

aten = torch.ops.aten

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


def absorbs(node: fx.Node, relaxed: bool) -> bool:
    """One tensor out, of the rank of every tensor in that is no scalar; any order of dimensions will do for it."""
    found, value = op_facts(node) if node.op == "call_function" else None, node.meta.get("val")
    if found is None or not isinstance(value, torch.Tensor) or value.dim() < 2 or value.layout is not torch.strided:
        return False
    if found.writes or found.random or found.effect or found.view:
        return False
    if not all(_fits(source.meta.get("val"), value.dim()) for source in node.all_input_nodes):
        return False
    if is_copy(node):
        return node.kwargs.get("memory_format") in (None, torch.contiguous_format, torch.preserve_format)
    if is_cast(node) or node.target is aten.cat.default:
        return True
    if _is_reduction(node):
        return _keeps_rank(node) and (relaxed or is_exact_reduction(node))
    if node.target in SOFTMAX:
        return relaxed
    target: Any = node.target
    if torch.Tag.pointwise not in target.tags:
        return False
    return relaxed or _exact(node, target)


def _exact(node: fx.Node, target: Any) -> bool:
    alpha: Any = node.kwargs.get("alpha", 1)
    if target._schema.name.removeprefix("aten::") not in EXACT_NAMES or target.namespace != "aten":
        return False
    return set(node.kwargs) <= {"alpha"} and not isinstance(alpha, fx.Node) and alpha == 1


def _fits(value: Any, rank: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() in (0, rank)


def _is_reduction(node: fx.Node) -> bool:
    return node.target in EXTREMES or node.target in SUMS


def _keeps_rank(node: fx.Node) -> bool:
    return bool(node.args[2]) if len(node.args) > 2 else bool(node.kwargs.get("keepdim"))


def is_exact_reduction(node: fx.Node) -> bool:
    """Its bits do not depend on the order: a largest or smallest element, a sum of integers."""
    if node.target in EXTREMES:
        return True
    value = node.meta["val"]
    rounds: bool = value.is_floating_point() or value.is_complex()
    return node.target is aten.sum.dim_IntList and not rounds


def drops_rank(node: fx.Node, relaxed: bool) -> bool:
    """A reduction that removes the dimensions it reduces and may see them in another order."""
    if node.op != "call_function" or not _is_reduction(node) or _keeps_rank(node):
        return False
    return relaxed or is_exact_reduction(node)


def reduced_dims(node: fx.Node, rank: int) -> tuple[int, ...]:
    """Which dimensions a reduction reduces; all where it names none."""
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return tuple(int(dim) % rank for dim in given) if given else tuple(range(rank))


def turned(node: fx.Node, perm: Perm, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, `args` being those of turned inputs: dimension d of the old world is perm[d] of the new one."""
    out = list(args)
    if (node.target is aten.cat.default and len(out) > 1) or node.target in SOFTMAX:
        out[1] = perm[out[1] % len(perm)]
    elif _is_reduction(node) and len(out) > 1:
        out[1] = [perm[dim] for dim in reduced_dims(node, len(perm))]
    return tuple(out)


def turned_kwargs(node: fx.Node, perm: Perm) -> dict[str, Any]:
    kwargs: dict[str, Any] = dict(node.kwargs)
    if node.target is aten.cat.default and "dim" in kwargs:
        kwargs["dim"] = perm[kwargs["dim"] % len(perm)]
    elif _is_reduction(node) and "dim" in kwargs:
        kwargs["dim"] = [perm[dim] for dim in reduced_dims(node, len(perm))]
    return kwargs
