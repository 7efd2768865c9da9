"""Inputs of the calls that a graph is judged by: copies of what came, which overlap as that did."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from npucompose_replay.operands import layout_of
from tools.judged_calls import far, in_words, is_ordinary, is_plain


class Uncopied(Exception):
    """An input of which no second one can be made."""


class Pool:
    """`inputs(k)` for call k: copies of what came, overlapping as they did; a module's own tensors are the same."""

    def __init__(
        self, given: Sequence[Any], fixed: frozenset[int], graph: fx.GraphModule, *, training: bool = False
    ) -> None:
        self._given, self._fixed, self.training = list(given), fixed, training
        self._kept = {value.untyped_storage()._cdata: value for value in _constants(graph)}
        self._bytes = {key: value.untyped_storage().clone() for key, value in self._kept.items()}
        _Copies(self._given).row()  # raises where there can be none

    def inputs(self) -> Iterator[list[Any]]:
        """Of the calls, each made when it is asked for; with gradients two calls, of leaves of their own."""
        if self.training:
            for flipped in (False, True):
                self._restore()
                yield [
                    _leaf(value, of) for value, of in zip(_Copies(self._given, flipped).row(), self._given, strict=True)
                ]
            return
        first, before = _Copies(self._given).row(), _Copies(self._given).row()
        for number in range(4):
            self._restore()
            if number == 0 or (number == 1 and _unchanged(first, before)):
                yield first
                continue
            row = _Copies(self._given, flipped=number == 2).row()
            for i in self._fixed:
                _lay_back(first[i], before[i])
                row[i] = first[i]
            yield row

    def _restore(self) -> None:
        for key, value in self._kept.items():
            storage, was = value.untyped_storage(), self._bytes[key]
            if storage.nbytes() == was.nbytes() and not torch.equal(_bytes_of(storage), _bytes_of(was)):
                storage.copy_(was)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]


def _constants(graph: fx.GraphModule) -> list[torch.Tensor]:
    named = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    values: list[Any] = [
        functools.reduce(lambda at, step: getattr(at, step, None), name.split("."), graph) for name in named
    ]
    return [value for value in values if is_ordinary(value)]


def _leaf(value: Any, of: Any) -> Any:
    return value.requires_grad_() if isinstance(of, torch.Tensor) and of.requires_grad else value


def _unchanged(row: Sequence[Any], before: Sequence[Any]) -> bool:
    pairs = [(a, b) for a, b in zip(row, before, strict=True) if isinstance(a, torch.Tensor)]
    try:
        return all(layout_of(a) == layout_of(b) and not far(a, b, exact=True) for a, b in pairs)
    except (RuntimeError, NotImplementedError):
        return False


def _lay_back(value: Any, before: Any) -> None:
    if isinstance(value, torch.Tensor) and is_plain(value) and value.shape == before.shape:
        value.copy_(before)


class _Copies:
    def __init__(self, given: Sequence[Any], flipped: bool = False) -> None:
        self._given, self._flipped = given, flipped
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._dtypes: dict[int, set[torch.dtype]] = {}
        for value in given:
            if is_ordinary(value):
                self._dtypes.setdefault(value.untyped_storage()._cdata, set()).add(value.dtype)

    def row(self) -> list[Any]:
        made: dict[int, Any] = {}
        for value in self._given:
            if id(value) not in made:
                made[id(value)] = self._copy(value)
        return [made[id(value)] for value in self._given]

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        try:
            if not is_ordinary(value):
                return copy.deepcopy(value.detach())
            layout = layout_of(value)
            if layout.conj or layout.neg:
                return layout.over(self._storage(value))
            made = torch.empty(0, dtype=value.dtype)
            made.set_(self._storage(value), value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]
        except Exception as error:  # noqa: BLE001 - of a tensor of any kind
            raise Uncopied(f"an input cannot be copied: {in_words(error)}") from None
        return torch.nn.Parameter(made, requires_grad=False) if isinstance(value, torch.nn.Parameter) else made

    def _storage(self, value: torch.Tensor) -> torch.UntypedStorage:
        key = value.untyped_storage()._cdata
        if key not in self._storages:
            self._storages[key] = made = value.untyped_storage().clone()
            if self._flipped and len(self._dtypes[key]) == 1 and made.nbytes() % value.element_size() == 0:
                row = torch.empty(0, dtype=value.dtype).set_(made)  # type: ignore[call-overload]
                row.copy_(row.flip(0))
        return self._storages[key]
