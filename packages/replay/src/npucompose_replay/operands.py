"""What kernels are called with: how tensors lie over memory, what operators declare, values nested in arguments.

A schema and its tags are read once for each operator: a capture asks for every node of a graph.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from attrs import frozen
from torch._ops import OpOverload

from npucompose.graphs.effects import facts
from npucompose.graphs.recordable import RESIZING, is_unsafe

aten = torch.ops.aten

_UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_OF_TORCH = frozenset({"aten", "prims", "mkldnn", "mkl"})
_PLACED: Mapping[str, Literal["computed", "copied"]] = {
    "mkl": "computed",
    "mkldnn": "copied",
}
"""By a namespace."""
_MARKERS = frozenset({"scope_enter", "scope_exit", "record", "wait"})


@frozen(kw_only=True, eq=False)
class Traits:
    op: OpOverload
    of_torch: bool
    """One of torch's own, whose tags can be believed. Operators of others may count, read clocks or talk."""
    may_be_tried: bool
    """A second call, to compare two ways of computing, does no harm: of torch's operators and of our references."""
    may_keep: bool
    """It may keep what it is given. A collective does, but only until it is waited for: see `communicates`."""
    communicates: bool
    """A collective, or a wait for one: torch knows the one by the storage of the other's result, so that both must see
    the tensors that the recording has, and no copies."""
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    tensors: tuple[int, ...]
    """Arguments that are declared as one tensor, for which a number may stand."""
    written: tuple[int, ...]
    """Arguments that it writes."""
    mutable: bool
    resizes: bool
    """It moves a tensor to other memory."""
    draws: bool
    """It is tagged to draw random numbers."""
    takes_generator: bool
    uninitialised: bool
    """`aten.empty` and its like: memory without a value."""
    is_as_strided: bool
    marks: bool
    """A marker of a stream plan, not a kernel."""
    may_be_constant: bool
    """Whether equal arguments give equal results."""
    is_plain: bool
    """There is nothing to look at before it runs: it writes, draws from and refuses nothing."""
    may_depend_on_data: bool
    """A tag says that its result's shape, or a number, may depend on data, or that it must run each time; or it writes
    what it does not declare."""
    placed: Literal["computed", "copied"] | None
    """A product or convolution of a library's, of which torch has no form with a buffer: whether a replay can have the
    library compute into one all the same (`executor/src/packed.h`), or may have to copy (`executor/src/pointwise.h`);
    None for every other operator."""
    out: int | None
    """The one argument that a pointwise kernel with an in-place form writes its result into; None for every other."""

    def in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in the order of the schema, defaults filled in."""
        if not kwargs:
            return (*args, *self.defaults[len(args) :])
        given = len(args)
        rest = zip(self.names[given:], self.defaults[given:], strict=True)
        return (*args, *(kwargs.get(name, default) for name, default in rest))


@functools.cache
def traits_of(op: OpOverload) -> Traits:
    schema, declared = op._schema, op._schema.arguments
    name = schema.name.split("::")[1]
    tags = op.tags
    of_torch, mutable = op.namespace in _OF_TORCH, schema.is_mutable
    found = facts(op)
    communicates = found.collective or found.waits
    may_be_tried = of_torch or op.namespace in ("npu", "air")
    draws = torch.Tag.nondeterministic_seeded in tags
    uninitialised = op.namespace == "aten" and name in _UNINITIALISED
    takes_generator = any("Generator" in str(a.type) for a in declared)
    may_depend_on_data = (
        torch.Tag.data_dependent_output in tags
        or torch.Tag.dynamic_output_shape in tags
        or op is aten.native_batch_norm.default
        or is_unsafe(op)
    )
    return Traits(
        op=op,
        of_torch=of_torch,
        may_be_tried=may_be_tried,
        may_keep=not (may_be_tried or communicates),
        communicates=communicates,
        names=tuple(a.name for a in declared),
        defaults=tuple(a.default_value for a in declared),
        tensors=tuple(i for i, a in enumerate(declared) if str(a.type) == "Tensor"),
        written=tuple(index for index, _ in found.writes or ()),
        mutable=mutable,
        resizes=mutable and name in RESIZING,
        draws=draws,
        takes_generator=takes_generator,
        uninitialised=uninitialised,
        is_as_strided=schema.name.startswith("aten::as_strided"),
        marks=op.namespace == "air" and name in _MARKERS,
        may_be_constant=of_torch and not (mutable or draws or uninitialised),
        is_plain=not (mutable or communicates or takes_generator or may_depend_on_data),
        may_depend_on_data=may_depend_on_data,
        placed=_PLACED.get(op.namespace) if not mutable else None,
        out=_pointwise_out(op),
    )


def _pointwise_out(op: OpOverload) -> int | None:
    outs = [i for i, argument in enumerate(op._schema.arguments) if argument.is_out]
    if len(outs) != 1 or torch.Tag.pointwise not in op.tags:
        return None
    namespace, _, name = op._schema.name.partition("::")
    return outs[0] if hasattr(getattr(torch.ops, namespace), f"{name}_") else None


# -- how tensors lie


@frozen(kw_only=True, cache_hash=True)
class StorageLayout:
    """How a tensor lies over a storage: `layout_of(t).over(t.untyped_storage())` is `t` again, without its history."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """In elements of `dtype`, from the begin of the storage."""
    conj: bool = False
    neg: bool = False

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        bare = torch.empty(0, dtype=self.dtype, device=storage.device)
        bare.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload]
        if self.conj:
            bare = torch.conj(bare)
        return bare._neg_view() if self.neg else bare

    def moved(self, elements: int) -> StorageLayout:
        return StorageLayout(
            dtype=self.dtype,
            shape=self.shape,
            stride=self.stride,
            offset=self.offset + elements,
            conj=self.conj,
            neg=self.neg,
        )

    def collapsed(self) -> StorageLayout:
        """One element along each expanded (stride 0) dimension: the same memory, each element once."""
        shape = tuple(1 if step == 0 else size for size, step in zip(self.shape, self.stride, strict=True))
        return StorageLayout(
            dtype=self.dtype, shape=shape, stride=self.stride, offset=self.offset, conj=self.conj, neg=self.neg
        )

    def span(self) -> tuple[int, int]:
        """First byte and the one after the last, counted from the begin of the storage; (0, 0) when empty."""
        if 0 in self.shape:
            return 0, 0
        last = self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.offset * self.dtype.itemsize, (last + 1) * self.dtype.itemsize

    def overlaps_itself(self) -> bool:
        """Whether two indices may name the same element (a conservative test, exact for what views make)."""
        reached = 0
        for step, size in sorted(zip(self.stride, self.shape, strict=True)):
            if size == 0:
                return False
            if size == 1:
                continue
            if step <= reached:
                return True
            reached += (size - 1) * step
        return False

    def __str__(self) -> str:
        name = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return name if self.stride == _row_major(self.shape) else f"{name}{{{','.join(map(str, self.stride))}}}"


def layout_of(tensor: torch.Tensor) -> StorageLayout:
    """How it lies over its storage."""
    offset = tensor.storage_offset()
    return _layout(tensor.dtype, tensor.shape, tensor.stride(), offset, tensor.is_conj(), tensor.is_neg())


@functools.lru_cache(maxsize=4096)
def _layout(
    dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, conj: bool, neg: bool
) -> StorageLayout:
    """One object for equal layouts: a model has thousands of tensors of few layouts, and a capture compares them."""
    return StorageLayout(dtype=dtype, shape=tuple(shape), stride=tuple(stride), offset=offset, conj=conj, neg=neg)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on meta that lies like this one."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    made = torch.conj(made) if tensor.is_conj() else made
    return made._neg_view() if tensor.is_neg() else made


def lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal type, sizes, strides and lazy bits, wherever they are; the stride of a single element means nothing."""
    same = a.dtype == b.dtype and a.shape == b.shape and a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg()
    return same and (
        not a.numel() or all(n < 2 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))
    )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, laid out alike, with all that lies around them."""
    return layout_of(tensor).over(tensor.untyped_storage().clone())


def memory_at(address: int, nbytes: int) -> memoryview:
    """Memory of somebody else's, to be read and written as long as it is there."""
    return memoryview((ctypes.c_char * nbytes).from_address(address) if nbytes else bytearray()).cast("B")


def over(address: int, nbytes: int) -> torch.UntypedStorage:
    """A storage object over memory that somebody else keeps alive."""
    if not nbytes:
        return torch.UntypedStorage(0)
    return _construct(address, _CPU, nbytes)


_construct: Any = torch._C._construct_storage_from_data_pointer


_CPU = torch.device("cpu")


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor over the same memory, with a storage object of its own: no history, no subclass, no owner.

    A storage of its own tells two inputs apart that are slices of one buffer. It does not keep the memory alive.
    """
    source = tensor.untyped_storage()
    storage = over(source.data_ptr(), source.nbytes())
    return layout_of(tensor).over(storage)


def relative(tensor: torch.Tensor, begin: torch.Tensor) -> StorageLayout:
    """The layout of `tensor`, its offset counted from the first element of `begin`, which shares its storage."""
    return layout_of(tensor).moved(-_begin(begin, tensor.dtype))


def laid_over(tensor: torch.Tensor, layout: StorageLayout) -> torch.Tensor:
    """The inverse of `relative`, without autograd history: `laid_over(x, relative(x.t(), x))` is `x.t()`."""
    given = tensor.detach()
    lazy = layout.conj or layout.neg or given.is_conj() or given.is_neg()
    if layout.dtype == given.dtype and not lazy:
        return given.as_strided(layout.shape, layout.stride, given.storage_offset() + layout.offset)
    return layout.moved(_begin(given, layout.dtype)).over(given.untyped_storage())


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """First address and the one after the last byte; (0, 0) when empty."""
    low, high = layout_of(tensor).span()
    base = tensor.untyped_storage().data_ptr()
    return (base + low, base + high) if high > low else (0, 0)


def sharing(inputs: Sequence[Any]) -> frozenset[int]:
    """Indices of the tensors whose memory overlaps another input's."""
    spans = sorted((*span_of(t), i) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and t.numel())
    found: set[int] = set()
    reach, reached_by = 0, -1
    for low, high, i in spans:
        if low < reach:
            found |= {i, reached_by}
        if high > reach:
            reach, reached_by = high, i
    return frozenset(found)


def overlaps_written(inputs: Sequence[Any], written: frozenset[int], still: frozenset[int]) -> bool:
    """Whether one of the `written` tensors shares memory with another input; of those that stand `still`, only what is
    written is looked at."""
    if not written:
        return False
    spans = [
        (*span_of(value), i)
        for i, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and (i in written or i not in still) and _has_span(value)
    ]
    return any(
        i in written and i != j and low < end and begin < high for low, high, i in spans for begin, end, j in spans
    )


def _has_span(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and tensor.numel() > 0


def _begin(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The offset of `tensor` in its storage, counted in elements of `dtype`."""
    return tensor.storage_offset() * tensor.element_size() // dtype.itemsize


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]


# -- nested arguments


CONTAINERS = (tuple, list, dict, slice)


PLAIN = frozenset({int, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of values that are all they look like: neither a tensor nor anything that stands for one, and x == y says that
x may stand for y (0.0 may not stand for -0.0)."""


def is_plain(container: Any) -> bool:
    """A list or tuple of whole numbers, names and the like."""
    return isinstance(container, (list, tuple)) and PLAIN.issuperset(map(type, container))


def mapped(change: Callable[[Any], Any], structure: Any) -> Any:
    """`change` on every leaf of nested tuples, lists, dicts and slices; containers keep their kind."""
    if isinstance(structure, (tuple, list)):
        # A call for each container, not for each leaf: a capture does this a few times for every node.
        parts = [mapped(change, part) if isinstance(part, CONTAINERS) else change(part) for part in structure]
        return parts if isinstance(structure, list) else tuple(parts)
    if isinstance(structure, dict):
        return {key: mapped(change, part) for key, part in structure.items()}
    if isinstance(structure, slice):
        return slice(mapped(change, structure.start), mapped(change, structure.stop), mapped(change, structure.step))
    return change(structure)


def flat(structure: Any) -> list[Any]:
    if not isinstance(structure, (tuple, list, dict)):
        return [structure]
    if isinstance(structure, dict):
        return flat(list(structure.values()))
    leaves: list[Any] = []
    for part in structure:
        if isinstance(part, (tuple, list, dict)):
            leaves += flat(part)
        else:
            leaves.append(part)
    return leaves
