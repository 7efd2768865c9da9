"""Which kernel writes a result into a given buffer, and whether it really gives the same bytes.

torch has two kinds of `.out` overloads: hand-written ones write into the buffer; those with Tag.generated allocate,
compute and copy, which costs more than the functional call. Only the former are taken, and only after a trial.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch._ops import OpOverload

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
    call = _into_buffers(op, args, results) if all(map(_fills_its_storage, results)) else None
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


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits: NaN equals the same NaN, 0.0 does not equal -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b))


def number_as_tensor(number: Any, others: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A 0-dim tensor that acts in a binary kernel exactly as the Python number would, or None.

    A Python number takes part in type promotion less than a tensor does: `int32[3] + 0.5` computes in float32, but
    with a float64 tensor of 0.5 in float64. A tensor of the promoted dtype gives the same promotion and the same value;
    not so for half and bfloat16, whose kernels use the number unrounded.
    """
    if len(others) != 1:
        return None
    promoted = torch.result_type(others[0], number)
    if promoted in (torch.half, torch.bfloat16) or promoted.is_complex:
        return None
    try:
        tensor = torch.tensor(number, dtype=promoted)
    except (RuntimeError, OverflowError):  # does not fit, e.g. 300 with uint8: leave it to the kernel
        return None
    return tensor if torch.result_type(others[0], tensor) == promoted else None


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


def _fills_its_storage(tensor: torch.Tensor) -> bool:
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


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # `view(-1)` would keep the stride of a single element, which means nothing and has to be 1 for another dtype.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
