"""torch's caching allocator in numbers: what the pool of a capture reserves for requests and frees in their order.

The constants are those of c10/core/AllocatorConfig.h (torch 2.13) and of torch_npu's NPUCachingAllocator.cpp, which
agree; the large segments' size and the rule for splits are those of both files, with no option set
(PYTORCH_NPU_ALLOC_CONF). Knows no graph.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from attrs import define, field

BLOCK = 512
"""Bytes that sizes are rounded up to."""
SMALL = 2**20
"""The largest request that a small segment serves."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
LARGE_ALONE = 10 * 2**20
"""From here on a request gets a segment of its own, in multiples of `ROUND_LARGE`."""
ROUND_LARGE = 2 * 2**20


@define(eq=False)
class Block:
    """A piece of a segment."""

    nbytes: int
    stream: str
    small: bool
    number: int
    """Among all blocks that were ever made: of equal ones the oldest is taken."""
    segment: int = 0
    at: int = 0
    """Where it begins in its segment, in bytes."""
    free: bool = False
    before: Block | None = None
    after: Block | None = None


@define(eq=False)
class CachingPool:
    """A private pool: `a = pool.take(700, "s0"); pool.give(a)` leaves `pool.reserved == 2 MiB`.

    A free block serves requests of its own stream only. Nothing goes back to the device while the pool lives.
    """

    reserved: int = 0
    """Bytes of its segments."""
    _free: dict[tuple[str, bool], list[tuple[int, int, Block]]] = field(factory=dict)
    """By stream and size class: (bytes, number, block), ascending."""
    _made: int = 0
    _segments: int = 0

    def take(self, nbytes: int, stream: str) -> Block | None:
        """None for a request of nothing."""
        if nbytes <= 0:
            return None
        size = -(-nbytes // BLOCK) * BLOCK
        small = size <= SMALL
        block = self._fitting(size, stream, small) or self._segment(size, stream, small)
        left = block.nbytes - size
        if left >= BLOCK if small else left > SMALL:
            self._split(block, size)
        block.free = False
        return block

    def give(self, block: Block | None) -> None:
        """It is free, together with its free neighbours."""
        if block is None:
            return
        if block.before is not None and block.before.free:
            self._forget(block.before)
            block = self._joined(block.before, block)
        if block.after is not None and block.after.free:
            self._forget(block.after)
            block = self._joined(block, block.after)
        self._keep(block)

    def _fitting(self, size: int, stream: str, small: bool) -> Block | None:
        """The smallest free block that holds it."""
        known = self._free.get((stream, small), [])
        at = bisect_left(known, (size, -1))
        return known.pop(at)[2] if at < len(known) else None

    def _segment(self, size: int, stream: str, small: bool) -> Block:
        if small:
            nbytes = SMALL_SEGMENT
        elif size < LARGE_ALONE:
            nbytes = LARGE_SEGMENT
        else:
            nbytes = -(-size // ROUND_LARGE) * ROUND_LARGE
        self.reserved += nbytes
        self._segments += 1
        return self._new(nbytes, stream, small, self._segments)

    def _new(self, nbytes: int, stream: str, small: bool, segment: int, at: int = 0) -> Block:
        self._made += 1
        return Block(nbytes, stream, small, self._made, segment, at)

    def _split(self, block: Block, size: int) -> None:
        rest = self._new(block.nbytes - size, block.stream, block.small, block.segment, block.at + size)
        rest.before, rest.after, block.nbytes = block, block.after, size
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        self._keep(rest)

    def _joined(self, first: Block, then: Block) -> Block:
        first.nbytes += then.nbytes
        first.after = then.after
        if then.after is not None:
            then.after.before = first
        return first

    def _keep(self, block: Block) -> None:
        block.free = True
        insort(self._free.setdefault((block.stream, block.small), []), (block.nbytes, block.number, block))

    def _forget(self, block: Block) -> None:
        known = self._free[block.stream, block.small]
        known.pop(bisect_left(known, (block.nbytes, block.number)))
