"""What moves data without computing: permutes, copies, casts, and how many bytes. Changes nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from npucompose.schema.passes import MoveFacts

aten = torch.ops.aten
_MOVES: frozenset[Any] = frozenset(
    (aten.permute.default, aten.transpose.int, aten.t.default, aten.clone.default, aten._to_copy.default)
)
Perm = tuple[int, ...]
CONTIGUOUS = torch.contiguous_format


def perm_of(node: fx.Node) -> Perm | None:
    """The order of dimensions of `permute`, `transpose` and `t`, counted from 0; None for any other node."""
    if node.op != "call_function":
        return None
    target: Any = node.target
    if target is aten.permute.default:
        rank = len(node.args[1])  # type: ignore[arg-type]
        return tuple(dim % rank for dim in node.args[1])  # type: ignore[union-attr]
    if target is not aten.transpose.int and target is not aten.t.default:
        return None
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    order = list(range(value.dim()))
    if target is aten.transpose.int:
        a, b = (int(dim) % value.dim() for dim in node.args[1:3])  # type: ignore[call-overload]
        order[a], order[b] = order[b], order[a]
    elif value.dim() == 2:
        order = [1, 0]
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
    if isinstance(size, int):
        return size
    hint = size.node.hint
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
