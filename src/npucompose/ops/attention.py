"""The two attention operators of `torch.ops.npu` as reference kernels of plain torch calls: NPU models run anywhere.

Meaning of the arguments and the shapes of the results: Ascend/op-plugin,
docs/zh/custom_APIs/torch_npu/torch_npu-npu_fused_infer_attention_score.md and torch_npu-npu_incre_flash_attention.md,
and the meta functions of the torch_npu 2.13.0 wheel, whose layouts are all taken. Computed are grouped heads,
atten_mask, pse_shift, both length lists, sparse_mode 0 to 3, a cache in pages (block_table), query_rope and key_rope,
softmax_lse_flag; every other argument is refused by its name, and has its shape. float32 is allowed besides float16 and
bfloat16, which a device is limited to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from attrs import frozen

from npucompose.ops.definitions import unsupported
from npucompose.ops.masked import (
    LAYOUTS,
    Hidden,
    Pages,
    attend,
    bias_of,
    depth_of_values,
    from_bnsd,
    mask_of,
    parts,
    refuse_other_than_triangle,
    shape,
    sizes,
    to_bnsd,
)

FIA, IFA = "npu_fused_infer_attention_score", "npu_incre_flash_attention"
FIA_V2 = f"{FIA}_v2"
RENAMED = {
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "num_query_heads": "num_heads",
    "return_softmax_lse": "softmax_lse_flag",
    "softmax_scale": "scale",
}
"""{argument of the second version: what the first calls it}, by the documents of both; GE has one operator for them."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ANY = 2147483647
"""pre_tokens and next_tokens that bound nothing."""
SUPPORTED = (
    "query, key, value, pse_shift, atten_mask, actual_seq_lengths, actual_seq_lengths_kv, block_table, block_size, "
    "query_rope, key_rope, num_heads, num_key_value_heads, scale, input_layout, sparse_mode 0 to 3, inner_precise, "
    "softmax_lse_flag"
)


def _fia(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    block_size: int = 0,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
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
    heads = _Heads(num_heads, num_key_value_heads or num_heads)
    _refuse_names(FIA, others, input_layout, sparse_mode, inner_precise)
    _refuse_shapes(FIA, query, key, value, input_layout, heads, block_table)
    into = _Into(
        FIA, input_layout, heads, actual_seq_lengths, actual_seq_lengths_kv, _pages(FIA, block_table, block_size)
    )
    q, k, v = into.bnsd(query, key, value)
    if (query_rope is None) != (key_rope is None):
        raise unsupported(FIA, "query_rope", "is given without key_rope, or that without it", "Give both, or none.")
    if query_rope is not None and key_rope is not None:
        q, k = torch.cat([q, into.query(query_rope)], -1), torch.cat([k, into.cache(key_rope)], -1)
    rows, columns = q.shape[2], k.shape[2]
    if input_layout == "BNSD_BSND" and rows == 1:
        raise unsupported(FIA, "input_layout", "is BNSD_BSND for one query", "It needs Q_S > 1; use BNSD.")
    if rows == 1 and "T" not in input_layout:
        sparse_mode = 0  # "sparse_mode has no meaning when Q_S is 1", as pre_tokens and next_tokens have not
    elif sparse_mode == 0 and atten_mask is not None and (pre_tokens < rows or next_tokens < columns):
        short = pre_tokens < rows
        which, given, bound = ("pre_tokens", pre_tokens, rows) if short else ("next_tokens", next_tokens, columns)
        raise unsupported(FIA, which, f"is {given}", f"Only bands that cover all tokens: at least {bound}.")
    q_lengths, kv_lengths = into.lengths(q.shape[0], rows, columns)
    if sparse_mode in (2, 3):
        refuse_other_than_triangle(FIA, sparse_mode, atten_mask)
        hidden = Hidden(causal="left_up" if sparse_mode == 2 else "right_down")
    else:
        if sparse_mode == 1 and atten_mask is None:
            raise unsupported(FIA, "atten_mask", "is missing", "sparse_mode=1 needs the whole mask.")
        hidden = Hidden(mask=mask_of(FIA, atten_mask, q.shape[0], rows, columns))
    done = attend(q, k, v, scale, hidden, bias_of(FIA, pse_shift, q, columns), q_lengths, kv_lengths, softmax_lse_flag)
    lse = from_bnsd(done.lse, "TND", into.q_ends) if softmax_lse_flag and into.q_ends else done.lse
    return from_bnsd(done.out.to(query.dtype), parts(input_layout)[1], into.q_ends), lse


def _second_version(first: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """FIA_V2 by the first version's kernel or meta function: what the first has not is refused by its name."""
    return first(query, key, value, **{RENAMED.get(name, name): given for name, given in options.items()})


def _fia_meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    quant_scale2: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    num_heads: int = 1,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    softmax_lse_flag: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    _refuse_layout(FIA, input_layout)
    inner = parts(input_layout)[0]
    known = sizes(query, inner, num_heads)
    out = _out_shape(query, value, input_layout, _Heads(num_heads, num_key_value_heads or num_heads), block_table)
    dtype = query.dtype
    if query.dtype == torch.int8:
        dtype = torch.float16 if query_rope is None else query_rope.dtype
    dtype = torch.int8 if quant_scale2 is not None else dtype
    if not softmax_lse_flag:
        lse: tuple[Any, ...] = (0,)
    else:
        lse = (known["T"], known["N"], 1) if "T" in inner else (known["B"], known["N"], known["S"], 1)
    return query.new_empty(out, dtype=dtype), query.new_empty(lse, dtype=torch.float32)


def _out_shape(
    query: torch.Tensor, value: torch.Tensor, layout: str, heads: _Heads, block_table: torch.Tensor | None
) -> list[Any]:
    """The result's sizes; its D is the value's, eight times that where eight int4 are an int32."""
    inner, outer = parts(layout)
    if layout == "BSH" and block_table is None and heads.query == heads.cache and value.dtype != torch.int32:
        return [*query.shape[:2], value.shape[2]]  # 8 * (s // 8) is another size than s to what compares shapes
    depth = depth_of_values(value, inner, heads.cache, block_table is not None)
    return shape(outer, sizes(query, inner, heads.query), depth * 8 if value.dtype == torch.int32 else depth)


def _ifa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    block_size: int = 0,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    inner_precise: int = 1,
    **others: Any,
) -> torch.Tensor:
    heads = _Heads(num_heads, num_key_value_heads or num_heads)
    _refuse_names(IFA, others, input_layout, 0, inner_precise)
    _refuse_shapes(IFA, query, key, value, input_layout, heads, block_table)
    into = _Into(IFA, input_layout, heads, None, actual_seq_lengths, _pages(IFA, block_table, block_size))
    q, k, v = into.bnsd(query, key, value)
    if q.shape[2] != 1:
        raise unsupported(IFA, "query", f"has {q.shape[2]} tokens", f"It takes one; use {FIA} for more.")
    hidden = Hidden(mask=mask_of(IFA, atten_mask, q.shape[0], 1, k.shape[2]))
    _, kv_lengths = into.lengths(q.shape[0], 1, k.shape[2])
    done = attend(q, k, v, scale_value, hidden, bias_of(IFA, pse_shift, q, k.shape[2]), None, kv_lengths, False)
    return from_bnsd(done.out.to(query.dtype), input_layout, None)


def _ifa_meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    quant_scale2: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    **others: Any,
) -> torch.Tensor:
    _refuse_layout(IFA, input_layout)
    out = _out_shape(query, value, input_layout, _Heads(num_heads, num_key_value_heads or num_heads), block_table)
    halved = torch.float16 if query.dtype == torch.int8 else query.dtype
    return query.new_empty(out, dtype=halved if quant_scale2 is None else torch.int8)


KERNELS: dict[str, Any] = {FIA: _fia, IFA: _ifa, FIA_V2: partial(_second_version, _fia)}
"""{operator: its reference kernel}."""
METAS: dict[str, Any] = {FIA: _fia_meta, IFA: _ifa_meta, FIA_V2: partial(_second_version, _fia_meta)}
"""{operator: what gives the form of its results}."""


# What is refused. The names are checked for fake tensors too; sizes and values only where there are numbers.


@cache
def _taken(op: str) -> frozenset[str]:
    """Arguments that the kernel has a use for."""
    return frozenset(signature(KERNELS[op]).parameters)


def _refuse_layout(op: str, layout: str) -> None:
    known = LAYOUTS if op == FIA else ("BSH", "BSND", "BNSD")
    if layout not in known:
        raise unsupported(op, "input_layout", f"is {layout!r}", f"Supported: {', '.join(known)}.")


def _refuse_names(op: str, others: dict[str, Any], layout: str, sparse: int, precise: int) -> None:
    for name, given in others.items():
        if name in _taken(op) or given is None or given is False:
            continue
        if not (isinstance(given, int) and given == 0):
            raise unsupported(op, name, "is not supported here", f"Supported: {SUPPORTED}.")
    _refuse_layout(op, layout)
    if sparse not in (0, 1, 2, 3):
        raise unsupported(op, "sparse_mode", f"is {sparse}", "Supported: 0, 1, 2, 3.")
    possible = (0, 1, 2, 3) if op == FIA else (0, 1)
    if precise not in possible:
        raise unsupported(op, "inner_precise", f"is {precise}", f"Possible: {', '.join(map(str, possible))}.")


def _refuse_shapes(
    op: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: str,
    heads: _Heads,
    block_table: torch.Tensor | None,
) -> None:
    layout = parts(layout)[0]
    named = {"query": (query, layout, heads.query)}
    for name, tensor in (("key", key), ("value", value)):
        pages = {3: "BSH", 4: "BNSD", 5: "BNDS_"}.get(tensor.dim(), "BNSD")
        named[name] = (tensor, layout if block_table is None else pages, heads.cache)
    for name, (tensor, its, _) in named.items():
        if tensor.dim() != len(its):
            raise unsupported(op, name, f"has {tensor.dim()} dimensions", f"{its} has {len(its)}.")
        if tensor.dtype not in DTYPES or tensor.dtype != query.dtype:
            possible = "All three are of one of " + ", ".join(str(d) for d in DTYPES) + "."
            raise unsupported(op, name, f"is {tensor.dtype}", possible)
    if heads.query < 1 or heads.cache < 1 or heads.query % heads.cache or heads.query // heads.cache > 64:
        possible = f"num_heads={heads.query} must be a multiple of it, at most 64 times as much (0: the same)."
        raise unsupported(op, "num_key_value_heads", f"is {heads.cache}", possible)
    for name, (tensor, its, count) in named.items():
        size = tensor.shape[its.index("H" if "H" in its else "N")]
        if (size % count if "H" in its else size != count) or size == 0:
            what = "H, a multiple of the heads" if "H" in its else "N, the number of heads"
            raise unsupported(op, name, f"has {size} for {what} ({count})", f"Its shape is {its}.")
    its = named["key"][1]
    if its != named["value"][1]:
        raise unsupported(op, "value", "has other dimensions than key", "Both caches have one form.")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    alike = [its.index(letter) for letter in "BTS" if letter in its]
    batches = block_table is None and "B" in its and key.shape[0] != query.shape[0]
    if batches or any(key.shape[at] != value.shape[at] for at in alike):
        raise unsupported(op, "key", f"does not fit: {shapes}", "B is common to all, S to key and value.")
    depths = sizes(query, layout, heads.query)["D"], depth_of_values(key, its, heads.cache, block_table is not None)
    if depths[0] != depths[1]:
        shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}"
        raise unsupported(op, "key", f"has another head size: {shapes}", "D is common to query and key.")


# From the arguments' forms to the one form that `attend` knows: B, N, S, D.


class _Heads(NamedTuple):
    query: int
    cache: int
    """Of key and value."""


@frozen
class _Into:
    """What the forms of one call depend on. With T in the layout lengths are sums: where each sequence ends."""

    op: str
    layout: str
    heads: _Heads
    given: Sequence[int] | None
    given_kv: Sequence[int] | None
    pages: Pages | None

    @property
    def q_ends(self) -> list[int] | None:
        if "T" not in self.layout:
            return None
        if self.given is None:
            raise unsupported(self.op, "actual_seq_lengths", "is missing", f"{self.layout} needs it.")
        return [int(n) for n in self.given]

    @property
    def kv_lengths(self) -> list[int] | None:
        """Of each sequence in a cache in pages; where it is not in pages, None."""
        if self.pages is None:
            return None
        name = "actual_seq_lengths_kv" if self.op == FIA else "actual_seq_lengths"
        if self.given_kv is None:
            raise unsupported(self.op, name, "is missing", "A cache in pages (block_table) needs it.")
        longest = self.pages.table.shape[1] * self.pages.size
        batch = self.pages.table.shape[0]
        return _lengths(self.op, name, self.given_kv, batch, longest) or [longest] * batch

    @property
    def kv_ends(self) -> list[int] | None:
        if self.q_ends is None or self.pages is not None:
            return None
        if self.given_kv is None or len(self.given_kv) != len(self.q_ends):
            possible = f"{self.layout} needs a sum for each of {len(self.q_ends)} sequences."
            raise unsupported(self.op, "actual_seq_lengths_kv", f"is {self.given_kv}", possible)
        return [int(n) for n in self.given_kv]

    def query(self, query: torch.Tensor) -> torch.Tensor:
        inner = parts(self.layout)[0]
        self._refuse_sums("actual_seq_lengths", self.q_ends, query, inner)
        return to_bnsd(query, inner, self.heads.query, self.q_ends)

    def cache(self, cache: torch.Tensor) -> torch.Tensor:
        """Keys or values."""
        if self.pages is not None:
            return self.pages.gathered(cache, self.heads.cache, self.kv_lengths or ())
        inner = parts(self.layout)[0]
        self._refuse_sums("actual_seq_lengths_kv", self.kv_ends, cache, inner)
        return to_bnsd(cache, inner, self.heads.cache, self.kv_ends)

    def bnsd(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.query(query), self.cache(key), self.cache(value)

    def lengths(self, batch: int, rows: int, columns: int) -> tuple[list[int] | None, list[int] | None]:
        """Of the queries, and of the keys and values."""
        if self.q_ends is not None:
            q = [end - start for start, end in pairwise((0, *self.q_ends))]
        else:  # one query has no length (the operator's document, constraints of Q_S = 1)
            q = _lengths(self.op, "actual_seq_lengths", self.given, batch, rows) if rows > 1 else None
        if self.kv_ends is not None:
            return q, [end - start for start, end in pairwise((0, *self.kv_ends))]
        if self.kv_lengths is not None:
            return q, self.kv_lengths
        name = "actual_seq_lengths_kv" if self.op == FIA else "actual_seq_lengths"
        return q, _lengths(self.op, name, self.given_kv, batch, columns)

    def _refuse_sums(self, name: str, ends: list[int] | None, tensor: torch.Tensor, layout: str) -> None:
        if ends is None:
            return
        tokens = tensor.shape[layout.index("T")]
        if any(end < start for start, end in pairwise((0, *ends))) or (ends[-1] if ends else 0) != tokens:
            possible = f"Sums that grow, the last of them T = {tokens}."
            raise unsupported(self.op, name, f"is {ends}", possible)


def _pages(op: str, table: torch.Tensor | None, size: int) -> Pages | None:
    if table is None:
        return None
    if table.dim() != 2 or table.dtype != torch.int32:
        given = f"is {table.dtype} of shape {tuple(table.shape)}"
        raise unsupported(op, "block_table", given, "Possible: int32 of shape [B, pages of the longest sequence].")
    if size <= 0:
        raise unsupported(op, "block_size", f"is {size}", "A cache in pages needs the tokens of a page.")
    return Pages(table=table, size=size)


def _lengths(op: str, name: str, given: Sequence[int] | None, batch: int, longest: int) -> list[int] | None:
    """One length for each batch, or None when all tokens count: one length is for all, more than B are cut to B."""
    if given is None:
        return None
    if len(given) != 1 and len(given) < batch:
        raise unsupported(op, name, f"has {len(given)} lengths", f"Possible: 1, or at least B = {batch}.")
    lengths = [int(n) for n in given[:batch]]
    if len(lengths) == 1:
        lengths *= batch
    for length in lengths:
        if not 0 <= length <= longest:
            raise unsupported(op, name, f"holds {length}", f"Possible: 0 to S = {longest}.")
    return None if all(length == longest for length in lengths) else lengths
