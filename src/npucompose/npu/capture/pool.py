"""The bytes that captures of FX graphs take of an NPU's pool, derived: torch's allocator, fed with the graph's values.

An interval, because a graph does not say all. At its low end results are computed in place wherever torch can, what a
capture returns may be overwritten by the next one, and no operator asks for a workspace; at its high end none of that
is so. `UNKNOWN` names these parts. No figure here was measured.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import fx
from torch.fx.passes.reinplace import _maybe_get_inplace_op

from npucompose.graphs import Allocation, Dependence, allocations
from npucompose.graphs.dependence import storage_of
from npucompose.graphs.effects import is_collective, stream_labels, tensors_in
from npucompose.schema.streams import DEFAULT_STREAM

# torch's caching allocator in numbers: what the pool of a capture reserves for requests and frees in their order.
# The constants are those of c10/core/AllocatorConfig.h (torch 2.13) and of torch_npu's NPUCachingAllocator.cpp, which
# agree; the large segments' size and the rule for splits are those of both files, with no option set
# (PYTORCH_NPU_ALLOC_CONF). Knows no graph.

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


PADDING = 32
"""Bytes that torch_npu 2.8 adds to each request, and later versions may not."""
LIBRARY_WORKSPACE = 20 * 2**20
"""What an operator's workspace may take beside as much as its operands and results have together; assumed. (Ascend C's
own libraries ask for 16 MiB on Atlas A2: GetLibApiWorkSpaceSize.)"""
UNKNOWN = (
    "workspaces of operators: CANN says their size on the device; at most as much as an operator's operands and "
    "results and 20 MiB is assumed",
    "which results TorchAir computes in place, and what is returned of one capture while the next is made",
    "whether torch_npu adds 32 bytes to each request, as 2.8 does",
)

Sizes = Mapping[Any, int]
"""{symbol of the graph's sizes: its number}."""


@frozen(kw_only=True)
class Request:
    """A value of the graph: who makes it and who mentions it last are places among the graph's steps."""

    nbytes: int
    stream: str
    first: int
    last: int | None
    """None: the graph returns it."""
    instead: int | None = None
    """The number of the request whose memory it may take over, because the operator can work in place."""


@frozen(kw_only=True)
class PoolRequests:
    """What one capture asks of its pool, in the order of its steps."""

    requests: tuple[Request, ...]
    workspaces: tuple[tuple[int, str, int], ...]
    """(step, stream, bytes of its operands and results) of each kernel."""


def requests_of(graph: fx.Graph, sizes: Sizes | None = None) -> PoolRequests:
    """Of a graph with its stream plan; `sizes` of symbols, else those that it was traced with."""
    sizes = sizes or {}
    needed, labels = Dependence.from_graph(graph), stream_labels(graph)
    place = {node: number for number, node in enumerate(graph.nodes)}
    made: list[Request] = []
    holding: dict[fx.Node, int] = {}
    for piece in sorted(allocations(graph, needed), key=lambda piece: place[piece.maker]):
        maker = piece.maker
        request = Request(
            nbytes=_nbytes(piece, sizes),
            stream=labels.get(maker, DEFAULT_STREAM),
            first=place[maker],
            last=None if piece.returned else place[piece.mentioned],
        )
        operand = holding.get(maker.args[0]) if maker.args and isinstance(maker.args[0], fx.Node) else None
        if operand is not None and _replaces(made[operand], request, maker):
            request = evolve(request, instead=operand)
        holding.update(dict.fromkeys(piece.holders, len(made)))
        made.append(request)
    kernels = [node for node in needed.kernels if not is_collective(node)]
    workspaces = ((place[node], labels.get(node, DEFAULT_STREAM), _touched(node, sizes)) for node in kernels)
    return PoolRequests(requests=tuple(made), workspaces=tuple(workspaces))


@frozen(kw_only=True)
class PoolRules:
    """What a capture does with its pool that its graph does not say."""

    in_place: bool = False
    """Operators write their results over operands that die with them."""
    keeps_results: bool = True
    """What a capture returned lives while the next one is made."""
    padding: int = 0
    """Bytes added to each request."""
    workspaces: bool = False
    """Each kernel asks for as large a workspace as is assumed of any."""


LEAST = PoolRules(in_place=True, keeps_results=False)
MOST = PoolRules(padding=PADDING, workspaces=True)


def pool_bytes(captures: Iterable[PoolRequests], *, shared: bool) -> tuple[int, int]:
    """(least, most) that the pools of these captures reserve, made in this order: one pool for all, or one for each."""
    known = list(captures)
    low, high = (reserved(known, rules, shared=shared) for rules in (LEAST, MOST))
    return low, max(low, high)


def reserved(captures: Sequence[PoolRequests], rules: PoolRules, *, shared: bool) -> int:
    """What their pools reserve under these rules."""
    if not shared:
        return sum(reserved([one], rules, shared=True) for one in captures)
    pool = CachingPool()
    for one in captures:
        _Walk(one, pool, rules).run()
    return pool.reserved


@define(eq=False)
class _Walk:
    """One capture's requests and frees, in the order of its steps."""

    capture: PoolRequests
    pool: CachingPool
    rules: PoolRules

    def run(self) -> None:
        owner = self._owners()
        starts = self._by_step((request.first, at) for at, request in enumerate(self.capture.requests))
        ends = self._by_step((last, at) for at, last in self._ends(owner).items() if last is not None)
        works = {step: (stream, nbytes) for step, stream, nbytes in self.capture.workspaces}
        blocks: dict[int, Block | None] = {}
        for step in sorted({*starts, *ends, *works}):
            for at in starts.get(step, ()):
                if owner[at] == at:
                    request = self.capture.requests[at]
                    blocks[at] = self.pool.take(self._padded(request.nbytes), request.stream)
            if self.rules.workspaces and step in works:
                stream, nbytes = works[step]
                self.pool.give(self.pool.take(self._padded(nbytes + LIBRARY_WORKSPACE), stream))
            for at in ends.get(step, ()):
                self.pool.give(blocks.pop(at))
        if not self.rules.keeps_results:
            for block in blocks.values():
                self.pool.give(block)

    def _owners(self) -> list[int]:
        """For each request the one in whose memory it lies."""
        owner: list[int] = []
        for at, request in enumerate(self.capture.requests):
            owner.append(owner[request.instead] if self.rules.in_place and request.instead is not None else at)
        return owner

    def _ends(self, owner: Sequence[int]) -> dict[int, int | None]:
        """{request that has memory: the step after which it is free}."""
        ends: dict[int, int | None] = {}
        for at, request in enumerate(self.capture.requests):
            ends[owner[at]] = request.last  # a later one lives longer
        return ends

    @staticmethod
    def _by_step(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for step, at in pairs:
            found.setdefault(step, []).append(at)
        return found

    def _padded(self, nbytes: int) -> int:
        return nbytes + self.rules.padding if nbytes else 0


def _replaces(operand: Request, result: Request, maker: fx.Node) -> bool:
    """Whether an operator can write its result over its operand, which dies here, is as large and of its stream."""
    alike = (operand.nbytes, operand.stream, operand.last) == (result.nbytes, result.stream, result.first)
    return alike and maker.op == "call_function" and _maybe_get_inplace_op(maker.target) is not None


def _nbytes(piece: Allocation, sizes: Sizes) -> int:
    parts = list(tensors_in(piece.maker.meta.get("val")))
    own = [part for part in parts if storage_of(part) == piece.storage] or parts
    return max((_bytes_of(part, sizes) for part in own), default=0)


def _touched(node: fx.Node, sizes: Sizes) -> int:
    values = [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]
    return sum(_bytes_of(tensor, sizes) for value in values for tensor in tensors_in(value))


def _bytes_of(tensor: torch.Tensor, sizes: Sizes) -> int:
    count = 1
    for size in tensor.shape:
        count *= _number(size, sizes)
    return count * tensor.dtype.itemsize


def _number(size: Any, sizes: Sizes) -> int:
    """A size as a number: the symbols' own values, or those they were traced with."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    found = size.node.expr.subs(sizes) if sizes else size.node.expr
    if found.is_number:
        return int(found)
    hint = size.node.hint
    return 0 if hint is None else int(hint)


def symbolic_sizes(graph: fx.Graph) -> Iterator[Any]:
    """The sizes among a traced graph's inputs that are symbols, as SymInts."""
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    sizes = (size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,)))
    return (size for size in sizes if isinstance(size, torch.SymInt) and size.node.expr.is_symbol)


def symbols_in(graph: fx.Graph, inputs: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """(symbol, its number) of the sizes of a traced graph that is called with `inputs`."""
    for node, value in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        traced = node.meta.get("val")
        if isinstance(traced, torch.SymInt):
            yield from _solved(traced, value)
        elif isinstance(traced, torch.Tensor) and isinstance(value, torch.Tensor):
            for size, number in zip(traced.shape, value.shape, strict=True):
                yield from _solved(size, number)


def _solved(size: Any, number: Any) -> Iterator[tuple[Any, int]]:
    if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
        yield size.node.expr, int(number)
