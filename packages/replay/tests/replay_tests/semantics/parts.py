"""Any value of Python taken apart into leaves with paths, and what can be said of a tensor beside its numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen

Path = str
_PLAIN = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, slice)


def leaves(value: Any, path: Path = "") -> Iterator[tuple[Path, Any]]:
    """(path, tensor or plain value) of everything that can be reached: rows, mappings, modules, objects."""
    if isinstance(value, torch.nn.Module):
        yield from _of_module(value, path)
    elif isinstance(value, (torch.Tensor, *_PLAIN)):
        yield path, value
        if isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
            yield f"{path}.grad", value.grad
    elif isinstance(value, np.ndarray):
        yield path, torch.from_numpy(value)
    elif isinstance(value, (list, tuple)):
        yield path, type(value).__name__
        for i, part in enumerate(value):
            yield from leaves(part, f"{path}[{i}]")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{path}[{key!r}]")
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        for key, part in vars(value).items():
            yield from leaves(part, f"{path}.{key}")
    else:
        yield path, repr(value)


def _of_module(module: torch.nn.Module, path: Path) -> Iterator[tuple[Path, Any]]:
    yield f"{path}.training", module.training
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        yield from leaves(tensor, f"{path}.{name.replace('_orig_mod.', '')}")


@frozen(kw_only=True)
class Tensor:
    """A tensor as it was at one moment, and what it shared its memory with."""

    value: torch.Tensor
    form: str
    """Dtype, sizes, strides and flags."""
    place: tuple[int, ...] = ()
    """Numbers of the leaves before it that lie in the same memory."""
    same: tuple[int, ...] = ()
    """Numbers of the leaves before it that are this very object."""


def snapshot(value: Any) -> dict[Path, Any]:
    """Each leaf as it is now; tensors are copied, and say which others they share memory with."""
    found: dict[Path, Any] = {}
    tensors: list[torch.Tensor] = []
    for path, leaf in leaves(value):
        if not isinstance(leaf, torch.Tensor):
            found[path] = leaf
            continue
        earlier = enumerate(tensors)
        shares = [(i, t) for i, t in earlier if t is leaf or _share_memory(t, leaf)]
        found[path] = Tensor(
            value=_copied(leaf),
            form=form_of(leaf),
            place=tuple(i for i, _ in shares),
            same=tuple(i for i, t in shares if t is leaf),
        )
        tensors.append(leaf)
    return found


def form_of(tensor: torch.Tensor) -> str:
    flags = [name for name in ("requires_grad", "is_inference") if _flag(tensor, name)]
    strides = "" if tensor.layout != torch.strided or not tensor.numel() else f" strides {_strides(tensor)}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return " ".join([f"{dtype}{list(tensor.shape)}{strides}", *flags])


def without_strides(found: Any) -> Any:
    """The same leaf where the order in memory does not count."""
    return evolve(found, form=found.form.partition(" strides")[0]) if isinstance(found, Tensor) else found


def _strides(tensor: torch.Tensor) -> list[int]:
    """Of a dimension with one element the stride means nothing."""
    return [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]


def _flag(tensor: torch.Tensor, name: str) -> bool:
    found = getattr(tensor, name)
    return found() if callable(found) else found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """No view of it, made outside every mode that the program may have left on."""
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone().resolve_conj().resolve_neg()


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout != torch.strided or b.layout != torch.strided or not (a.numel() and b.numel()):
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
