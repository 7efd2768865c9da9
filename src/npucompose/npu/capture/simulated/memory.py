"""The memory of a capture: which bytes an operator reads and writes, and which dead values a new one takes memory of.

A value is dead when the model has dropped it and every view of it. The pool of a capture (`allocator`) gives its memory
to the next request of its stream, unless `record_stream` keeps it until the capture is over.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define
from torch.multiprocessing.reductions import StorageWeakRef

from npucompose.graphs.effects import facts, tensors_in
from npucompose.npu.capture.pool import Block, CachingPool
from npucompose.races import Span, Touch

USE = "aten::record_stream"
"""Tensor.record_stream: a note for the allocator."""
_ANEW = frozenset({
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_", "zero_",
})  # fmt: skip
"""They write their first argument without reading it."""
_SOME = re.compile(r"(?<!slice_)(?<!select_)(?<!diagonal_)(?<!as_strided_)scatter|index|masked|gather|embedding|cache"
                   r"|(^|_)(take|put)(_|$)")  # fmt: skip
_PARTS = frozenset({
    "_embedding_bag", "_unsafe_index", "embedding", "embedding_bag", "gather", "index", "index_select", "masked_select",
    "take",
})  # fmt: skip
"""They read those elements of their first argument that the data name."""
_PAGES = frozenset({"block_table", "block_tables"})
"""Arguments that name the parts of a cache that are read."""


def written_by(func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments that the schema says are written."""
    yield from tensors_in(kwargs.get("out"))  # torch_npu registers a list of outputs without saying that it is written
    for index, argument in enumerate(func._schema.arguments):
        if argument.name != "out" and argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))


@define(kw_only=True, eq=False)
class _Held:
    """A storage that a capture has met."""

    number: int
    storage: StorageWeakRef
    nbytes: int
    block: Block | None = None
    """Of the capture's pool; None for memory from outside."""
    kept: bool = False
    """`record_stream` was called: the pool gets it back behind the capture."""
    touched: bool = False
    over: tuple[int, ...] = ()
    """The dead in whose memory it lies."""
    begin: int = 0
    end: int = 0
    """Of its block, in the segment."""


class CaptureMemory:
    """`memory.touches(func, args, kwargs, made, stream)`: what the call does to memory of the device."""

    def __init__(self, on_host: Callable[[torch.Tensor], bool]) -> None:
        self._on_host = on_host
        self._pool = CachingPool()
        self._known: dict[int, _Held] = {}
        """By the number of the storage, which its weak reference keeps from being given again."""
        self._live: dict[int, _Held] = {}
        """Those that the capture makes."""
        self._dead: dict[int, list[_Held]] = {}
        """By segment."""
        self._numbers = itertools.count()

    def touches(
        self, func: Any, args: Sequence[Any], given: Mapping[str, Any], made: Any, stream: int
    ) -> tuple[Touch, ...]:
        """Of an operator on that stream that has given `made`; memory that it makes is the stream's."""
        operands = self._of_the_device((args, dict(given)))
        known = {_number(one) for one in operands}
        new = [one for one in self._of_the_device(made) if _number(one) not in known]
        for one in new:
            self._begin(one, stream)
        returned = next(tensors_in(made), None) is not None
        if func.is_view or facts(func).host or not (new or func._schema.is_mutable or not returned):
            return ()
        return tuple(self._of_call(func, args, given, operands, new))

    def _of_call(
        self, func: Any, args: Sequence[Any], given: Mapping[str, Any], operands: Iterable[torch.Tensor],
        new: Iterable[torch.Tensor],
    ) -> Iterator[Touch]:  # fmt: skip
        name, written = func.overloadpacket.__name__, {id(one) for one in written_by(func, args, given)}
        named = [given.get(one.name) for one in func._schema.arguments if one.kwarg_only]
        outs = {id(one) for one in tensors_in(named)}
        some = _SOME.search(name) is not None
        paged = any(given.get(page) is not None for page in _PAGES)
        for at, one in enumerate(operands):
            writes, only = id(one) in written, id(one) in outs or (at == 0 and name in _ANEW)
            partial = (some and writes) or (name in _PARTS and at == 0) or (paged and not writes)
            yield from self._touch(one, reads=not (writes and only), writes=writes, certain=not partial)
        for one in new:
            yield from self._touch(one, writes=True)

    def reading_and_making(self, read: Any, made: Any, stream: int) -> tuple[Touch, ...]:
        """Of a call that is no operator of torch's: it reads some tensors and makes others."""
        known = {_number(one) for one in self._of_the_device(read)}
        new = [one for one in self._of_the_device(made) if _number(one) not in known]
        for one in new:
            self._begin(one, stream)
        return (*self.touching(read, reads=True), *self.touching(new, writes=True))

    def touching(self, value: Any, *, reads: bool = False, writes: bool = False) -> tuple[Touch, ...]:
        """All tensors of the value are read, written, or both."""
        tensors = self._of_the_device(value)
        return tuple(touch for one in tensors for touch in self._touch(one, reads=reads, writes=writes))

    def keep(self, value: Any) -> None:
        """`record_stream`: the memory of these tensors is not used again in this capture."""
        for one in self._of_the_device(value):
            self._held(one).kept = True

    def _of_the_device(self, value: Any) -> list[torch.Tensor]:
        return [one for one in tensors_in(value) if one.layout is torch.strided and not self._on_host(one)]

    def _touch(
        self, tensor: torch.Tensor, *, reads: bool = False, writes: bool = False, certain: bool = True
    ) -> Iterator[Touch]:
        """Nothing for a tensor without elements."""
        if tensor.numel() == 0:
            return
        held, item = self._held(tensor), tensor.element_size()
        held.touched = True
        span = Span.from_items(int(tensor.storage_offset()), tensor.shape, tensor.stride(), item)
        yield Touch(
            memory=held.number,
            span=None if tensor.is_contiguous() and tensor.numel() * item == held.nbytes else span,
            reads=reads,
            writes=writes,
            certain=certain,
            value=f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}",
            over=held.over,
        )

    def _held(self, tensor: torch.Tensor) -> _Held:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:  # from outside of the capture
            self._known[storage._cdata] = _Held(
                number=next(self._numbers), storage=StorageWeakRef(storage), nbytes=storage.nbytes()
            )
        return self._known[storage._cdata]

    def _begin(self, tensor: torch.Tensor, stream: int) -> None:
        """The pool gives it memory: perhaps that of values which have died by now."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._bury()
        held = self._held(tensor)
        held.block = self._pool.take(held.nbytes, str(stream))
        if held.block is None:
            return
        self._live[storage._cdata] = held
        held.begin, held.end = held.block.at, held.block.at + held.block.nbytes
        dead = self._dead.get(held.block.segment, [])
        under = [one for one in dead if one.begin < held.end and held.begin < one.end]
        held.over = tuple(dict.fromkeys(number for one in under for number in _lives(one)))
        dead[:] = [one for one in dead if not (held.begin <= one.begin and one.end <= held.end)]

    def _bury(self) -> None:
        """Memory whose storage is gone goes back to the pool."""
        for number in [number for number, held in self._live.items() if held.storage.expired()]:
            held = self._live.pop(number)
            del self._known[number]
            if held.block is not None and not held.kept:
                self._dead.setdefault(held.block.segment, []).append(held)
                self._pool.give(held.block)


def _number(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _lives(held: _Held) -> tuple[int, ...]:
    """Its own number, which stands for those before it once it was touched."""
    return (held.number,) if held.touched else held.over
