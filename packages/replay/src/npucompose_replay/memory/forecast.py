"""What recordings are going to hold, from their plans: nothing is laid out, and no recording is made.

A plan comes of one run of the graph (`recorder.record`), which leaves memory and random numbers as they were. What is
counted is what torch's allocator is asked for and keeps: the slabs of an arena, results, constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from npucompose.placement import ALIGNMENT
from npucompose.recorder import PlannedRecording
from npucompose_replay.memory.arena import Arena, places_of
from npucompose_replay.plan import Plan, Threads


def planned(plan: Plan, threads: Threads | None) -> PlannedRecording:
    """What a recording of the plan takes whose steps run on `threads`."""
    _, pooled, placement = places_of(plan, threads, reuse=True)
    return PlannedRecording(
        spans=tuple((at, at + group[0].nbytes) for group, at in zip(pooled, placement.offsets, strict=True)),
        own_bytes=sum(root.nbytes for root in plan.roots if root.kind in ("output", "constant")),
    )


def held_bytes(recordings: Sequence[PlannedRecording], *, shared: bool) -> int:
    """What they hold together, made in this order: in one arena, or each in its own."""
    own = sum(one.own_bytes for one in recordings)
    if not shared:
        return own + sum(held_bytes([one], shared=True) - one.own_bytes for one in recordings)
    arena = _DryArena()
    for one in recordings:
        arena.lay(one.spans)
    return own + sum(slab.nbytes + ALIGNMENT for slab in arena.slabs())


@frozen
class _DrySlab:
    """A slab without memory; what lies in it gets addresses from 0."""

    nbytes: int
    address: int = 0


@define(eq=False)
class _DryArena(Arena):
    """Finds places as an arena does, in slabs without memory, which stay."""

    _dry: list[Any] = field(factory=list)

    def slabs(self) -> list[Any]:
        return list(self._dry)

    def _another(self, nbytes: int) -> Any:
        self._dry.append(slab := _DrySlab(nbytes))
        return slab
