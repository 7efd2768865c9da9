"""The results of a recording: how each goes out, and whose memory is left alone because a caller still holds it.

That portable executors leave what is held to its holder is done here; executor/src/held_memory.h is the same for the
replayer in C++; its Note [Who holds a result] says how holders are found.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose.replay.memory.arena import Memory, zeros
from npucompose.replay.operands import Layout, laid_over, over, span_of
from npucompose.replay.plan import Buffer, Literally, Plan, SameAsInput, SameAsOutput, ViewOfInput

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
    layout: Layout
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


@define(eq=False)
class _Piece:
    """`nbytes` of memory that callers are given results in."""

    whole: torch.Tensor
    """All of it. While there is a tensor, torch holds its Python object as well, and `names` does not change."""
    storage: torch.UntypedStorage
    address: int
    ours: int = 0
    """References to the storage that are ours, as long as no result of a call is laid over it."""
    names: int = 0
    """References to the one object that Python has for the storage: `y.untyped_storage()` gives it to a holder."""

    @classmethod
    def of(cls, nbytes: int) -> _Piece:
        whole = zeros(nbytes)
        piece = cls(whole, whole.untyped_storage(), whole.data_ptr())
        del whole
        piece.ours, piece.names = use_count(piece.storage._cdata), sys.getrefcount(piece.storage)
        return piece

    def is_free(self, nbytes: int, ours: int = 0) -> bool:
        """`ours` more references are our own. A storage that its holder resized, moved or copied lazily is his."""
        untouched = self.storage.data_ptr() == self.address and self.storage.nbytes() == nbytes
        nameless = sys.getrefcount(self.storage) <= self.names
        return untouched and nameless and use_count(self.storage._cdata) <= self.ours + ours


@define(eq=False)
class _Buffer:
    nbytes: int
    results: Sequence[Static]
    move: Callable[[int], torch.UntypedStorage]
    known: torch.UntypedStorage = field(init=False)
    """The result's memory as the steps of the plan know it."""
    piece: _Piece = field(init=False)
    spares: list[_Piece] = field(factory=list)
    lent: bool = False
    """To a handle whose next call overwrites what it gave."""

    def __attrs_post_init__(self) -> None:
        self._take(_Piece.of(self.nbytes))

    def is_held(self) -> bool:
        if not self.nbytes:
            return False
        lazily = any(is_lazy_copy(result.tensor) for result in self.results)
        return lazily or not self.piece.is_free(self.nbytes, 2 * len(self.results))

    def is_read(self, inputs: Sequence[Any]) -> bool:
        begin, end = self.piece.address, self.piece.address + self.nbytes
        spans = (span_of(value) for value in inputs if isinstance(value, torch.Tensor))
        return any(low < end and begin < high for low, high in spans)

    def leave(self) -> None:
        left = self.piece
        free = next((spare for spare in self.spares if spare.is_free(self.nbytes)), None)
        self._take(free or _Piece.of(self.nbytes))
        self.spares = [*(spare for spare in self.spares if spare is not free), left][-SPARES:]

    def _take(self, piece: _Piece) -> None:
        self.piece = piece
        for result in self.results:
            result.lay(piece.storage)
        self.known = self.move(piece.address)


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
                if not (reuse and buffer.lent) or buffer.is_read(inputs):
                    buffer.leave()
                elif not self._warned:
                    self._warned = True
                    warnings.warn(OVERWRITTEN, RuntimeWarning, stacklevel=5)
            buffer.lent = reuse

    def storages(self) -> dict[int, torch.UntypedStorage]:
        """{storage that the plan's steps know a result by: the one that callers are given results over}."""
        return {buffer.known._cdata: buffer.piece.storage for buffer in self._buffers}


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


Maker = Callable[[Sequence[Any], list[Any]], Any]


@frozen(kw_only=True, eq=False)
class Output:
    """One output of a replay: `make(inputs, the outputs before it)`. The other fields say the same as data."""

    make: Maker
    static: Static | None = None
    """In an output buffer: that memory, or with `clone` a copy of it, goes out in a tensor of the caller's own."""
    clone: bool = False
    same_as_input: int | None = None
    same_as_output: int | None = None


def outputs_of(plan: Plan, memory: Memory, clone: bool) -> list[Output]:
    made: list[Output] = []
    for output in plan.outputs:
        if isinstance(output, Buffer):
            root = output.slot.root
            static = Static(memory.buffer_of(root), output.slot.layout).lay(memory.storages[id(root)])
            made.append(_from_buffer(static, clone))
        elif isinstance(output, SameAsInput):
            i = output.index
            made.append(Output(make=lambda inputs, _, i=i: inputs[i], same_as_input=i))
        elif isinstance(output, SameAsOutput):
            i = output.index
            made.append(Output(make=lambda _, outputs, i=i: outputs[i], same_as_output=i))
        elif isinstance(output, ViewOfInput):
            made.append(Output(make=_view_of_input(output)))
        else:
            made.append(Output(make=_literally(output)))
    return made


def _from_buffer(static: Static, clone: bool) -> Output:
    if clone:
        return Output(make=lambda _inputs, _outputs: static.tensor.clone(), static=static, clone=True)
    # A tensor object of the caller's own each time: what they do to its shape or flags stays theirs.
    return Output(make=lambda _inputs, _outputs: static.given_out(), static=static)


def _view_of_input(output: ViewOfInput) -> Maker:
    return lambda inputs, _outputs: laid_over(inputs[output.index], output.layout)


def _literally(output: Literally) -> Maker:
    return lambda _inputs, _outputs: output.value
