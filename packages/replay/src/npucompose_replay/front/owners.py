"""Where modules keep the tensors that a graph takes beside its arguments: a call must notice another in its place."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from attrs import frozen
from torch import nn

from npucompose_replay.executor.native import Entry

DEPTH = 3
"""A tensor is looked for so many steps behind an attribute: a function, what it closes over, an attribute of that."""


@frozen
class Kept:
    """What must stand where it stands for a call to mean what it meant."""

    entries: list[Entry]
    unwatched: int
    """How many of the tensors stand where nobody looks: another one in their place would go unnoticed."""


def kept_by(modules: Iterable[nn.Module], tensors: Iterable[Any]) -> Kept:
    """The parameters, buffers and other attributes of `modules` that are `tensors` or lead to them.

    One that is neither parameter nor buffer is looked for behind other attributes, through objects, dicts, tuples,
    partials and what functions close over; everything on the way by name, variables too, must stay. Items of lists are
    not looked at.
    """
    known = list(modules)
    wanted = {id(value) for value in tensors if isinstance(value, torch.Tensor)}
    owners = (owner for module in known for owner in (module._parameters, module._buffers))
    entries: list[Entry] = [(owner, name, t) for owner in owners for name, t in owner.items() if id(t) in wanted]
    missing = wanted - {id(t) for _, _, t in entries}
    if missing:
        found = [one for module in known for one in _ways(vars(module), missing, DEPTH)]
        entries += {(id(owner), name): (owner, name, value) for _, way in found for owner, name, value in way}.values()
        missing -= {tensor for tensor, _ in found}
    return Kept(entries, len(missing))


def _ways(owner: dict[str, Any], wanted: set[int], depth: int) -> Iterator[tuple[int, list[Entry]]]:
    """Each tensor that is wanted, with the names that lead to it from a dict."""
    for name, value in list(owner.items()):
        yield from ((tensor, [(owner, name, value), *way]) for tensor, way in _behind(value, wanted, depth))


def _behind(value: Any, wanted: set[int], depth: int) -> Iterator[tuple[int, list[Entry]]]:
    if id(value) in wanted:
        yield id(value), []
    elif depth == 0 or isinstance(value, (nn.Module, torch.Tensor, ModuleType, type)):
        return  # modules are asked themselves
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            held = content_of(cell)
            yield from ((tensor, [(cell, name, held), *way]) for tensor, way in _behind(held, wanted, depth - 1))
    elif (parts := _without_names(value)) is not None:
        for part in parts:
            yield from _behind(part, wanted, depth - 1)
    elif isinstance(value, dict) or hasattr(value, "__dict__"):
        yield from _ways(value if isinstance(value, dict) else vars(value), wanted, depth - 1)


def _without_names(value: Any) -> Iterable[Any] | None:
    """The parts of something whose parts never become others."""
    if isinstance(value, tuple):
        return value
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return None


def standing(owner: dict[str, Any] | CellType, name: str) -> Any:
    """What stands there now; None where nothing does."""
    return content_of(owner) if isinstance(owner, CellType) else owner.get(name)


def content_of(cell: CellType) -> Any:
    """None where nothing was assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
