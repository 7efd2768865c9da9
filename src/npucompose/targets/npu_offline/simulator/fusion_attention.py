"""npu_fusion_attention and npu_fusion_attention_v3 with their gradients, as plain torch calls on the CPU.

Layout BNSD without dropout, lengths or position shifts: what scaled_dot_product_attention becomes. The rest is refused
by name. Results beside the attention have the shapes of the wheel's meta functions: the maximum of each row's scores
and the sum of their exponents, eight times each; the seeds of a dropout that there is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npucompose.ops.definitions import UnsupportedArgument

LAST, V3 = "npu_fusion_attention", "npu_fusion_attention_v3"
GRADIENTS = {LAST: "npu_fusion_attention_grad", V3: "npu_fusion_attention_grad_v3"}
ALL, LEFT_UP = 0, 2
"""The two values of sparse_mode: a mask for all scores, and what is above the diagonal hidden."""
NO_EFFECT = ("inner_precise", "gen_mask_parallel", "sync", "pre_tockens", "next_tockens", "softmax_layout")
_COPIES = 8


def register(library: torch.library.Library) -> None:
    """Kernels for those of the four operators that the wheel has."""
    for name, gradient in GRADIENTS.items():
        if not hasattr(torch.ops.npu, name):
            continue
        library.impl(name, _kernel(name), "CPU")
        library.impl(gradient, _gradient_kernel(name, gradient), "CPU")
        torch.library.register_autograd(f"npu::{name}", _backward(gradient), setup_context=_keep, lib=library)


def _kernel(name: str) -> Callable[..., Any]:
    """`seeds` is what follows the four tensors: two tensors in v3, three numbers before."""

    def kernel(query: Any, key: Any, value: Any, head_num: int, input_layout: str, *args: Any, **named: Any) -> Any:
        options = _options(name, args, named)
        _refuse(name, query, head_num, input_layout, options, options["keep_prob"])
        out, top, total = _attention(query, key, value, options["atten_mask"], options["scale"], options["sparse_mode"])
        eight = (_copies(top), _copies(total), query.new_empty(0))
        seeds = (0, 0, 0) if name == LAST else tuple(torch.zeros(1, dtype=torch.int64) for _ in range(2))
        return (out.to(query.dtype).contiguous(), *eight, *seeds)

    return kernel


def _gradient_kernel(name: str, gradient: str) -> Callable[..., Any]:
    """Computed again with autograd on, so that it is the gradient of exactly what `name` computed."""

    def kernel(query: Any, key: Any, value: Any, dy: Any, head_num: int, input_layout: str, **named: Any) -> Any:
        options = _options(gradient, (), named)
        _refuse(gradient, query, head_num, input_layout, options, options["keep_prob"])
        with torch.enable_grad():
            leaves = q, k, v = tuple(t.detach().requires_grad_() for t in (query, key, value))
            mask, scale = options["atten_mask"], options["scale_value"]
            out = _attention(q, k, v, mask, scale, options["sparse_mode"])[0].to(query.dtype)
            gradients = torch.autograd.grad(out, leaves, dy)
        nothing = query.new_empty(0) if name == V3 else None
        return (*(g.contiguous() for g in gradients), nothing, torch.empty([] if name == V3 else [0]))

    return kernel


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: float, sparse_mode: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(attention, maximum, sum of exponents) of each row in float32; a row with every score hidden is zero."""
    group = query.size(1) // key.size(1)
    k, v = (t.float().repeat_interleave(group, 1) for t in (key, value))
    scores = query.float() @ k.mT * scale
    if sparse_mode == LEFT_UP:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), float("-inf"))
    elif mask is not None:
        scores = scores.masked_fill(mask.to(torch.bool), float("-inf"))
    top = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - top.masked_fill(top.isinf(), 0.0))
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total.masked_fill(total == 0, 1.0), top, total


def _copies(column: torch.Tensor) -> torch.Tensor:
    return column.detach().repeat(1, 1, 1, _COPIES)


def _options(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Every argument behind input_layout by its name, defaults included."""
    arguments = getattr(torch.ops.npu, name).default._schema.arguments
    behind = arguments[[a.name for a in arguments].index("input_layout") + 1 :]
    by_place = {a.name: given for a, given in zip(behind, args, strict=False)}
    return {**{a.name: a.default_value for a in behind}, **by_place, **named}


def _refuse(name: str, query: Any, head_num: int, layout: str, options: dict[str, Any], keep_prob: float) -> None:
    if layout != "BNSD" or query.dim() != 4 or query.size(1) != head_num:
        given = f"is '{layout}' for {tuple(query.shape)} and {head_num} heads"
        raise UnsupportedArgument(name, "input_layout", given, "Supported: BNSD.")
    if options["sparse_mode"] not in (ALL, LEFT_UP):
        raise UnsupportedArgument(name, "sparse_mode", f"is {options['sparse_mode']}", "Supported: 0, 2.")
    if keep_prob != 1.0:
        raise UnsupportedArgument(name, "keep_prob", f"is {keep_prob}", "Supported: 1, no dropout.")
    for option in ("pse", "padding_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sink", "dropout_mask"):
        if options.get(option) is not None:
            raise UnsupportedArgument(name, option, "is not supported here", "Leave it at None.")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    query, key, value, head_num, layout, *rest = inputs
    ctx.options = _options(LAST if len(output) == 7 else V3, tuple(rest), {})
    ctx.of = (head_num, layout)
    ctx.save_for_backward(query, key, value, ctx.options.pop("atten_mask"), *output[:4])


def _backward(gradient: str) -> Callable[..., Any]:
    def backward(ctx: Any, dy: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        query, key, value, mask, out, top, total, inner = ctx.saved_tensors
        names = ("keep_prob", "pre_tockens", "next_tockens", "inner_precise", "sparse_mode")
        gradients = getattr(torch.ops.npu, gradient)(
            query,
            key,
            value,
            dy,
            *ctx.of,
            atten_mask=mask,
            softmax_max=top,
            softmax_sum=total,
            softmax_in=inner,
            attention_in=out,
            scale_value=ctx.options["scale"],
            **{name: ctx.options[name] for name in names},
        )
        return (*gradients[:3], *[None] * (len(ctx.options) + 3))

    return backward
