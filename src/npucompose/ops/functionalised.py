"""What a graph has in place of an operator of torch_npu that writes its arguments: the one that returns what it would.

libtorch_npu.so registers this for every pair of its list (Ascend/pytorch, torchnpugen/gen_functionalization_type.py;
`at_npu::functionalization::npu_scatter_pa_kv_cache` in the library of 2.13.0), so that no graph has torch's
auto_functionalized in their place:

    npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slots)
    -> a, b = npu_scatter_pa_kv_cache_functional(…); key_cache.copy_(a); value_cache.copy_(b)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

SUFFIX = "_functional"
ALIASED = "custom (non-ATen) operator whose output has alias annotations: "
"""Torch's words, before the schema, for an operator that returns what it writes and for which no pair is registered."""
_TORCH: Any = torch  # its functions for functional tensors have private names


def pairs(names: Iterable[str]) -> dict[str, str]:
    """{operator that writes: the one that returns}: `f_` and `f`, `f` and `f_functional`, as far as both are there."""
    there = set(names)
    found: dict[str, str] = {}
    for name in there:
        packet = name.partition(".")[0]
        other = packet.removesuffix("_") if packet.endswith("_") else f"{packet}{SUFFIX}"
        if other in there and "out" not in name.partition(".")[2].split("_"):
            found[name] = other
    return found


def register(library: torch.library.Library, names: Iterable[str], overload: Callable[[str], Any]) -> None:
    """Of those among these operators that are pairs with the same arguments."""
    for name, other in pairs(names).items():
        writing, returning = overload(name), overload(other)
        if _arguments(writing) == _arguments(returning):
            library.impl(name, _functionalised(writing, returning), "Functionalize")


def _arguments(op: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in op._schema.arguments]


def _functionalised(writing: Any, returning: Any) -> Callable[..., Any]:
    schema = writing._schema
    names = [one.name for one in schema.arguments]
    written = {str(one.alias_info.before_set): one.name for one in schema.arguments if one.alias_info}
    fresh = sum(one.alias_info is None for one in schema.returns)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        wrapped = all(
            _TORCH._is_functional_tensor(one) for name in written.values() for one in tree_leaves(given[name])
        )
        plain = tree_map_only(torch.Tensor, _unwrapped, given)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
            found = (returning if wrapped else writing)(**plain)
        if not wrapped:
            return found
        results = found if isinstance(found, tuple) and len(returning._schema.returns) > 1 else (found,)
        for name, result in zip(written.values(), results[fresh:], strict=True):
            for old, new in zip(tree_leaves(given[name]), tree_leaves(result), strict=True):
                _TORCH._functionalize_replace(old, new)
                _TORCH._functionalize_commit_update(old)
                _TORCH._functionalize_sync(old)
        return _returned(schema, given, written, iter(results[:fresh]))

    return kernel


def _returned(schema: Any, given: Mapping[str, Any], written: Mapping[str, str], fresh: Any) -> Any:
    """New results wrapped, and of the others the arguments that were written."""
    out = tuple(
        given[written[str(one.alias_info.before_set)]]
        if one.alias_info
        else tree_map_only(torch.Tensor, _TORCH._to_functional_tensor, next(fresh))
        for one in schema.returns
    )
    return None if not out else out[0] if len(out) == 1 else out


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    if not _TORCH._is_functional_tensor(tensor):
        return tensor
    _TORCH._functionalize_sync(tensor)
    return _TORCH._from_functional_tensor(tensor)
