"""Operators that write keys and values into a cache in pages, and those around latent attention and sampling, as
reference kernels of plain torch calls.

Meaning: Ascend/op-plugin's pages docs/zh/custom_APIs/torch_npu/torch_npu-<operator>.md. A slot is page · size + place.

    npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slots)   writes each token's row at its slot
    npu_kv_rmsnorm_rope_cache(kv, gamma, cos, sin, index, …)             norm and rope of one latent row, and its caches
    npu_interleave_rope(x, cos, sin)                                     pairs become halves, then halves are turned
    npu_transpose_batchmatmul(x, w, perm_x1, perm_x2, perm_y)            a product between transposes
    npu_top_k_top_p(logits, p, k)                                        -inf for all but the likeliest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from npucompose.ops.definitions import refuse_others, unsupported

SCATTER, LATENT, PRODUCT = "npu_scatter_pa_kv_cache", "npu_kv_rmsnorm_rope_cache", "npu_transpose_batchmatmul"


def _scatter(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
    **others: Any,
) -> None:
    refuse_others(SCATTER, others, "key, value, key_cache, value_cache, slot_mapping, cache_mode")
    slots = slot_mapping.long()
    for rows, cache in ((key, key_cache), (value, value_cache)):
        if cache_mode in (None, "Norm"):  # pages, tokens, N, D
            cache.view(-1, *cache.shape[2:])[slots] = rows
        elif cache_mode == "PA_NZ":  # pages, N · D / 16, tokens, 16
            size = cache.shape[2]
            cache[slots // size, :, slots % size] = rows.reshape(-1, cache.shape[1], cache.shape[3])
        else:
            raise unsupported(SCATTER, "cache_mode", f"is {cache_mode!r}", "Possible: Norm, PA_NZ.")


def _scatter_functional(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, *more: Any, **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    caches = key_cache.clone(), value_cache.clone()
    _scatter(key, value, *caches, *more, **named)
    return caches


def _scatter_meta(*_: Any, **__: Any) -> None:
    """Returns nothing: the caches are written."""


def _kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(cache of rotated keys, cache of latents, rotated keys, latents); new caches, as the schema has it."""
    refuse_others(LATENT, others, "kv, gamma, cos, sin, index, k_cache, ckv_cache, epsilon, cache_mode, is_output_kv")
    if cache_mode not in ("Norm", "PA", "PA_BNSD"):
        raise unsupported(LATENT, "cache_mode", f"is {cache_mode!r}", "Supported: Norm, PA, PA_BNSD.")
    wide = kv.float()
    latent, turned = wide[..., : gamma.shape[0]], wide[..., gamma.shape[0] :]
    latent = latent * torch.rsqrt(latent.pow(2).mean(-1, keepdim=True) + epsilon) * gamma.float()
    rows = _interleave_rope(turned, cos, sin).to(kv.dtype), latent.to(kv.dtype)
    turned, latent = rows
    return (
        _written(k_cache, turned, index, cache_mode),
        _written(ckv_cache, latent, index, cache_mode),
        turned,
        latent,
    )


def _written(cache: torch.Tensor, rows: torch.Tensor, index: torch.Tensor, mode: str) -> torch.Tensor:
    """Norm: [B, 1, length, D] at [batch, index]; PA: [pages, tokens, 1, D] at the slot index."""
    cache = cache.clone()
    if mode == "Norm":
        batch = torch.arange(rows.shape[0], device=rows.device)[:, None]
        cache[batch, 0, index.long()] = rows[:, 0].to(cache.dtype)
    else:
        cache.view(-1, cache.shape[3])[index.flatten().long()] = rows.flatten(0, 2).to(cache.dtype)
    return cache


def _interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    halves = torch.cat([wide[..., ::2], wide[..., 1::2]], -1)
    first, second = halves.chunk(2, -1)
    return (halves * cos.float() + torch.cat([-second, first], -1) * sin.float()).to(x.dtype)


def _transpose_batchmatmul(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,
    batch_split_factor: int | None = 1,
    **others: Any,
) -> torch.Tensor:
    refuse_others(PRODUCT, others, "input, weight, perm_x1, perm_x2, perm_y")
    if batch_split_factor != 1:
        raise unsupported(PRODUCT, "batch_split_factor", f"is {batch_split_factor}", "Supported: 1.")
    one, other = input.permute(tuple(perm_x1 or (0, 1, 2))), weight.permute(tuple(perm_x2 or (0, 1, 2)))
    return torch.bmm(one, other).permute(tuple(perm_y or (1, 0, 2))).contiguous()  # as torch's own, which it replaces


def _top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
    ordered, where = torch.sort(logits.float(), dim=-1, stable=True)
    if k is not None:
        least = ordered.gather(-1, ordered.shape[-1] - k.long()[:, None])
        ordered = ordered.masked_fill(ordered < least, -torch.inf)
    if p is not None:
        unlikely = torch.softmax(ordered, -1).cumsum(-1) <= 1 - p.float()[:, None]
        last = torch.arange(ordered.shape[-1], device=ordered.device) == ordered.shape[-1] - 1
        ordered = ordered.masked_fill(unlikely & ~last, -torch.inf)
    return torch.empty_like(ordered).scatter_(-1, where, ordered).to(logits.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    SCATTER: _scatter,
    f"{SCATTER}_functional": _scatter_functional,
    LATENT: _kv_rmsnorm_rope_cache,
    "npu_interleave_rope": _interleave_rope,
    PRODUCT: _transpose_batchmatmul,
    "npu_top_k_top_p": _top_k_top_p,
}
METAS: dict[str, Callable[..., Any]] = {SCATTER: _scatter_meta}
"""The others' forms are those of their kernels."""
