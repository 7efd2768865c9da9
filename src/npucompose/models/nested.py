"""Values that hold tensors somewhere inside: lists, dicts, dataclasses, objects with attributes (a cache of keys)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in `value`, each once: in containers in their order, in objects in the order of their attributes."""
    yield from _tensors(value, set())


def mapped(value: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """A deep copy with `change(tensor)` for each tensor; a tensor that stands in two places stays one tensor."""
    return copy.deepcopy(value, {id(tensor): change(tensor) for tensor in tensors_of(value)})


def opened(value: Any) -> Any:
    """`value` with objects that no comparison can look into as dicts of their attributes, to any depth.

    `opened([Cache(keys=k)])` is `[{"Cache": {"keys": k}}]`. What pytree or `==` knows stays as it is.
    """
    from torch.utils._pytree import tree_map

    def of_leaf(leaf: Any, around: tuple[int, ...] = ()) -> Any:
        if not _is_opaque(leaf) or id(leaf) in around:
            return leaf if not _is_opaque(leaf) else f"the {type(leaf).__name__} around it"
        held = dict(leaf) if isinstance(leaf, Mapping) else dict(vars(leaf))
        inside = tree_map(lambda inner: of_leaf(inner, (*around, id(leaf))), held)
        return {type(leaf).__name__: inside}

    return tree_map(of_leaf, value)


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    import torch
    from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

    if id(value) in seen or isinstance(value, (str, bytes, int, float, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    elif type(value) in SUPPORTED_NODES:
        inside = tree_leaves(value)
    else:
        inside = list(vars(value).values()) if _has_attributes(value) else []
    for one in inside:
        yield from _tensors(one, seen)


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value)


def _is_opaque(value: Any) -> bool:
    """Two equal ones would be told apart, or could not be compared at all (a dataclass of tensors)."""
    import dataclasses

    import torch

    if isinstance(value, torch.Tensor) or not _has_attributes(value):
        return False
    return isinstance(value, Mapping) or type(value).__eq__ is object.__eq__ or dataclasses.is_dataclass(value)
