"""The memory of a plan: one arena for what is live for a while, output buffers, the tensors laid over them.

Two values share memory only when one is done with before the other begins: in the order of the list, or, where
`Threads` run the steps, on every timing that they allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from npucompose.replay.memory.arena import Arena, Slab, over, zeros
from npucompose.replay.memory.placement import ALIGNMENT, Block, Lifetimes, Placement, groups_of, parted, place
from npucompose.replay.plan import Layout, Plan, Root, Slot
from npucompose.replay.threads import Threads


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor over the same memory, with a storage object of its own: no history, no subclass, no owner.

    A storage of its own tells two inputs apart that are slices of one buffer. It does not keep the memory alive.
    """
    source = tensor.untyped_storage()
    storage = over(source.data_ptr(), source.nbytes())
    return Layout.of(tensor).over(storage)


def relative(tensor: torch.Tensor, begin: torch.Tensor) -> Layout:
    """The layout of `tensor`, its offset counted from the first element of `begin`, which shares its storage."""
    return Layout.of(tensor).moved(-_begin(begin, tensor.dtype))


def laid_over(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The inverse of `relative`, without autograd history: `laid_over(x, relative(x.t(), x))` is `x.t()`."""
    given = tensor.detach()
    lazy = layout.conj or layout.neg or given.is_conj() or given.is_neg()
    if layout.dtype == given.dtype and not lazy:
        return given.as_strided(layout.shape, layout.stride, given.storage_offset() + layout.offset)
    return layout.moved(_begin(given, layout.dtype)).over(given.untyped_storage())


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """First address and the one after the last byte; (0, 0) when empty."""
    low, high = Layout.of(tensor).span()
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


@frozen(kw_only=True, eq=False)
class OutputBuffer:
    """Memory of one output root, and what of the plan lies in it: it can be moved as a whole."""

    nbytes: int
    members: tuple[Root, ...]
    """The output root last; before it values that die where it is born."""


@define(eq=False, kw_only=True)
class Memory:
    """Every fixed tensor of a plan; `tensors[i]` belongs to `slots[i]`. Owns output buffers, lies in an arena else."""

    slots: list[Slot]
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
    def of(
        cls, plan: Plan, *, reuse: bool = True, threads: Threads | None = None, arena: Arena | None = None
    ) -> Memory:
        """Without `reuse` every value has memory of its own: what was computed once stays, for measurements.

        Who gives an `arena` that others use too takes turns with them; without it there are no others.
        """
        lives = Lifetimes.of(plan, threads)
        groups = (
            groups_of(plan, lives.is_last)
            if reuse
            else [[root] for root in plan.roots if root.kind in ("pool", "output")]
        )
        pooled = [members for members in groups if all(root.kind == "pool" for root in members)]
        unplanned = [root.nbytes for root in plan.roots if root.kind == "pool"]
        pooled, placement = _tightest([pooled, parted(pooled)], unplanned, lives) if reuse else _apart(pooled)
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


@define(eq=False)
class Private:
    """Memory of our own, laid out like an input; `owner` keeps it alive."""

    tensor: torch.Tensor
    storage: torch.UntypedStorage
    owner: torch.Tensor

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Private:
        """The address keeps its remainder by 64: a kernel that looks at alignment sees what it would see in eager."""
        layout = Layout.of(tensor).moved(-tensor.storage_offset())
        nbytes = layout.span()[1]
        owner = torch.zeros(nbytes + 2 * ALIGNMENT, dtype=torch.uint8)
        storage = over(owner.data_ptr() + (tensor.data_ptr() - owner.data_ptr()) % ALIGNMENT, nbytes)
        return cls(layout.over(storage), storage, owner)


def _tightest(
    choices: list[list[list[Root]]], unplanned: list[int], lives: Lifetimes
) -> tuple[list[list[Root]], Placement]:
    """Of several ways to put roots together the one with the smallest arena, the first of them when they are equal."""
    placed: list[tuple[list[list[Root]], Placement]] = []
    for pooled in choices:
        blocks = [Block(nbytes=members[0].nbytes, first=members[0].first, last=members[-1].last) for members in pooled]
        placed.append((pooled, place(blocks, unplanned, lives.interferes(pooled))))
        if placed[-1][1].pool_bytes == placed[-1][1].live_bytes:
            break  # as small as it can be
    return min(placed, key=lambda one: one[1].pool_bytes)


def _apart(pooled: list[list[Root]]) -> tuple[list[list[Root]], Placement]:
    return pooled, place([Block(nbytes=root.nbytes, first=0, last=0) for (root,) in pooled])


def _begin(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """The offset of `tensor` in its storage, counted in elements of `dtype`."""
    return tensor.storage_offset() * tensor.element_size() // dtype.itemsize


def _storage_of(root: Root) -> torch.UntypedStorage:
    assert root.tensor is not None, f"a root of kind {root.kind} has no memory"
    if root.kind in ("attribute", "input"):
        # Of this plan's execution alone: executors move inputs, and there may be two of one plan.
        return alias_of(root.tensor).untyped_storage()
    return root.tensor.untyped_storage()
