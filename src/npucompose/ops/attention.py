"""The two attention operators of `torch.ops.npu` as reference kernels of plain torch calls: NPU models run anywhere.

Schemas: torch_npu's npu_native_functions_by_codegen.yaml (2.13.0). Meaning of the arguments and the shapes of the
results: Ascend/op-plugin, docs/context/torch_npu-npu_fused_infer_attention_score.md and
torch_npu-npu_incre_flash_attention.md, and the meta functions of that wheel. Supported: layouts BSH, BSND, BNSD and
BNSD_BSND, grouped heads, atten_mask, pse_shift, both length lists, sparse_mode 0 to 3, softmax_lse_flag; every other
argument is refused by its name. float32 is allowed besides float16 and bfloat16, which a device is limited to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch

from npucompose.ops.definitions import UnsupportedArgument, define_missing
from npucompose.ops.masked import Attended, Hidden, attend

SCHEMAS = {
    "npu_fused_infer_attention_score": (
        "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, "
        "Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, "
        "Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
        "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? antiquant_scale=None, "
        "Tensor? antiquant_offset=None, Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
        "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, Tensor? block_table=None, "
        "Tensor? query_padding_size=None, Tensor? kv_padding_size=None, Tensor? key_shared_prefix=None, "
        "Tensor? value_shared_prefix=None, SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, "
        "Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0, "
        'int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", int num_key_value_heads=0, '
        "int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0, int key_antiquant_mode=0, "
        "int value_antiquant_mode=0, bool softmax_lse_flag=False) -> (Tensor, Tensor)"
    ),
    "npu_incre_flash_attention": (
        "npu_incre_flash_attention(Tensor query, Tensor key, Tensor value, *, Tensor? padding_mask=None, "
        "Tensor? atten_mask=None, Tensor? pse_shift=None, SymInt[]? actual_seq_lengths=None, "
        "Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? block_table=None, "
        "Tensor? dequant_scale1=None, Tensor? quant_scale1=None, Tensor? dequant_scale2=None, "
        "Tensor? quant_scale2=None, Tensor? quant_offset2=None, Tensor? kv_padding_size=None, int num_heads=1, "
        'float scale_value=1.0, str input_layout="BSH", int num_key_value_heads=0, int block_size=0, '
        "int inner_precise=1) -> Tensor"
    ),
}
FIA, IFA = SCHEMAS
FIA_V2 = f"{FIA}_v2"
RENAMED = {
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "num_query_heads": "num_heads",
    "return_softmax_lse": "softmax_lse_flag",
    "softmax_scale": "scale",
}
"""{argument of the second version: what the first calls it}, by the documents of both; GE has one operator for them."""
LAYOUTS = {"BSH": ("BSH", "BSH"), "BSND": ("BSND", "BSND"), "BNSD": ("BNSD", "BNSD"), "BNSD_BSND": ("BNSD", "BSND")}
"""input_layout -> (layout of query, key and value; layout of the result)."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ANY = 2147483647
"""pre_tokens and next_tokens that bound nothing."""
SUPPORTED = (
    "query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, num_heads, "
    "num_key_value_heads, scale, input_layout, sparse_mode 0 to 3, inner_precise, softmax_lse_flag"
)


def define() -> None:
    """Define those of the two operators that torch_npu has not defined."""
    define_missing("npu", SCHEMAS, _KERNELS)


def _fia(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = ANY,
    next_tokens: int = ANY,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    softmax_lse_flag: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    kv_heads = num_key_value_heads or num_heads
    _refuse_names(FIA, others, input_layout, sparse_mode, inner_precise)
    _refuse_shapes(FIA, query, key, value, input_layout, num_heads, kv_heads)
    q, k, v = _bnsd(query, key, value, input_layout, num_heads, kv_heads)
    rows, columns = q.shape[2], k.shape[2]
    if input_layout == "BNSD_BSND" and rows == 1:
        raise UnsupportedArgument(FIA, "input_layout", "is BNSD_BSND for one query", "It needs Q_S > 1; use BNSD.")
    if rows == 1:
        sparse_mode = 0  # "sparse_mode has no meaning when Q_S is 1", as pre_tokens and next_tokens have not,
        actual_seq_lengths = None  # and neither has this (the operator's document, constraints of Q_S = 1)
    elif sparse_mode == 0 and atten_mask is not None and (pre_tokens < rows or next_tokens < columns):
        short = pre_tokens < rows
        which, given, bound = ("pre_tokens", pre_tokens, rows) if short else ("next_tokens", next_tokens, columns)
        raise UnsupportedArgument(FIA, which, f"is {given}", f"Only bands that cover all tokens: at least {bound}.")
    q_lengths = _lengths(FIA, "actual_seq_lengths", actual_seq_lengths, q.shape[0], rows)
    kv_lengths = _lengths(FIA, "actual_seq_lengths_kv", actual_seq_lengths_kv, q.shape[0], columns)
    if sparse_mode in (2, 3):
        _refuse_other_than_triangle(sparse_mode, atten_mask)
        hidden = Hidden(causal="left_up" if sparse_mode == 2 else "right_down")
    else:
        if sparse_mode == 1 and atten_mask is None:
            raise UnsupportedArgument(FIA, "atten_mask", "is missing", "sparse_mode=1 needs the whole mask.")
        hidden = Hidden(mask=_mask(FIA, atten_mask, q.shape[0], rows, columns))
    pse = _pse(FIA, pse_shift, q, columns)
    done = attend(q, k, v, scale, hidden, pse, q_lengths, kv_lengths, softmax_lse_flag)
    return _arranged(done, query.dtype, LAYOUTS[input_layout][1]), done.lse


def _fia_v2(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """The second version: what the first has not is refused by its name."""
    return _fia(query, key, value, **{RENAMED.get(name, name): given for name, given in options.items()})


def _fia_meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int = 1,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    softmax_lse_flag: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    _refuse_names(FIA, others, input_layout, sparse_mode, inner_precise)
    batch, rows, out = _out_shape(query, value, input_layout, num_heads, num_key_value_heads or num_heads)
    lse = (batch, num_heads, rows, 1) if softmax_lse_flag else (0,)
    return query.new_empty(out), query.new_empty(lse, dtype=torch.float32)


def _ifa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    inner_precise: int = 1,
    **others: Any,
) -> torch.Tensor:
    kv_heads = num_key_value_heads or num_heads
    _refuse_names(IFA, others, input_layout, 0, inner_precise)
    _refuse_shapes(IFA, query, key, value, input_layout, num_heads, kv_heads)
    q, k, v = _bnsd(query, key, value, input_layout, num_heads, kv_heads)
    if q.shape[2] != 1:
        raise UnsupportedArgument(IFA, "query", f"has {q.shape[2]} tokens", f"It takes one; use {FIA} for more.")
    hidden = Hidden(mask=_mask(IFA, atten_mask, q.shape[0], 1, k.shape[2]))
    kv_lengths = _lengths(IFA, "actual_seq_lengths", actual_seq_lengths, q.shape[0], k.shape[2])
    done = attend(q, k, v, scale_value, hidden, _pse(IFA, pse_shift, q, k.shape[2]), None, kv_lengths, False)
    return _arranged(done, query.dtype, LAYOUTS[input_layout][1])


def _ifa_meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int = 1,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    inner_precise: int = 1,
    **others: Any,
) -> torch.Tensor:
    _refuse_names(IFA, others, input_layout, 0, inner_precise)
    _, _, out = _out_shape(query, value, input_layout, num_heads, num_key_value_heads or num_heads)
    return query.new_empty(out)


_KERNELS: dict[str, tuple[Any, Any]] = {FIA: (_fia, _fia_meta), IFA: (_ifa, _ifa_meta)}
KERNELS: dict[str, Any] = {**{name: kernel for name, (kernel, _) in _KERNELS.items()}, FIA_V2: _fia_v2}
"""{operator: its reference kernel}, for those who define the operators themselves."""


# What is refused. The names are checked for fake tensors too; sizes and values only where there are numbers.


@cache
def _taken(op: str) -> frozenset[str]:
    """Arguments that the kernel has a use for; a meta function names only those that decide a shape."""
    return frozenset(signature(KERNELS[op]).parameters)


def _refuse_names(op: str, others: dict[str, Any], layout: str, sparse: int, precise: int) -> None:
    for name, given in others.items():
        if name in _taken(op) or given is None or given is False:
            continue
        if not (isinstance(given, int) and given == 0):
            raise UnsupportedArgument(op, name, "is not supported here", f"Supported: {SUPPORTED}.")
    layouts = LAYOUTS if op == FIA else [name for name in LAYOUTS if "_" not in name]
    if layout not in layouts:
        raise UnsupportedArgument(op, "input_layout", f"is {layout!r}", f"Supported: {', '.join(layouts)}.")
    if sparse not in (0, 1, 2, 3):
        raise UnsupportedArgument(op, "sparse_mode", f"is {sparse}", "Supported: 0, 1, 2, 3.")
    possible = (0, 1, 2, 3) if op == FIA else (0, 1)
    if precise not in possible:
        raise UnsupportedArgument(op, "inner_precise", f"is {precise}", f"Possible: {', '.join(map(str, possible))}.")


def _refuse_shapes(
    op: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: str, heads: int, kv_heads: int
) -> None:
    rank = 3 if layout == "BSH" else 4
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if tensor.dim() != rank:
            raise UnsupportedArgument(op, name, f"has {tensor.dim()} dimensions", f"{layout} has {rank}.")
        if tensor.dtype not in DTYPES or tensor.dtype != query.dtype:
            possible = "All three are of one of " + ", ".join(str(d) for d in DTYPES) + "."
            raise UnsupportedArgument(op, name, f"is {tensor.dtype}", possible)
    if heads < 1 or kv_heads < 1 or heads % kv_heads or heads // kv_heads > 64:
        possible = f"num_heads={heads} must be a multiple of it, at most 64 times as much (0: the same)."
        raise UnsupportedArgument(op, "num_key_value_heads", f"is {kv_heads}", possible)
    for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        size = named[name].shape[{"BSH": 2, "BSND": 2}.get(layout, 1)]
        if (size % count if layout == "BSH" else size != count) or size == 0:
            what = "H, a multiple of the heads" if layout == "BSH" else "N, the number of heads"
            raise UnsupportedArgument(op, name, f"has {size} for {what} ({count})", f"Its shape is {layout}.")
    tokens = {"BSH": 1, "BSND": 1}.get(layout, 2)
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[tokens] != value.shape[tokens]:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise UnsupportedArgument(op, "key", f"does not fit: {shapes}", "B is common to all, S to key and value.")
    depths = [t.shape[2] // n if layout == "BSH" else t.shape[3] for t, n in ((query, heads), (key, kv_heads))]
    if depths[0] != depths[1]:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}"
        raise UnsupportedArgument(op, "key", f"has another head size: {shapes}", "D is common to query and key.")


def _refuse_other_than_triangle(sparse_mode: int, mask: torch.Tensor | None) -> None:
    """Modes 2 and 3 want the compressed mask, whose content is fixed: what is above the diagonal is hidden."""
    shape = None if mask is None else tuple(mask.shape)
    if shape is None or shape[-2:] != (2048, 2048) or any(size != 1 for size in shape[:-2]):
        given = "is missing" if shape is None else f"has shape {shape}"
        raise UnsupportedArgument(FIA, "atten_mask", given, f"sparse_mode={sparse_mode} needs the 2048 × 2048 one.")


# From the arguments' forms to the one form that `attend` knows: B, N, S, D.


def _bnsd(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: str, heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if layout == "BSH":
        query, key, value = (
            t.unflatten(2, (n, t.shape[2] // n)) for t, n in ((query, heads), (key, kv_heads), (value, kv_heads))
        )
    if layout in ("BSH", "BSND"):
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return query, key, value


def _arranged(done: Attended, dtype: torch.dtype, layout: str) -> torch.Tensor:
    """The contiguous result, in the layout that was asked for."""
    out = done.out.to(dtype)
    batch, heads, rows, depth = out.shape
    if layout == "BNSD":
        return out
    shape = (batch, rows, heads * depth) if layout == "BSH" else (batch, rows, heads, depth)
    # By way of one dimension: reshape() alone may return strides other than those the meta function promises.
    return out.transpose(1, 2).reshape(-1).view(shape)


def _out_shape(
    query: torch.Tensor, value: torch.Tensor, layout: str, heads: int, kv_heads: int
) -> tuple[Any, Any, tuple[Any, ...]]:
    """B, Q_S and the shape of the result, whose D is the value's; sizes may be symbols."""
    if layout == "BSH":
        batch, rows, _ = query.shape
        width = value.shape[2]
        return batch, rows, (batch, rows, width if heads == kv_heads else width // kv_heads * heads)
    batch, rows = query.shape[0], query.shape[1 if layout == "BSND" else 2]
    depth = value.shape[3]
    if LAYOUTS[layout][1] == "BSND":
        return batch, rows, (batch, rows, heads, depth)
    return batch, rows, (batch, heads, rows, depth)


def _lengths(op: str, name: str, given: Sequence[int] | None, batch: int, longest: int) -> list[int] | None:
    """One length for each batch, or None when all tokens count: one length is for all, more than B are cut to B."""
    if given is None:
        return None
    if len(given) != 1 and len(given) < batch:
        raise UnsupportedArgument(op, name, f"has {len(given)} lengths", f"Possible: 1, or at least B = {batch}.")
    lengths = [int(n) for n in given[:batch]]
    if len(lengths) == 1:
        lengths *= batch
    for length in lengths:
        if not 0 <= length <= longest:
            raise UnsupportedArgument(op, name, f"holds {length}", f"Possible: 0 to S = {longest}.")
    return None if all(length == longest for length in lengths) else lengths


def _mask(op: str, mask: torch.Tensor | None, batch: int, rows: int, columns: int) -> torch.Tensor | None:
    """True where a score is hidden, of shape [B or 1, 1, rows, columns], cut out of a mask that may be padded."""
    if mask is None:
        return None
    if mask.dtype not in (torch.bool, torch.int8, torch.uint8):
        raise UnsupportedArgument(op, "atten_mask", f"is {mask.dtype}", "Possible: bool, int8, uint8.")
    shape = tuple(mask.shape)
    if mask.dim() == 2:
        mask = mask[:, None, None, :] if rows == 1 else mask[None, None]
    elif mask.dim() == 3:
        mask = mask[:, None]
    fits = mask.dim() == 4 and mask.shape[0] in (1, batch) and mask.shape[1] == 1
    if not fits or mask.shape[2] < rows or mask.shape[3] < columns:
        possible = "(Q_S, KV_S), (B|1, Q_S, KV_S), (B|1, 1, Q_S, KV_S)"
        possible = "(B, KV_S), (B, 1, KV_S), (B, 1, 1, KV_S)" if rows == 1 else possible
        here = f"B = {batch}, Q_S = {rows}, KV_S = {columns}, S may be padded."
        raise UnsupportedArgument(op, "atten_mask", f"has shape {shape}", f"Possible: {possible}; {here}")
    return mask[:, :, :rows, :columns].to(torch.bool)


def _pse(op: str, pse: torch.Tensor | None, q: torch.Tensor, columns: int) -> torch.Tensor | None:
    if pse is None:
        return None
    batch, heads, rows, _ = q.shape
    if pse.dtype != q.dtype:
        raise UnsupportedArgument(op, "pse_shift", f"is {pse.dtype}", f"The query is {q.dtype}.")
    fits = pse.dim() == 4 and pse.shape[0] in (1, batch) and pse.shape[1] == heads
    if not fits or pse.shape[2] < rows or pse.shape[3] < columns:
        possible = f"Possible: (B|1, N, Q_S, KV_S) of B = {batch}, N = {heads}, Q_S = {rows}, KV_S = {columns}."
        raise UnsupportedArgument(op, "pse_shift", f"has shape {tuple(pse.shape)}", possible)
    return pse[:, :, :rows, :columns]
