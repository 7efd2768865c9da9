"""Which kernel writes a result into a given buffer, and whether it really gives the same bytes.

torch has two kinds of `.out` overloads: hand-written ones write into the buffer; those with Tag.generated allocate,
compute and copy, which costs more than the functional call. Only the former are taken, and only after a trial.

Streams run each kernel on one thread: whether it gives the same bits there is tried, too. What kernels of a capture
write is remembered, to be undone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch._ops import OpOverload

from npucompose.bits import same_bytes
from npucompose_replay.operands import bytes_of, copy_of, flat, layout_of, mapped, traits_of

aten = torch.ops.aten

_POISON = 0xFF
"""As a float it is NaN: a kernel that reads its buffer before it writes cannot hide."""


@frozen
class Arg:
    """In an OutCall: argument `index` of the functional call; with `flat`, all its dimensions in one."""

    index: int
    flat: bool = False


@frozen
class Out:
    """In an OutCall: the buffer of result `index`; with `rows`, all its dimensions but the last flattened into one."""

    index: int
    rows: bool = False


@frozen(kw_only=True)
class OutCall:
    """`op(*args)` with Arg and Out where tensors and buffers go; args in the order of the schema."""

    op: OpOverload
    args: tuple[Any, ...]
    flattened: int | None = None
    """The argument of the functional call that is taken `flat`; None where all are taken as they are."""
    in_order: bool = False
    """`args` are the arguments of the functional call, then the buffers."""


def into_buffers(op: OpOverload, args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> OutCall | None:
    """The call that computes `op(*args)` into buffers laid out like `results`, the same bytes, or None.

    `args` hold real tensors, and every argument in the order of the schema.
    """
    call = _into_buffers(op, args, results) if all(map(fills_its_storage, results)) else None
    return call if call is not None and _gives_the_same_bytes(call, args, results) else None


def _into_buffers(op: OpOverload, args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> OutCall | None:
    if op is aten.relu.default:
        return OutCall(op=aten.clamp_min.out, args=(Arg(0), 0, Out(0)))
    if op in (aten.clone.default, aten._to_copy.default):
        return OutCall(op=aten.copy_.default, args=(Out(0), Arg(0), False))
    if op is aten.embedding.default:
        return _embedding(args, results[0])
    overload = _hand_written_out(op)
    if overload is None:
        return None
    return OutCall(op=overload, args=(*map(Arg, range(len(args))), *map(Out, range(len(results)))), in_order=True)


def _gives_the_same_bytes(call: OutCall, args: tuple[Any, ...], results: Sequence[torch.Tensor]) -> bool:
    """Try `call` on poisoned buffers: same bytes as `results`, in the buffers given. Any complaint means no."""
    buffers = [_poisoned_like(result) for result in results]
    addresses = [buffer.data_ptr() for buffer in buffers]
    given = [_given(part, args, buffers) for part in call.args]
    declared = call.op._schema.arguments
    try:
        call.op(
            *(value for value, d in zip(given, declared, strict=True) if not d.kwarg_only),
            **{d.name: value for value, d in zip(given, declared, strict=True) if d.kwarg_only},
        )
    except Exception:  # noqa: BLE001 - whatever a kernel raises: the functional form, which did work, is used instead
        return False
    return all(
        buffer.data_ptr() == address and buffer.stride() == result.stride() and same_bytes(buffer, result)
        for buffer, address, result in zip(buffers, addresses, results, strict=True)
    )


def _given(part: Any, args: tuple[Any, ...], buffers: Sequence[torch.Tensor]) -> Any:
    if isinstance(part, Out):
        return rows_of(buffers[part.index]) if part.rows else buffers[part.index]
    if isinstance(part, Arg):
        return args[part.index].view(-1) if part.flat else args[part.index]
    return part


def rows_of(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.view(-1, buffer.shape[-1])


def _embedding(args: tuple[Any, ...], result: torch.Tensor) -> OutCall | None:
    weight, indices = args[0], args[1]
    if not indices.is_contiguous() or not result.is_contiguous() or weight.dim() != 2 or not result.numel():
        return None
    # Note [embedding is index_select]: ATen's CPU kernel is weight.index_select(0, indices.reshape(-1)).view(...); the
    # recorder lays the flat views over the same memory, so nothing is copied.
    return OutCall(op=aten.index_select.out, args=(Arg(0), 0, Arg(1, flat=True), Out(0, rows=True)), flattened=1)


@functools.cache
def _hand_written_out(op: OpOverload) -> OpOverload | None:
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    packet = op.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        if torch.Tag.generated in overload.tags or not any(a.is_out for a in arguments):
            continue
        if [(a.name, str(a.type)) for a in arguments if not a.is_out] != wanted:
            continue
        outs = [a for a in arguments if a.is_out]
        tensors_only = all(str(a.type) == "Tensor" for a in outs) and len(outs) == len(op._schema.returns)
        if tensors_only and tuple(arguments[-len(outs) :]) == tuple(outs):
            return overload
    return None


def fills_its_storage(tensor: torch.Tensor) -> bool:
    return (
        tensor.storage_offset() == 0
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def _poisoned_like(tensor: torch.Tensor) -> torch.Tensor:
    storage = torch.full((tensor.untyped_storage().nbytes(),), _POISON, dtype=torch.uint8).untyped_storage()
    bare = torch.empty(0, dtype=tensor.dtype)
    return bare.set_(storage, 0, tensor.shape, tensor.stride())  # type: ignore[call-overload]


Computes = Callable[[OpOverload, Sequence[Any], torch.Tensor], bool]
"""Of an operator, its arguments in the order of the schema and its result: whether a replay computes it into memory
that is given (`executor.native.computes`)."""
OneThread = Callable[[Callable[[], Any]], Any]
"""Calls what it is given with one intra-op thread."""


@define(eq=False)
class SingleThreadCheck:
    """Tries each operator once for each form of its arguments, on random numbers that lie as the real ones do."""

    one_thread: OneThread
    unlike: str = ""
    """The first operator that gave other bits, or that nobody may try, and which of the two."""
    _tried: set[str] = field(factory=set)
    _random: torch.Generator = field(factory=lambda: torch.Generator().manual_seed(0))

    def see(self, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Operators that draw are taken to do so on one thread anyway, as torch's do; collectives on none of ours."""
        traits = traits_of(op)
        if self.unlike or traits.draws or traits.communicates:
            return
        if not any(isinstance(a, torch.Tensor) for a in flat((args, kwargs))):
            return
        form = repr((op, mapped(_form, args), mapped(_form, kwargs)))
        if form in self._tried:
            return
        self._tried.add(form)
        if not traits.may_be_tried:
            self.unlike = (
                f"{op} is not torch's own and is not called a second time, to compare its bits on one thread with "
                f"those on {torch.get_num_threads()}"
            )
            return
        same = self._same(op, args, kwargs, self._made_up)
        if same is None:
            same = self._same(op, args, kwargs, _copied)
        if not same:
            self.unlike = f"{op} gives other bits on one thread than on {torch.get_num_threads()}"

    def _same(self, op: OpOverload, args: Any, kwargs: Any, change: Callable[[Any], Any]) -> bool | None:
        """None: the kernel does not take these values."""
        ours = mapped(change, args), mapped(change, kwargs)
        theirs = mapped(_copied, ours)
        try:
            together = op(*ours[0], **ours[1])
            apart = self.one_thread(lambda: op(*theirs[0], **theirs[1]))
        except Exception:  # noqa: BLE001 - made-up numbers may be none that the kernel takes: then the real ones decide
            return None
        pairs = zip(flat((together, ours)), flat((apart, theirs)), strict=True)
        return all(same_bytes(a, b) for a, b in pairs if isinstance(a, torch.Tensor))

    def _made_up(self, value: Any) -> Any:
        copy = _copied(value)
        if isinstance(copy, torch.Tensor) and copy.is_floating_point() and not layout_of(copy).overlaps_itself():
            copy.normal_(generator=self._random)
        return copy


def _copied(value: Any) -> Any:
    return copy_of(value) if isinstance(value, torch.Tensor) else value


def _form(value: Any) -> Any:
    return layout_of(value) if isinstance(value, torch.Tensor) else value


_BY_ELEMENTS = frozenset(
    {aten.scatter_.src, aten.scatter_.value, aten.scatter_add_.default, aten.scatter_reduce_.two},
)
"""`op(x, dim, index, …)` writes `x.gather(dim, index)` and no other element."""


_BY_ROWS = frozenset(
    {
        aten.index_copy_.default,
        aten.index_add_.default,
        aten.index_fill_.int_Scalar,
        aten.index_fill_.int_Tensor,
    }
)
"""`op(x, dim, index, …)` writes `x.index_select(dim, index)` and no other element."""


_FEW = 8
"""An element by its index takes as long as so many in a row."""


@define(eq=False)
class Undo:
    """`about_to_write(…)` and `about_to_draw(…)` before each change; `restore()` undoes all of them, the last first."""

    _changes: list[Callable[[], Any]] = field(factory=list)

    def about_to_write(self, place: torch.Tensor, op: OpOverload, args: Sequence[Any]) -> None:
        """`op(*args)` is going to write `place`. Where a few elements of it are named, only these are copied."""
        if not (args and args[0] is place and self._named_elements(place, op, args[1:3])):
            low, high = layout_of(place).span()
            whole = bytes_of(place.untyped_storage())[low:high]
            before = whole.clone()
            self._changes.append(lambda: whole.copy_(before))

    def about_to_draw(self, generator: torch.Generator) -> None:
        state = generator.get_state()
        self._changes.append(lambda: generator.set_state(state))

    def restore(self) -> None:
        while self._changes:
            self._changes.pop()()

    def _named_elements(self, place: torch.Tensor, op: OpOverload, named: Sequence[Any]) -> bool:
        """A cache of keys as long as the longest prompt gets one row in each step."""
        rows = op in _BY_ROWS
        if len(named) < 2 or not (rows or op in _BY_ELEMENTS) or place.is_conj() or place.is_neg():
            return False
        dim, index = named[0], named[1].clone()  # another step may write the index itself
        try:
            before = place.index_select(dim, index) if rows else place.gather(dim, index)
        except (RuntimeError, IndexError):  # an index that is none: the operator is going to say so
            return False
        if before.numel() * _FEW > place.numel():
            return False
        put = place.index_copy_ if rows else place.scatter_
        self._changes.append(lambda: put(dim, index, before))
        return True
