"""The results of a recording: how each goes out, and whose memory is left alone because a caller still holds it.

That portable executors leave what is held to its holder is done here; executor/src/held_memory.h is the same for the
replayer in C++; its Note [Who holds a result] says how holders are found.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose_replay.memory.arena import Memory, zeros
from npucompose_replay.operands import StorageLayout, bytes_of, laid_over, layout_of, over, span_of
from npucompose_replay.plan import Buffer, Elsewhere, Output, Plan, SameAsInput, SameAsOutput, ViewOfInput

SPARES = 2
"""Pieces of memory that are kept for each output buffer beside the one in use: it may come back."""
OVERWRITTEN = (
    "a result of an earlier call of this handle is still held, and this call overwrites it. Clone what must last, or "
    'make the handle with detach(..., outputs="keep").'
)
use_count: Callable[[int], int] = torch._C._storage_Use_Count
is_lazy_copy: Callable[[torch.Tensor], bool] = torch._C._is_cow_tensor  # pyright: ignore[reportAttributeAccessIssue]


@define(eq=False)
class Static:
    """A result that lies in output buffer `buffer`. Each call gets a tensor object of its own over the same memory."""

    buffer: int
    layout: StorageLayout
    tensor: torch.Tensor = field(init=False)
    inference: torch.Tensor = field(init=False)
    """The same for a caller in inference mode."""

    def lay(self, storage: torch.UntypedStorage) -> Static:
        with torch.inference_mode(False):
            self.tensor = self.layout.over(storage)
        with torch.inference_mode():
            self.inference = self.layout.over(storage)
        return self

    def given_out(self) -> torch.Tensor:
        return (self.inference if torch.is_inference_mode_enabled() else self.tensor).detach()


def copied_as_it_lies(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in new memory, which lies there as `tensor` does in its: AOTAutograd makes views of other tensors by the
    offset and the strides of a result."""
    if tensor.is_contiguous() and not tensor.storage_offset():
        return tensor.clone()
    layout = layout_of(tensor)
    return layout.over(bytes_of(tensor.untyped_storage())[: layout.span()[1]].clone().untyped_storage())


@define(eq=False)
class ResultBytes:
    """Bytes that callers are given results in, and whether one of them holds any."""

    whole: torch.Tensor
    """All of it. While there is a tensor, torch holds its Python object as well, and the count of that stays."""
    nbytes: int = field(init=False)
    storage: torch.UntypedStorage = field(init=False)
    address: int = field(init=False)
    ours: tuple[int, int] = field(init=False)
    """References that are ours: to the memory, and to the one object that Python has for it: `y.untyped_storage()`."""

    def __attrs_post_init__(self) -> None:
        self.nbytes, self.storage, self.address = (
            self.whole.numel(),
            self.whole.untyped_storage(),
            self.whole.data_ptr(),
        )
        self.count()

    def count(self) -> None:
        """Take the references that there are now for our own."""
        self.ours = self._references()

    def _references(self) -> tuple[int, int]:
        return use_count(self.storage._cdata), sys.getrefcount(self.storage)

    def is_held(self, results: Sequence[torch.Tensor] = (), ours: int = 0) -> bool:
        """`ours` more references are our own. Memory that a holder resized, moved or copied lazily is his."""
        if not self.nbytes:
            return False
        if any(map(is_lazy_copy, results)):
            return True
        if (self.storage.data_ptr(), self.storage.nbytes()) != (self.address, self.nbytes):
            return True
        (memory, name), (our_memory, our_name) = self._references(), self.ours
        return memory > our_memory + ours or name > our_name

    def is_read(self, inputs: Sequence[Any]) -> bool:
        """Whether one of these tensors lies in it."""
        spans = (span_of(value) for value in inputs if isinstance(value, torch.Tensor))
        return any(low < self.address + self.nbytes and self.address < high for low, high in spans)


@define(eq=False)
class _Buffer:
    nbytes: int
    results: Sequence[Static]
    move: Callable[[int], torch.UntypedStorage]
    known: torch.UntypedStorage = field(init=False)
    """The result's memory as the steps of the plan know it."""
    memory: ResultBytes = field(init=False)
    spares: list[ResultBytes] = field(factory=list)
    lent: bool = False
    """To a handle whose next call overwrites what it gave."""

    def __attrs_post_init__(self) -> None:
        self._take(ResultBytes(zeros(self.nbytes)))

    def is_held(self) -> bool:
        return self.memory.is_held([result.tensor for result in self.results], 2 * len(self.results))

    def leave(self) -> None:
        left = self.memory
        free = next((spare for spare in self.spares if not spare.is_held()), None)
        self._take(free or ResultBytes(zeros(self.nbytes)))
        self.spares = [*(spare for spare in self.spares if spare is not free), left][-SPARES:]

    def _take(self, memory: ResultBytes) -> None:
        self.memory = memory
        for result in self.results:
            result.lay(memory.storage)
        self.known = self.move(memory.address)


class HeldOutputs:
    """`leave_held(inputs, reuse)` before each replay; results and slots then lie in memory that nobody holds.

    With `reuse`, results that were given out with `reuse` are overwritten, with one warning.
    """

    def __init__(self, memory: Memory, results: Sequence[Static], lay: Callable[[int, torch.Tensor], None]) -> None:
        """`lay(number, tensor)` puts a tensor in the place of a slot of the plan."""
        self._warned = False
        self._buffers = [
            _Buffer(
                nbytes=buffer.nbytes,
                results=[result for result in results if result.buffer == number],
                move=_mover(memory, number, lay),
            )
            for number, buffer in enumerate(memory.outputs)
        ]
        memory.given_up()

    def leave_held(self, inputs: Sequence[Any], reuse: bool) -> None:
        for buffer in self._buffers:
            if buffer.is_held():
                if not (reuse and buffer.lent) or buffer.memory.is_read(inputs):
                    buffer.leave()
                elif not self._warned:
                    self._warned = True
                    warnings.warn(OVERWRITTEN, RuntimeWarning, stacklevel=5)
            buffer.lent = reuse

    def storages(self) -> dict[int, torch.UntypedStorage]:
        """{storage that the plan's steps know a result by: the one that callers are given results over}."""
        return {buffer.known._cdata: buffer.memory.storage for buffer in self._buffers}


def _mover(
    memory: Memory, number: int, lay: Callable[[int, torch.Tensor], None]
) -> Callable[[int], torch.UntypedStorage]:
    buffer = memory.outputs[number]
    slots = [(i, slot) for i, slot in enumerate(memory.slots) if slot.root in buffer.members]

    def move(address: int) -> torch.UntypedStorage:
        # One storage object for each root, as before: kernels see what eager would.
        storages = {id(root): over(address, root.nbytes) for root in buffer.members}
        with torch.inference_mode():
            for i, slot in slots:
                lay(i, slot.layout.over(storages[id(slot.root)]))
        return storages[id(buffer.members[-1])]

    return move


@frozen(kw_only=True, eq=False)
class ReplayOutput:
    """One output: `make(inputs, the outputs before it)`, and what the native replayer has to know of it."""

    make: Callable[[Sequence[Any], list[Any]], Any]
    described: tuple[Any, ...]
    static: Static | None = None
    """In an output buffer: that memory goes out in a tensor of the caller's own, or a copy of it."""


def outputs_of(plan: Plan, memory: Memory, clone: bool) -> list[ReplayOutput]:
    """With `clone` every result in a buffer is a copy."""
    return [_output(output, memory, clone) for output in plan.outputs]


def _output(output: Output, memory: Memory, clone: bool) -> ReplayOutput:
    if not isinstance(output, Buffer):
        make = partial(handed_out, output)
        if isinstance(output, (SameAsInput, SameAsOutput)):
            kind = "input" if isinstance(output, SameAsInput) else "output"
            return ReplayOutput(make=make, described=(kind, output.index))
        return ReplayOutput(make=make, described=("made", make))
    root = output.slot.root
    static = Static(memory.buffer_of(root), output.slot.layout).lay(memory.storages[id(root)])

    def copied(_inputs: Sequence[Any], _earlier: list[Any]) -> torch.Tensor:
        return copied_as_it_lies(static.tensor)

    def given_out(_inputs: Sequence[Any], _earlier: list[Any]) -> torch.Tensor:
        # A tensor object of the caller's own each time: what they do to its shape or flags stays theirs.
        return static.given_out()

    described = ("clone" if clone else "buffer", static.buffer, static.tensor, static.inference)
    return ReplayOutput(make=copied if clone else given_out, static=static, described=described)


def handed_out(output: Elsewhere, inputs: Sequence[Any], earlier: Sequence[Any]) -> Any:
    """An output that lies in no buffer of ours; `earlier` are the outputs before it."""
    if isinstance(output, SameAsInput):
        return inputs[output.index]
    if isinstance(output, SameAsOutput):
        return earlier[output.index]
    if isinstance(output, ViewOfInput):
        return laid_over(inputs[output.index], output.layout)
    return output.value
