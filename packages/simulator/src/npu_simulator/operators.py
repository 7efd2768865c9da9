"""torch.ops.npu.*: schemas from the wheel's own list, shapes from the wheel's own meta functions, our CPU kernels.

# Note [Choices by device]
A composite operator of torch is taken apart while a graph is traced, and some look at the tensors' device to decide
into what: on CPU tensors scaled_dot_product_attention becomes a kernel that only the CPU has. torch_npu registers its
own function for such an operator under the key of the NPU's autograd (torchnpugen, filt_compositeimplicitautograd_api),
which runs before the operator reaches the tracer: the graph holds what that function calls. The process of the
simulator is a device whose tensors say CPU, so ours are registered for the CPU's keys.

What torch_npu decides is in C++ that the wheel brings compiled; read from Ascend/op-plugin (August 2026):
ScaledDotProductAttentionKernelNpuOpApi.cpp and FusedSdpChoiceKernelNpuOpApi.cpp.

# Note [Fused attention on the CPU]
npu_fusion_attention and npu_fusion_attention_v3 with their gradients are plain torch calls here: layout BNSD without
dropout, lengths or position shifts, which is what scaled_dot_product_attention becomes. The rest is refused by name.
Results beside the attention have the shapes of the wheel's meta functions: the maximum of each row's scores and the sum
of their exponents, eight times each; the seeds of a dropout that there is not.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from npu_simulator.attention_forms import capture_forms
from npu_simulator.device import SimulatedDevice
from npu_simulator.modules import module
from npucompose.ops import functionalised, npu
from npucompose.ops.catalogue import meta_files, of_wheel
from npucompose.ops.definitions import unsupported

_LIBRARIES: list[torch.library.Library] = []


def define(device: SimulatedDevice, root: Path, version: str) -> None:
    """Define every operator of the wheel's list that torch does not have. `root` is the wheel's torch_npu."""
    known = of_wheel(root, version)
    library = torch.library.Library("npu", "FRAGMENT")
    aten = torch.library.Library("aten", "IMPL")
    _LIBRARIES.extend((library, aten))  # a library's operators live as long as the object
    own = [name for name in known.schemas if not hasattr(torch.ops.aten, name.partition(".")[0])]
    for name in own:
        library.define(known.schemas[name])
    _load_meta_functions(root)
    _implement(library, {name: known.schemas[name] for name in own})
    functionalised.register(library, own, npu.overload)
    register_composites(aten)
    aten.impl("record_stream", lambda tensor, stream: device.use(tensor, stream.stream_id), "CPU")


def _load_meta_functions(root: Path) -> None:
    module("torch_npu.op_plugin", __path__=[str(root / "op_plugin")])  # its __init__ would load CANN's libraries
    for file in meta_files(root):
        importlib.import_module(f"torch_npu.op_plugin.meta.{file.stem}")


def _implement(library: torch.library.Library, schemas: Mapping[str, str]) -> None:
    """The reference kernels of npucompose.ops; attention also in the forms in which a capture calls it."""
    own = capture_forms()
    fused_attention = register_fused_attention(library)
    for name, schema in schemas.items():
        if name not in fused_attention:
            key = "CPU" if npu.takes_tensors(schema) else "CompositeExplicitAutograd"
            library.impl(name, npu.value(name, own.get(name)), key)


FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_HEADS, MOST_DEPTH, TRIANGLE = 2048, 512, 2048
ALL, LEFT_UP = 0, 2
"""Two values of sparse_mode: a mask for all scores; what lies above the diagonal from the upper left corner hidden."""


def register_composites(aten: torch.library.Library) -> None:
    """`aten` is a library for implementations of torch's own operators; they last as long as it does.

    See Note [Choices by device].
    """
    for operator, function in (
        ("scaled_dot_product_attention", scaled_dot_product_attention),
        ("_weight_norm", weight_norm),
        ("dropout", dropout),
    ):
        aten.impl(operator, function, "AutogradCPU")
        aten.impl(operator, function, "CPU")  # under inference_mode the autograd keys are skipped


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """FlashAttentionScore where it takes the tensors (an Ascend 910B), and torch's own composition elsewhere."""
    if not _fuses(query, key, value, attn_mask):
        mask = _added(attn_mask, query.dtype)
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    precise = 2 if not is_causal and query.size(2) > 1 and attn_mask is not None else 0
    if is_causal:
        square = torch.ones((TRIANGLE, TRIANGLE), dtype=torch.bool, device=query.device)
        hidden = torch.triu(square, 1)
    else:
        hidden = None if attn_mask is None else _as_wide_as_needed(attn_mask, query, key).logical_not()
    name = "npu_fusion_attention_v3" if hasattr(torch.ops.npu, "npu_fusion_attention_v3") else "npu_fusion_attention"
    return getattr(torch.ops.npu, name)(
        query,
        key,
        value,
        query.size(1),
        "BNSD",
        atten_mask=hidden,
        scale=1.0 / math.sqrt(query.size(-1)) if scale is None else scale,
        keep_prob=1.0 - dropout_p,
        next_tockens=0 if is_causal else 2147483647,
        inner_precise=precise,
        sparse_mode=LEFT_UP if is_causal else ALL,
    )[0]


def _fuses(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    if query.dtype == torch.float32 and any(t.size(-1) % 4 for t in (query, key, value)):
        return False
    if not query.dim() == key.dim() == value.dim() == 4 or query.dtype not in FUSED_DTYPES:
        return False
    heads, kv_heads = query.size(1), key.size(1)
    sizes = heads <= MOST_HEADS and kv_heads <= MOST_HEADS and query.size(3) <= MOST_DEPTH
    return sizes and heads >= kv_heads and heads % kv_heads == 0 and (mask is None or mask.dtype == torch.bool)


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of True for what counts, as numbers that are added."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask.logical_not(), float("-inf"))


def _as_wide_as_needed(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The kernel broadcasts a mask over batch and heads together, or over heads; every other way is written out."""
    wanted = (query.size(0), query.size(1), query.size(2), key.size(2))
    given = tuple(mask.shape)
    if len(given) not in (2, 3, 4) or any(a not in (1, b) for a, b in zip(given[::-1], wanted[::-1], strict=False)):
        return mask
    square, outer = given[-2:] == wanted[2:], given[:-2]
    taken = square and outer in ((), wanted[:2], (wanted[0], 1), (1, 1))
    return mask if taken else mask.expand(wanted)


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """In two steps, as torch_npu writes it; torch would take its own kernel for both."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """One operator with its mask, as for every device but the CPU, whose numbers come of bernoulli_."""
    if p == 0 or not train or x.numel() == 0:
        return x
    return x * torch.zeros((), dtype=x.dtype, device=x.device) if p == 1 else torch.native_dropout(x, p, train)[0]


LAST, V3 = "npu_fusion_attention", "npu_fusion_attention_v3"
GRADIENTS = {LAST: "npu_fusion_attention_grad", V3: "npu_fusion_attention_grad_v3"}
_COPIES = 8


def register_fused_attention(library: torch.library.Library) -> set[str]:
    """Kernels for those of the four operators that the wheel has, whose names are returned; see Note [Fused attention
    on the CPU]."""
    there = {name: gradient for name, gradient in GRADIENTS.items() if hasattr(torch.ops.npu, name)}
    for name, gradient in there.items():
        library.impl(name, npu.value(name, _kernel(name)), "CPU")
        library.impl(gradient, npu.value(gradient, _gradient_kernel(name, gradient)), "CPU")
        torch.library.register_autograd(f"npu::{name}", _backward(gradient), setup_context=_keep, lib=library)
    return {*there, *there.values()}


def _kernel(name: str) -> Callable[..., Any]:
    """`seeds` is what follows the four tensors: two tensors in v3, three numbers before."""

    def kernel(query: Any, key: Any, value: Any, head_num: int, input_layout: str, *args: Any, **named: Any) -> Any:
        options = _options(name, args, named)
        _refuse(name, query, head_num, input_layout, options, options["keep_prob"])
        out, top, total = _attention(query, key, value, options["atten_mask"], options["scale"], options["sparse_mode"])
        eight = (*(column.detach().repeat(1, 1, 1, _COPIES) for column in (top, total)), query.new_empty(0))
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


def _options(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Every argument behind input_layout by its name, defaults included."""
    arguments = getattr(torch.ops.npu, name).default._schema.arguments
    behind = arguments[[a.name for a in arguments].index("input_layout") + 1 :]
    by_place = {a.name: given for a, given in zip(behind, args, strict=False)}
    return {**{a.name: a.default_value for a in behind}, **by_place, **named}


def _refuse(name: str, query: Any, head_num: int, layout: str, options: dict[str, Any], keep_prob: float) -> None:
    if layout != "BNSD" or query.dim() != 4 or query.size(1) != head_num:
        given = f"is '{layout}' for {tuple(query.shape)} and {head_num} heads"
        raise unsupported(name, "input_layout", given, "Supported: BNSD.")
    if options["sparse_mode"] not in (ALL, LEFT_UP):
        raise unsupported(name, "sparse_mode", f"is {options['sparse_mode']}", "Supported: 0, 2.")
    if keep_prob != 1.0:
        raise unsupported(name, "keep_prob", f"is {keep_prob}", "Supported: 1, no dropout.")
    for option in ("pse", "padding_mask", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sink", "dropout_mask"):
        if options.get(option) is not None:
            raise unsupported(name, option, "is not supported here", "Leave it at None.")


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
