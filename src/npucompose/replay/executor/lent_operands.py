"""The operands of an operator that is not torch's own: ordinary tensors, as eager would give it, which it may keep.

src/lent_operands.h is the same for the replayer in C++; its Note [An operator may keep what it is given] says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from attrs import define, field
from torch._ops import OpOverload

from npucompose.replay.plan import Layout, Register, Slot, Step, mapped
from npucompose.replay.traits import traits_of


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


@define
class Lent:
    """What an operator may keep, for the length of a replay."""

    owners: dict[int, torch.Tensor] = field(factory=dict)
    """The inputs, by their index."""
    results: dict[int, torch.UntypedStorage] = field(factory=dict)
    """{storage that steps know a result by: the one that callers are given}, where a result that is held is kept."""

    def clear(self) -> None:
        self.owners.clear()
        self.results.clear()


def lending(op: OpOverload, lent: Lent, inputs: frozenset[int]) -> Callable[..., Any]:
    """`op`, called with the caller's own `inputs` or views of them, with the memory of results, and with copies of what
    else the graph computes.

    Portable executors look for nobody who keeps an operand. Tensors that it writes are given as they are.
    """
    names = [argument.name for argument in op._schema.arguments]
    written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            owners = [lent.owners[i] for i in sorted(inputs)]
            made = {
                name: mapped(lambda leaf, writes=name in written: _operand(leaf, lent, owners, writes), value)
                for name, value in given.items()
            }
            return op(*(made[name] for name in names[: len(args)]), **{name: made[name] for name in kwargs})

    return call


def _operand(value: Any, lent: Lent, owners: Sequence[torch.Tensor], writes: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    layout, memory = Layout.of(value), value.untyped_storage()
    if memory._cdata in lent.results:
        return layout.over(lent.results[memory._cdata])
    if writes:
        return layout.over(memory)
    low, high = layout.span()
    for owner in owners:
        storage = owner.untyped_storage()
        before = memory.data_ptr() - storage.data_ptr()
        if before + low < 0 or before + high > storage.nbytes() or before % layout.dtype.itemsize:
            continue
        there = layout.moved(before // layout.dtype.itemsize)
        return owner if there == Layout.of(owner) else there.over(storage)
    return layout.over(memory.clone())
