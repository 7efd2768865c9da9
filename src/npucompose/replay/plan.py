"""A captured graph as values: pieces of memory, tensors laid over them, and a flat list of kernel calls.

Knows how a plan is written down, not how it was recorded (`capture`) or how it is run (`executor`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeGuard

import torch
from attrs import Factory, define, field, frozen
from torch._ops import OpOverload

from npucompose.replay.traits import traits_of
from npucompose.schema.streams import DEFAULT_STREAM

RootKind = Literal["input", "attribute", "constant", "pool", "output", "fresh"]


@frozen(kw_only=True, cache_hash=True)
class Layout:
    """How a tensor lies over a storage: `Layout.of(t).over(t.untyped_storage())` is `t` again, without its history."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """In elements of `dtype`, from the begin of the storage."""
    conj: bool = False
    neg: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        offset = tensor.storage_offset()
        return _layout(tensor.dtype, tensor.shape, tensor.stride(), offset, tensor.is_conj(), tensor.is_neg())

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        bare = torch.empty(0, dtype=self.dtype, device=storage.device)
        bare.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload]
        if self.conj:
            bare = torch.conj(bare)
        return bare._neg_view() if self.neg else bare

    def moved(self, elements: int) -> Layout:
        return Layout(
            dtype=self.dtype,
            shape=self.shape,
            stride=self.stride,
            offset=self.offset + elements,
            conj=self.conj,
            neg=self.neg,
        )

    def collapsed(self) -> Layout:
        """One element along each expanded (stride 0) dimension: the same memory, each element once."""
        shape = tuple(1 if step == 0 else size for size, step in zip(self.shape, self.stride, strict=True))
        return Layout(
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


@functools.lru_cache(maxsize=4096)
def _layout(
    dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, conj: bool, neg: bool
) -> Layout:
    """One object for equal layouts: a model has thousands of tensors of few layouts, and a capture compares them."""
    return Layout(dtype=dtype, shape=tuple(shape), stride=tuple(stride), offset=offset, conj=conj, neg=neg)


@define(eq=False, kw_only=True)
class Root:
    """One storage: everything that aliases it has the same root. `written` says whether a step changes it."""

    kind: RootKind
    nbytes: int
    tensor: torch.Tensor | None = None
    """Constants and attributes: what lies there. Inputs: a plain alias of what was given at capture."""
    index: int = -1
    """Of an input: which one."""
    written: bool = False
    first: int = -1
    last: int = -1
    """The first and the last step that touches it."""


@frozen(eq=False)
class Slot:
    """A tensor whose place is fixed: kernels read it and write it there on every replay."""

    root: Root
    layout: Layout


@frozen
class Register:
    """A value that a kernel makes anew on every replay (`fresh`); `root` keeps what it may alias alive."""

    number: int


Operand = Any
"""A Slot, a Register, a plain value, or a list of these: what stands in `Step.args`."""


@frozen(kw_only=True, eq=False)
class Step:
    """One kernel call; `args` in the order of the schema, all of them, `results` the registers it fills."""

    op: OpOverload
    args: tuple[Operand, ...]
    results: tuple[Register | tuple[Register, ...] | None, ...] = ()
    name: str = ""
    """Of the FX node that it was; "" for what the recording adds by itself."""
    stream: str = DEFAULT_STREAM
    after: tuple[Step, ...] = ()
    """Steps that the graph wants done before, beside those whose memory this one touches."""
    operands: tuple[Slot | Register, ...] = field(
        init=False, default=Factory(lambda step: tuple(leaves(step.args)), takes_self=True)
    )
    """What `args` touch."""
    made: tuple[Slot | Register, ...] = field(
        init=False, default=Factory(lambda step: tuple(leaves(step.results)) if step.results else (), takes_self=True)
    )
    """What `results` fill."""

    def touched(self) -> Iterator[tuple[Slot | Register, bool]]:
        """(operand or result, whether it is written)."""
        written = traits_of(self.op).written
        for position, value in enumerate(self.args):
            yield from ((leaf, position in written) for leaf in leaves((value,)))
        yield from ((leaf, True) for leaf in self.made)


@frozen(kw_only=True)
class Buffer:
    """An output in a static buffer (or a fresh copy of it)."""

    slot: Slot


@frozen(kw_only=True)
class SameAsInput:
    """An output that is an input itself: the caller's own tensor goes back."""

    index: int


@frozen(kw_only=True, eq=False)
class ViewOfInput:
    """An output that shares memory with an input: a view of the caller's tensor; offset from the input's begin."""

    index: int
    layout: Layout


@frozen(kw_only=True, eq=False)
class Literally:
    """An output that is a number, None or a tensor that the graph holds."""

    value: Any


@frozen(kw_only=True)
class SameAsOutput:
    """An output that is the same object as an earlier one."""

    index: int


Output = Buffer | SameAsInput | ViewOfInput | Literally | SameAsOutput


@frozen(kw_only=True, eq=False)
class Plan:
    """What `recorder.record` found; `roots` are those of `steps` and `outputs`, lifetimes filled in."""

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    roots: tuple[Root, ...]
    pinned: frozenset[int]
    """Inputs that must come from the address they had at capture, for a reason that the graph gives."""
    from_zero: frozenset[int]
    """Inputs that must lie at the begin of their storage, as they did at capture: as_strided counts from there."""
    register_roots: dict[int, Root]
    views_resolved: int
    constants: int
    unlike_alone: str = ""
    """The first operator that gives other bits on one thread; looked at only where streams are asked for."""

    def root_of(self, operand: Slot | Register) -> Root:
        return operand.root if isinstance(operand, Slot) else self.register_roots[operand.number]

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the steps, in order of appearance, the default one first."""
        return tuple(dict.fromkeys((DEFAULT_STREAM, *(step.stream for step in self.steps))))

    def slots(self) -> list[Slot]:
        found = dict.fromkeys(o for step in self.steps for o in step.operands if isinstance(o, Slot))
        found |= dict.fromkeys(output.slot for output in self.outputs if isinstance(output, Buffer))
        return list(found)


CONTAINERS = (tuple, list, dict, slice)
PLAIN = frozenset({int, bool, type(None), str, torch.dtype, torch.device, torch.layout, torch.memory_format})
"""Types of values that are all they look like: neither a tensor nor anything that stands for one, and x == y says that
x may stand for y (0.0 may not stand for -0.0)."""


def is_plain(container: Any) -> bool:
    """A list or tuple of whole numbers, names and the like."""
    return isinstance(container, (list, tuple)) and PLAIN.issuperset(map(type, container))


def leaves(parts: Iterable[Any]) -> list[Slot | Register]:
    """The slots and registers among `parts`, and in the lists and tuples among them."""
    found: list[Slot | Register] = []
    for part in parts:
        if isinstance(part, (Slot, Register)):
            found.append(part)
        elif isinstance(part, (tuple, list)):
            found += leaves(part)
    return found


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


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of their own, laid out alike, with all that lies around them."""
    return Layout.of(tensor).over(tensor.untyped_storage().clone())


def lifetimes(steps: Sequence[Step], register_roots: dict[int, Root]) -> list[Root]:
    """Fill in `first` and `last` of every root that `steps` touch (-1 before); these roots in order of first use."""
    used: list[Root] = []
    for position, step in enumerate(steps):
        for operand in (*step.operands, *step.made):
            root = operand.root if isinstance(operand, Slot) else register_roots[operand.number]
            if root.first < 0:
                used.append(root)
                root.first = position
            root.last = position
    return used


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


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


def dying_registers(steps: Sequence[Step]) -> list[list[int]]:
    """For each step, the registers that nobody reads after it: their memory goes back at once, as in eager."""
    last = {
        operand.number: position
        for position, step in enumerate(steps)
        for operand in (*step.operands, *step.made)
        if isinstance(operand, Register)
    }
    dying: list[list[int]] = [[] for _ in steps]
    for number, position in last.items():
        dying[position].append(number)
    return dying


def lent_inputs(steps: Sequence[Step]) -> list[frozenset[int]]:
    """For each step the inputs that it may keep: those that no step before has written.

    What lies in an input that was written need not have lain there in eager: where it did not, whoever kept it would
    see what the caller does with the input later.
    """
    lent: list[frozenset[int]] = []
    written: set[int] = set()
    for step in steps:
        given = {operand.root.index for operand in step.operands if _is_input(operand)}
        lent.append(frozenset() if traits_of(step.op).may_be_tried else frozenset(given - written))
        written |= {operand.root.index for operand, writes in step.touched() if writes and _is_input(operand)}
    return lent


def _is_input(operand: Slot | Register) -> TypeGuard[Slot]:
    return isinstance(operand, Slot) and operand.root.kind == "input"
