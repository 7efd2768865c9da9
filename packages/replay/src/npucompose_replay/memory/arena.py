"""The memory of recordings: arenas that they share and replay in one at a time, output buffers, what lies over them.

Memory comes from torch's allocator, and what it does not give is an error in words. Locks are such that a child of
os.fork() can go on: of its parent's threads it has only the one that forked. executor/src/forks.h is the same in C++.

# Note [What may lie in an arena]
Blocks of a placement only: each replay writes them before it reads them, and nobody looks at them afterwards. Outputs,
constants and copies of inputs outlive a replay; they have memory of their own.
Two values share memory only when one is done with before the other begins: in the order of the list, or, where
`Threads` run the steps, on every timing that they allow.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol
from weakref import WeakSet

import torch
from attrs import Factory, define, field, frozen

from npucompose.placement import ALIGNMENT, MemoryBlock, Placement, aligned, place
from npucompose.schema.sizes import MemoryBound, as_bytes
from npucompose_replay.gate import Refused
from npucompose_replay.memory.placement import Lifetimes, groups_of, parted
from npucompose_replay.operands import alias_of, over
from npucompose_replay.plan import Plan, PlanSlot, Root, Threads

_ASKED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
"""How torch's allocator for CPUs says it (c10/core/impl/alloc_cpu.cpp)."""


@contextlib.contextmanager
def memory_errors_in_words() -> Iterator[None]:
    """Refused where torch's allocator finds no memory; whatever was made by then goes with the error."""
    try:
        yield
    except RuntimeError as error:
        if (found := _ASKED.search(str(error))) is None:
            raise
        words = f"there is no memory for a buffer of {found[1]} bytes"
        raise Refused(
            f"cannot capture: {words}. Use smaller inputs, fewer signatures (capture_limit) or mode=eager.",
            reason=words,
        ) from error


def zeros(nbytes: int) -> torch.Tensor:
    """Zeros, not whatever was there: a denormal left in fresh memory slows a kernel down a hundredfold."""
    with memory_errors_in_words():
        return torch.zeros(nbytes, dtype=torch.uint8)


_locks: WeakSet[Any] = WeakSet()
_forks = 0


def fork_safe_lock() -> Any:
    """A threading.RLock that a child finds open where another thread of its parent held it: nobody would let it go."""
    made = threading.RLock()
    _locks.add(made)
    return made


def forks_so_far() -> int:
    """How many forks lie between the process that imported this and the present one."""
    return _forks


def _in_child() -> None:
    global _forks
    _forks += 1
    for one in _locks:
        if not one._is_owned():
            one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


Span = tuple[int, int]
"""(first byte, the one after the last)."""

ROOMY = 4
"""A slab is left alone by whom it would serve for less than one part in so many: held by a small user after its large
ones are gone, it would be memory for nothing. So an arena never takes more than so many times what its users need."""
_numbers = itertools.count()


class OneAtATime(Protocol):
    """`with turns:` is a replay; who is within one may not begin another."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> Any: ...

    def is_mine(self) -> bool: ...


@frozen(eq=False)
class Slab:
    """`nbytes` that never move, at an aligned `address`; it lives as long as somebody who lies in it holds it."""

    nbytes: int
    number: int = field(factory=lambda: next(_numbers))
    """Another one for each slab of this process."""
    tensor: torch.Tensor = field(
        init=False, repr=False, default=Factory(lambda slab: zeros(slab.nbytes + ALIGNMENT), takes_self=True)
    )

    @property
    def address(self) -> int:
        return aligned(self.tensor.data_ptr())


@define(eq=False)
class Arena:
    """`lay(spans)` finds places that others may use too; `turns` is what a user holds while it uses them.

    A user that needs more than there is gets another slab beside: nobody is moved, so addresses may be written into
    kernels. A slab goes with its last user.
    """

    turns: OneAtATime | None = None
    """None until the first user says who replays."""
    _extension: ModuleType | None = None
    _slabs: list[weakref.ref[Slab]] = field(factory=list)
    _beside: Arena | None = None
    """For those whose replayer takes turns in another way."""
    _lock: Any = field(factory=fork_safe_lock)
    """Graphs of one model may be captured on several threads."""

    def joined(self, extension: ModuleType | None) -> Arena:
        """This arena, for a user that the native replayer's `extension` runs, or, with None, a portable one.

        Where its users take turns in another way (the extension was built in the meantime): the one beside it.
        """
        with self._lock:
            if self.turns is None:
                self._extension = extension
                self.turns = Turns() if extension is None else extension.Turns()
            if extension is self._extension:
                return self
            self._beside = self._beside or Arena()
            return self._beside.joined(extension)

    def is_mine(self) -> bool:
        """Whether this thread is in the middle of a replay that uses this memory."""
        mine = self.turns is not None and self.turns.is_mine()
        return mine or (self._beside is not None and self._beside.is_mine())

    def slabs(self) -> list[Slab]:
        """Those that are in use."""
        return [slab for reference in self._slabs if (slab := reference()) is not None]

    def lay(self, spans: Sequence[Span]) -> tuple[list[int], list[Slab]]:
        """(the address of each span, the slabs that the caller has to hold for as long as it uses them).

        Spans that do not overlap get addresses that do not overlap; all begin at multiples of the alignment. A slab
        that holds all and is not much too large is taken, the smallest of them. Otherwise smaller slabs are filled from
        the largest, each with what lies within its size; what is left over moves down to the begin of the next one.
        """
        with self._lock:
            return self._laid(spans)

    def _laid(self, spans: Sequence[Span]) -> tuple[list[int], list[Slab]]:
        addresses = [0] * len(spans)
        rest = [i for i, (low, high) in enumerate(spans) if high > low]
        begin = min((spans[i][0] for i in rest), default=0)
        used: list[Slab] = []

        def fill(slab: Slab, some: Sequence[int]) -> None:
            addresses_before = slab.address - begin
            for i in some:
                addresses[i] = addresses_before + spans[i][0]
            used.append(slab)

        end = max((spans[i][1] for i in rest), default=0)
        for slab in self._in_order(end - begin):
            left = [i for i in rest if spans[i][1] - begin > slab.nbytes]
            lowest = min((spans[i][0] for i in left), default=end)
            if (lowest - begin) * ROOMY < slab.nbytes:
                continue  # what is left over would be as large as before, or nearly so
            fill(slab, sorted(set(rest) - set(left)))
            rest, begin = left, lowest
        if rest:
            fill(self._another(aligned(max(spans[i][1] for i in rest) - begin)), rest)
        return addresses, used

    def _in_order(self, nbytes: int) -> list[Slab]:
        slabs = sorted(self.slabs(), key=lambda slab: slab.nbytes)
        holding_all = [slab for slab in slabs if slab.nbytes >= nbytes]
        return [*holding_all[:1], *(slab for slab in slabs[::-1] if slab.nbytes < nbytes)]

    def _another(self, nbytes: int) -> Slab:
        slab = Slab(nbytes)
        self._slabs = [reference for reference in self._slabs if reference() is not None]
        self._slabs.append(weakref.ref(slab))
        return slab


class Turns:
    """`with turns:` is one replay at a time, as the native replayer's class of that name is for C++."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()

    def __enter__(self) -> None:
        if self.is_mine():
            raise RuntimeError("a recording was replayed from within its own replay, or one that shares its memory")
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        return self._lock._is_owned()


@frozen(kw_only=True, eq=False)
class OutputBuffer:
    """Memory of one output root, and what of the plan lies in it: it can be moved as a whole."""

    nbytes: int
    members: tuple[Root, ...]
    """The output root last; before it values that die where it is born."""


@define(eq=False, kw_only=True)
class Memory:
    """Every fixed tensor of a plan; `tensors[i]` belongs to `slots[i]`. Owns output buffers, lies in an arena else."""

    slots: list[PlanSlot]
    tensors: list[torch.Tensor]
    placement: Placement
    outputs: list[OutputBuffer]
    slabs: list[Slab] = field(repr=False)
    """Those of the arena in which the pool lies; held for as long as this is used."""
    storages: dict[int, torch.UntypedStorage] = field(repr=False)
    """By id(root). Each block of the arena has a storage object of its own, so kernels see what eager would."""
    owners: list[torch.Tensor] = field(repr=False)
    """What keeps the output buffers alive until a front brings memory of its own (`given_up`)."""

    @classmethod
    def from_plan(
        cls, plan: Plan, *, reuse: bool = True, threads: Threads | None = None, arena: Arena | None = None
    ) -> Memory:
        """Without `reuse` every value has memory of its own: what was computed once stays, for measurements.

        Who gives an `arena` that others use too takes turns with them; without it there are no others.
        """
        groups, pooled, placement = places_of(plan, threads, reuse)
        storages: dict[int, torch.UntypedStorage] = {}
        spans = [(at, at + r[0].nbytes) for r, at in zip(pooled, placement.offsets, strict=True)]
        addresses, slabs = (arena or Arena()).lay(spans)
        for members, address in zip(pooled, addresses, strict=True):
            for root in members:
                storages[id(root)] = over(address, root.nbytes)
        for root in plan.roots:
            if root.kind not in ("pool", "fresh", "output"):
                storages[id(root)] = _storage_of(root)
        ending = {id(members[-1]): members for members in groups}
        outputs = [
            OutputBuffer(nbytes=root.nbytes, members=tuple(ending[id(root)]))
            for root in plan.roots
            if root.kind == "output"
        ]
        owners = [zeros(buffer.nbytes) for buffer in outputs]
        for buffer, owner in zip(outputs, owners, strict=True):
            storages.update({id(r): over(owner.data_ptr(), r.nbytes) for r in buffer.members})
        slots = [slot for slot in plan.slots() if id(slot.root) in storages]
        with torch.inference_mode(True):
            # Note [Slots are inference tensors]: autograd knows nothing of them, so a kernel call is some 5 % cheaper.
            # They never leave the replay; what a caller gets is laid over the same memory outside inference mode.
            tensors = [slot.layout.over(storages[id(slot.root)]) for slot in slots]
        return cls(
            slots=slots,
            tensors=tensors,
            placement=placement,
            outputs=outputs,
            slabs=slabs,
            storages=storages,
            owners=owners,
        )

    def buffer_of(self, root: Root) -> int:
        """The number of the output buffer that `root` lies in."""
        return next(i for i, buffer in enumerate(self.outputs) if buffer.members[-1] is root)

    def given_up(self) -> None:
        """A front has moved the output buffers to memory of its own: nothing that is known here lies in them now."""
        self.owners.clear()
        for buffer in self.outputs:
            for root in buffer.members:
                self.storages.pop(id(root), None)


def within(bound: MemoryBound, plan: Plan, threads: Threads | None, why: str) -> tuple[Threads | None, str, bool]:
    """(the threads that keep to `bound`, or None and why they do not, whether one stream would not).

    Refused where the steps take more even one after the other.
    """
    alone = pool_bytes(plan, None)
    most = bound.nbytes(alone)
    taken = alone if threads is None else pool_bytes(plan, threads)
    if taken <= most:
        return threads, why, alone > most
    if threads is not None and alone <= most:
        return None, f"streams take {as_bytes(taken)}, more than streams.max_memory={bound.text}", False
    taken_in_words = f"{as_bytes(alone)} one after the other"
    words = f"the intermediate results take {taken_in_words}, more than streams.max_memory={bound.text}"
    raise Refused(f"cannot capture: {words}. Raise it or make the inputs smaller.", reason=words)


def pool_bytes(plan: Plan, threads: Threads | None) -> int:
    """What the arena of a plan takes whose steps run on `threads`, or one after the other; nothing is laid out."""
    return places_of(plan, threads, reuse=True)[2].pool_bytes


def places_of(plan: Plan, threads: Threads | None, reuse: bool) -> tuple[list[list[Root]], list[list[Root]], Placement]:
    """(roots that share memory, those of them that lie in the arena, where these lie)."""
    lives = Lifetimes.from_plan(plan, threads)
    roots = [root for root in plan.roots if root.kind in ("pool", "output")]
    groups = groups_of(plan, lives.is_last) if reuse else [[root] for root in roots]
    pooled = [members for members in groups if all(root.kind == "pool" for root in members)]
    unplanned = [root.nbytes for root in plan.roots if root.kind == "pool"]
    return groups, *(_tightest([pooled, parted(pooled)], unplanned, lives) if reuse else _apart(pooled))


def _tightest(
    choices: list[list[list[Root]]], unplanned: list[int], lives: Lifetimes
) -> tuple[list[list[Root]], Placement]:
    """Of several ways to put roots together the one with the smallest arena, the first of them when they are equal."""
    placed: list[tuple[list[list[Root]], Placement]] = []
    for pooled in choices:
        blocks = [
            MemoryBlock(nbytes=members[0].nbytes, first=members[0].first, last=members[-1].last) for members in pooled
        ]
        placed.append((pooled, place(blocks, unplanned, lives.interferes(pooled))))
        if placed[-1][1].pool_bytes == placed[-1][1].live_bytes:
            break  # as small as it can be
    return min(placed, key=lambda one: one[1].pool_bytes)


def _apart(pooled: list[list[Root]]) -> tuple[list[list[Root]], Placement]:
    return pooled, place([MemoryBlock(nbytes=root.nbytes, first=0, last=0) for (root,) in pooled])


def _storage_of(root: Root) -> torch.UntypedStorage:
    # Of this plan's execution alone: executors move inputs, and there may be two of one plan.
    own = root.kind in ("attribute", "input")
    return (alias_of(root.contents) if own else root.contents).untyped_storage()
