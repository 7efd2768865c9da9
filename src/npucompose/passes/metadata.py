"""What a new node takes over from the one it stands for, and its fake value: its form, and which dtypes hold others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from npucompose.graphs.effects import tensors_in
from npucompose.graphs.matching import value_of

aten = torch.ops.aten

KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "seq_nr", "from_node", "custom")


def inherited(node: fx.Node) -> dict[str, Any]:
    """The origin of a node: the model's line, its module, what autograd and the partitioner wrote down."""
    return {key: node.meta[key] for key in KEPT if key in node.meta}


def fake_mode_of(node: fx.Node) -> Any:
    """The mode whose fake tensors the graph holds; None where its values are not fake."""
    tensors = (tensor for near in (node, *node.all_input_nodes) for tensor in tensors_in(near.meta.get("val")))
    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)


def fake_result(target: Any, args: Any, kwargs: Any, mode: Any) -> Any:
    """What `target` gives for the fake values of its arguments."""
    if args:
        quick = _move_of(target, value_of(args[0]), args, kwargs)
        if quick is not None:
            return quick
    with mode or nullcontext(), torch.no_grad():
        return target(*map_arg(args, value_of), **map_arg(kwargs, value_of))


def call_before(
    before: fx.Node, target: Any, args: Any, kwargs: Any, *, origin: fx.Node | None = None, value: Any = None
) -> fx.Node:
    """A new call in front of `before`, with the origin of `origin` or of `before`, and its fake value."""
    like = before if origin is None else origin
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, tuple(args), kwargs)
    made.meta.update(inherited(like))
    made.meta["val"] = fake_result(target, args, kwargs, fake_mode_of(like)) if value is None else value
    return made


def fake_like(
    model: Any,
    shape: Sequence[Any],
    dtype: torch.dtype,
    *,
    strides: Sequence[Any] | None = None,
    offset: int = 0,
    laid_down: bool = False,
) -> Any:
    """A fake tensor beside `model` without asking an operator: its strides, those given, or dense in order.

    `offset` elements of its memory lie in front of it.

    None where an element-wise operator would choose other strides than those of a dense input.
    """
    if laid_down:
        strides = torch.empty(shape, device="meta").stride() if _all_ints(shape) else None
    elif strides is None:
        strides = model.stride() if _is_dense(model) else None
    if strides is None:
        return None
    if isinstance(model, FakeTensor) and _all_ints((*shape, *strides)):
        with unset_fake_temporarily():  # where AOTAutograd is at work, its mode would make a fake tensor of it
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            if offset:
                reach = meta.untyped_storage().nbytes() // meta.itemsize
                meta = torch.empty(offset + reach, dtype=dtype, device="meta").as_strided(shape, strides, offset)
        return FakeTensor(model.fake_mode, meta, model.device)
    mode = model.fake_mode if isinstance(model, FakeTensor) else nullcontext()
    with mode:
        return torch.empty_strided(shape, strides, dtype=dtype, device=model.device)


def _move_of(target: Any, source: Any, args: Any, kwargs: Any) -> Any:
    """The value of a permute, a copy laid down in order or a cast, which needs no operator to be known; else None."""
    if not isinstance(source, FakeTensor) or not _all_ints(source.shape):
        return None
    if target is aten.permute.default:
        order = [dim % source.dim() for dim in args[1]]
        shape, strides = [source.shape[d] for d in order], [source.stride(d) for d in order]
        return fake_like(source, shape, source.dtype, strides=strides)
    if target is aten.clone.default and kwargs.get("memory_format") is torch.contiguous_format:
        return fake_like(source, source.shape, source.dtype, laid_down=True)
    if target is aten._to_copy.default and set(kwargs) == {"dtype"}:
        return fake_like(source, source.shape, kwargs["dtype"])
    return None


def _all_ints(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _is_dense(tensor: Any) -> bool:
    """Every element has its own place and no place is empty: what element-wise operators keep the strides of.

    A dimension of one element has no stride that means anything, and the operators choose one.
    """
    return (
        _all_ints(tensor.shape)
        and 1 not in tensor.shape
        and bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))
    )


def same_form(a: Any, b: Any) -> bool:
    """Two dense tensors of the same shape, strides, offset, dtype, device, conjugate and negative bit, for certain.

    The stride of a dimension of one element means nothing, and operators choose it freely: it is not compared.
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if (a.dtype, a.device, a.layout, a.dim()) != (b.dtype, b.device, b.layout, b.dim()):
        return False
    if a.layout is not torch.strided or a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return False
    if not all(_equal(mine, other) for mine, other in zip(a.shape, b.shape, strict=True)):
        return False
    strides = zip(a.shape, a.stride(), b.stride(), strict=True)
    return _equal(a.storage_offset(), b.storage_offset()) and all(
        _equal(size, 1) or _equal(mine, other) for size, mine, other in strides
    )


def _equal(a: Any, b: Any) -> bool:
    return a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b)


def loses_nothing(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Every value of `narrow` is one of `wide`: float16 in float32, int32 in float64, not int64 in float64."""
    if narrow == wide or narrow is torch.bool:
        return True
    if wide.is_complex:
        return loses_nothing(narrow.to_real() if narrow.is_complex else narrow, wide.to_real())
    if is_integer(narrow) and is_integer(wide):
        small, large = torch.iinfo(narrow), torch.iinfo(wide)
        return large.min <= small.min and small.max <= large.max
    if not wide.is_floating_point or narrow.is_complex:
        return False
    given = torch.finfo(wide)
    if is_integer(narrow):
        return torch.iinfo(narrow).max <= 2 / given.eps  # up to there it holds every integer
    small = torch.finfo(narrow)
    return small.eps >= given.eps and small.max <= given.max and small.tiny >= given.tiny


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
