"""Does a kernel give the same bits when it starts no threads of its own? Streams run each kernel on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field
from torch._ops import OpOverload

from npucompose.replay.capture import kernels
from npucompose.replay.capture.ledger import flat
from npucompose.replay.plan import Layout, mapped
from npucompose.replay.traits import traits_of

Alone = Callable[[Callable[[], Any]], Any]
"""Calls what it is given with one intra-op thread."""


@define(eq=False)
class Trial:
    """Tries each operator once for each form of its arguments, on random numbers that lie as the real ones do."""

    alone: Alone
    unlike: str = ""
    """The first operator that gave other bits, or that nobody may try, and which of the two."""
    _tried: set[str] = field(factory=set)
    _random: torch.Generator = field(factory=lambda: torch.Generator().manual_seed(0))

    def see(self, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Operators that draw are taken to do so on one thread anyway, as torch's do."""
        if self.unlike or traits_of(op).draws or not any(isinstance(a, torch.Tensor) for a in flat((args, kwargs))):
            return
        form = repr((op, mapped(_form, args), mapped(_form, kwargs)))
        if form in self._tried:
            return
        self._tried.add(form)
        if not traits_of(op).may_be_tried:
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
            apart = self.alone(lambda: op(*theirs[0], **theirs[1]))
        except Exception:  # noqa: BLE001 - made-up numbers may be none that the kernel takes: then the real ones decide
            return None
        pairs = zip(flat((together, ours)), flat((apart, theirs)), strict=True)
        return all(kernels.same_bytes(a, b) for a, b in pairs if isinstance(a, torch.Tensor))

    def _made_up(self, value: Any) -> Any:
        copy = _copied(value)
        if isinstance(copy, torch.Tensor) and copy.is_floating_point() and not Layout.of(copy).overlaps_itself():
            copy.normal_(generator=self._random)
        return copy


def _copied(value: Any) -> Any:
    """The same values, laid out alike in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    return Layout.of(value).over(value.untyped_storage().clone())


def _form(value: Any) -> Any:
    return Layout.of(value) if isinstance(value, torch.Tensor) else value
