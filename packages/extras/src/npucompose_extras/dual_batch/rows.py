"""Which operators compute each row of a batch by itself, and along which dimension their results have the rows then.

A batch may be the leading factor of a dimension: after `view([batch, tokens, hidden] -> [batch * tokens, hidden])` each
item of the batch is so many rows in a row. An operator that no rule here knows may mix rows: it is left whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import field, frozen
from torch import fx

from npucompose.graphs.effects import is_getitem, op_facts
from npucompose.graphs.matching import arguments_of


@frozen
class Batch:
    """The rows of a tensor: `rows` for each item of the batch, one after the other, along `dim`."""

    dim: int
    rows: int = 1


Found = Batch | tuple["Batch | None", ...]
"""Of a result; of several results each."""


@frozen(kw_only=True)
class PerRow:
    """An operator that works row by row."""

    result: Found
    sliced: Mapping[fx.Node, Batch] = field(factory=dict)
    """Operands that are no batch themselves, and of which each row needs its own part (a mask of all rows)."""
    sizes: str | None = None
    """The argument that holds the result's sizes."""


class MixesRows(Exception):
    """The call cannot be done for some rows only; the text says why."""


class RowCall:
    """One call with its arguments by name, and what is known of the batch in them."""

    def __init__(self, node: fx.Node, known: Mapping[fx.Node, Found]) -> None:
        self.node, self.known = node, known
        self.arguments = arguments_of(node)
        value = node.meta.get("val")
        self.shape: Sequence[int] = value.shape if isinstance(value, torch.Tensor) else ()
        self.name = str(getattr(node.target, "_opname", ""))
        self.sliced: dict[fx.Node, Batch] = {}

    def batch(self, name: str) -> Batch | None:
        """Of a tensor argument; None where every row needs all of it."""
        given = self.arguments.get(name)
        found = self.known.get(given) if isinstance(given, fx.Node) else None
        return found if isinstance(found, Batch) else None

    def only(self, *names: str) -> None:
        """MixesRows unless the batch is in these arguments alone."""
        named = [self.arguments.get(name) for name in names]
        for source in self.node.all_input_nodes:
            if source in self.known and source not in named:
                raise MixesRows(f"every row of its result needs all of '{source.name}'")

    def needed(self, name: str) -> Batch:
        found = self.batch(name)
        if found is None:
            raise MixesRows(f"its batch is not in '{name}'")
        return found

    def aligned(self, operand: Any, batch: Batch, ndim: int) -> None:
        """An operand that is broadcast to `ndim` dimensions has this batch, or nothing of it, or all rows."""
        if not isinstance(operand, fx.Node) or not isinstance(operand.meta.get("val"), torch.Tensor):
            return
        value = operand.meta["val"]
        own = batch.dim - (ndim - value.dim())
        if operand in self.known:
            if self.known[operand] != Batch(own, batch.rows):
                raise MixesRows("its operands have their batches in different places")
        elif own >= 0 and value.shape[own] != 1:
            self.sliced[operand] = Batch(own, batch.rows)

    def done(self, result: Found, sizes: str | None = None) -> PerRow:
        return PerRow(result=result, sliced=self.sliced, sizes=sizes)


def per_row(node: fx.Node, known: Mapping[fx.Node, Found], items: int) -> PerRow:
    """How a call that reads a batch of `items` does it row by row; MixesRows where it does not."""
    found = op_facts(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise MixesRows("it is no operator")
    if found.writes is None or (found.writes and not found.waits):
        raise MixesRows("it writes memory")
    call = RowCall(node, known)
    if found.random and call.arguments.get("dropout_p") != 0.0:
        raise MixesRows("its halves would draw other random numbers")
    if "batch_norm" in call.name and call.arguments.get("training", "no_training" not in call.name):
        raise MixesRows("its statistics are those of the whole batch")
    if torch.Tag.pointwise in node.target.tags or call.name in _POINTWISE:
        return _pointwise(call)
    rule = _RULES.get(call.name) if node.target.namespace in _SPACES else None
    if rule is None:
        raise MixesRows("nothing is known of what it does to rows")
    return rule(call, items)


_POINTWISE = frozenset(
    ("clone", "_to_copy", "alias", "detach", "where", "masked_fill", "copy", "zeros_like", "ones_like", "full_like")
)
_SPACES = ("aten", "_c10d_functional")


def _pointwise(call: RowCall) -> PerRow:
    ndim = len(call.shape)
    batched = [source for source in call.node.all_input_nodes if isinstance(call.known.get(source), Batch)]
    if not batched:
        raise MixesRows("it reads a list of results")
    first: Any = call.known[batched[0]]
    result = Batch(first.dim + ndim - batched[0].meta["val"].dim(), first.rows)
    for operand in call.node.all_input_nodes:
        call.aligned(operand, result, ndim)
    return call.done(result)


def _mm(call: RowCall, _: int) -> PerRow:
    names = {"addmm": ("mat1", "mat2"), "mm": ("self", "mat2"), "mv": ("self", "vec")}[call.name]
    left, right = map(call.batch, names)
    if left is not None and right is None and left.dim == 0:
        result = left
    elif right is not None and left is None and right.dim == 1:
        result = right
    else:
        raise MixesRows("it sums over the batch")
    if call.name == "addmm":
        call.aligned(call.arguments["self"], result, 2)
    return call.done(result)


def _bmm(call: RowCall, _: int) -> PerRow:
    names = ("batch1", "batch2") if call.name == "baddbmm" else ("self", "mat2")
    left, right = map(call.batch, names)
    own = next(one for one in (left, right, call.batch("self")) if one is not None)
    result = own
    if own.dim == 0:
        for name in names:
            call.aligned(call.arguments[name], own, 3)
    elif not ((own is left and right is None and own.dim == 1) or (own is right and left is None and own.dim == 2)):
        raise MixesRows("it sums over the batch")
    if call.name == "baddbmm":
        call.aligned(call.arguments["self"], result, 3)
    return call.done(result)


def _view(call: RowCall, items: int) -> PerRow:
    """The batch stays where it is the leading factor of what begins at the same element."""
    batch, source = call.needed("self"), call.arguments["self"]
    before = math.prod(source.meta["val"].shape[: batch.dim])
    size = next((name for name in ("size", "shape") if name in call.arguments), None)
    for dim, extent in enumerate(call.shape):
        if size is not None and math.prod(call.shape[:dim]) == before and extent and extent % items == 0:
            return call.done(Batch(dim, extent // items), size)
    raise MixesRows("it folds the batch into another dimension")


def _expand(call: RowCall, _: int) -> PerRow:
    batch, source = call.needed("self"), call.arguments["self"]
    return call.done(Batch(batch.dim + len(call.shape) - source.meta["val"].dim(), batch.rows), "size")


def _permuted(call: RowCall, _: int) -> PerRow:
    batch, ndim = call.needed("self"), len(call.shape)
    order = list(range(ndim))
    if call.name == "permute":
        order = [dim % ndim for dim in call.arguments["dims"]]
    elif ndim > 1:
        one, other = (0, 1) if call.name == "t" else (call.arguments[name] % ndim for name in ("dim0", "dim1"))
        order[one], order[other] = order[other], order[one]
    return call.done(Batch(order.index(batch.dim), batch.rows))


def _unsqueeze(call: RowCall, _: int) -> PerRow:
    batch, dim = call.needed("self"), call.arguments["dim"] % len(call.shape)
    return call.done(Batch(batch.dim + (dim <= batch.dim), batch.rows))


def _squeeze(call: RowCall, _: int) -> PerRow:
    batch, source = call.needed("self"), call.arguments["self"].meta["val"]
    given = call.arguments.get("dim", range(source.dim()))
    dims = {dim % source.dim() for dim in ((given,) if isinstance(given, int) else given)}
    gone = sum(dim < batch.dim and source.shape[dim] == 1 for dim in dims)
    return call.done(Batch(batch.dim - gone, batch.rows))


def _other_dim(call: RowCall, _: int) -> PerRow:
    """Works along a dimension that stays, or is taken apart; the batch must be along another."""
    batch = call.needed("self")
    source = call.arguments["self"].meta["val"]
    dim = call.arguments.get("dim", -1)
    if dim is None or dim % source.dim() == batch.dim:
        raise MixesRows("it works along the batch")
    call.only("self")
    if call.name in ("select", "unbind"):
        batch = Batch(batch.dim - (dim % source.dim() < batch.dim), batch.rows)
    value = call.node.meta["val"]
    return call.done((batch,) * len(value) if isinstance(value, (list, tuple)) else batch)


def _reduced(call: RowCall, _: int) -> PerRow:
    batch, source = call.needed("self"), call.arguments["self"].meta["val"]
    given = call.arguments.get("dim")
    dims = {dim % source.dim() for dim in ((given,) if isinstance(given, int) else given or ())}
    if not dims or batch.dim in dims:
        raise MixesRows("it reduces the batch")
    gone = 0 if call.arguments.get("keepdim") else sum(dim < batch.dim for dim in dims)
    result, value = Batch(batch.dim - gone, batch.rows), call.node.meta["val"]
    return call.done((result,) * len(value) if isinstance(value, (list, tuple)) else result)


def _joined(call: RowCall, _: int) -> PerRow:
    """cat and stack of values that all have the batch, or all rows, in the same place."""
    parts = call.arguments["tensors"]
    found = next(call.known[part] for part in parts if part in call.known)
    if not isinstance(found, Batch):
        raise MixesRows("it reads a list of results")
    ndim = parts[0].meta["val"].dim()
    dim = call.arguments["dim"] % (ndim + (call.name == "stack"))
    if call.name == "cat" and dim == found.dim:
        raise MixesRows("it works along the batch")
    for part in parts:
        if part.meta["val"].dim() != ndim:
            raise MixesRows("it puts together what has other dimensions")
        call.aligned(part, found, ndim)
    return call.done(Batch(found.dim + (call.name == "stack" and dim <= found.dim), found.rows))


def _along(call: RowCall, _: int) -> PerRow:
    """gather and scatter: all operands have the same rows, and places are looked up along another dimension."""
    given = (call.arguments.get(name) for name in ("self", "index", "src"))
    operands = [one for one in given if isinstance(one, fx.Node)]
    found = next(call.known[one] for one in operands if one in call.known)
    ndim = operands[0].meta["val"].dim()
    if not isinstance(found, Batch) or call.arguments["dim"] % ndim == found.dim:
        raise MixesRows("it looks up other rows of the batch")
    for operand in operands:
        if operand.meta["val"].shape[found.dim] != operands[0].meta["val"].shape[found.dim]:
            raise MixesRows("its operands have other rows")
        call.aligned(operand, found, ndim)
    return call.done(found)


def _embedding(call: RowCall, _: int) -> PerRow:
    call.only("indices")
    return call.done(call.needed("indices"))


def _normed(call: RowCall, _: int) -> PerRow:
    """layer_norm and rms_norm: the last dimensions together, the others by themselves."""
    batch, source = call.needed("input"), call.arguments["input"].meta["val"]
    call.only("input")
    if batch.dim >= source.dim() - len(call.arguments["normalized_shape"]):
        raise MixesRows("it normalises over the batch")
    return call.done((batch,) * len(call.node.meta["val"]))


def _images(call: RowCall, _: int) -> PerRow:
    """Convolutions and poolings: images are the first of the dimensions, parameters are for all of them."""
    name = "input" if "input" in call.arguments else "self"
    batch, value = call.needed(name), call.node.meta["val"]
    call.only(name)
    if batch.dim or call.arguments[name].meta["val"].dim() < 3 + ("2d" in call.name or call.name == "convolution"):
        raise MixesRows("its batch is not the first of its dimensions")
    if "batch_norm" in call.name:  # statistics that nobody has taken
        return call.done((batch, None, None))
    return call.done((batch,) * len(value) if isinstance(value, (list, tuple)) else batch)


def _attention(call: RowCall, _: int) -> PerRow:
    batch, value = call.needed("query"), call.node.meta["val"]
    if batch.dim or call.arguments.get("dropout_p"):
        raise MixesRows("its batch is not the first of its dimensions, or it drops out")
    for name in ("query", "key", "value"):
        call.aligned(call.arguments[name], batch, 4)
    call.aligned(call.arguments.get("attn_mask"), batch, 4)
    return call.done((batch,) * len(value) if isinstance(value, (list, tuple)) else batch)


def _any_dim(call: RowCall, _: int) -> PerRow:
    """Of every element by itself: all ranks' sum of it, or the same when it is there."""
    return call.done(call.needed(next(iter(call.arguments))))


def _not_first(call: RowCall, _: int) -> PerRow:
    """Collectives that gather or scatter along the first dimension."""
    batch = call.needed("input")
    if batch.dim == 0:
        raise MixesRows("it communicates along the batch")
    return call.done(batch)


Rule = Callable[[RowCall, int], PerRow]
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", "mv"), _mm),
    **dict.fromkeys(("bmm", "baddbmm"), _bmm),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "_reshape_alias"), _view),
    "expand": _expand,
    **dict.fromkeys(("permute", "transpose", "t"), _permuted),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(
        ("select", "slice", "split", "split_with_sizes", "chunk", "unbind", "narrow", "softmax", "_softmax",
         "_safe_softmax", "_log_softmax", "cumsum", "cumprod", "sort", "topk", "index_select"), _other_dim),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "any", "all", "prod", "var", "std", "var_mean", "argmax", "argmin", "max",
         "min", "logsumexp"), _reduced),
    **dict.fromkeys(("cat", "stack"), _joined),
    **dict.fromkeys(("gather", "scatter"), _along),
    "embedding": _embedding,
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _normed),
    **dict.fromkeys(
        ("convolution", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "native_batch_norm",
         "_native_batch_norm_legit_no_training"), _images),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention",
         "_scaled_dot_product_attention_math"), _attention),
    **dict.fromkeys(("all_reduce", "wait_tensor"), _any_dim),
    **dict.fromkeys(("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"), _not_first),
}  # fmt: skip
"""{operator: what it does to rows}; of one and the same name, all overloads."""

_EXACT = frozenset((
    "add", "sub", "mul", "div", "neg", "abs", "relu", "sqrt", "maximum", "minimum", "clamp", "where", "masked_fill",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "bitwise_not", "floor", "ceil", "round", "trunc", "clone", "_to_copy", "alias", "detach", "copy", "zeros_like",
    "ones_like", "full_like", "view", "reshape", "_unsafe_view", "_reshape_alias", "expand", "permute", "transpose",
    "t", "unsqueeze", "squeeze", "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "narrow", "cat",
    "stack", "gather", "scatter", "embedding", "index_select", "sort", "topk", "amax", "amin", "max", "min", "any",
    "all", "argmax", "argmin", "wait_tensor",
))  # fmt: skip
"""Operators that move bits, compare, or compute what IEEE 754 rounds in one way only. Sums and functions such as `exp`
may go another way through a vector where there are fewer rows, products may take other blocks."""


def keeps_bits(node: fx.Node) -> bool:
    """Whether fewer rows at a time certainly give the same bits."""
    if is_getitem(node):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    fused = arguments_of(node).get("alpha", 1) != 1  # of a multiple that is added, one rounding or two
    return str(node.target._opname) in _EXACT and not fused
