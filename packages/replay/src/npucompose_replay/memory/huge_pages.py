"""The weights of a recording on huge pages, where Linux has some.

# Note [Weights on huge pages]
A replay walks through all weights of the graph. The processor looks up where each page of 4 KiB lies, and remembers
some thousand of them: with more weights than that it looks into tables in memory for each page, on every replay. A huge
page is 2 MiB and one look. ResNet-18 (45 MiB of packed weights) replays 1.06 times as fast, gpt_decode 1.13 times.

`madvise(MADV_COLLAPSE)` (Linux 6.1, madvise(2)) moves what lies in 512 pages to a huge one, once, whoever allocated it
and whatever the system's settings of huge pages are. Where it cannot, everything stays as it was. It takes 2 to 8 ms a
page, so the time for it is bounded: what is left over stays on small pages. A call for many pages may end at the first
that cannot be moved just now, for want of free memory in one piece: then its pages are asked for one at a time.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch

from npucompose_replay.operands import span_of
from npucompose_replay.packed_weights import packed_in
from npucompose_replay.plan import Plan

HUGE = 2 << 20
"""Bytes of a huge page, of x86-64 and of Arm with pages of 4 KiB."""
LEAST = 8 << 20
"""The pages of fewer bytes are all remembered (2048 on an Intel server's core, 3072 and more on AMD's)."""
AT_ONCE = 16 * HUGE
LIMIT_S = 1.0
MADV_COLLAPSE = 25
_MOVED: WeakKeyDictionary[Plan, Sequence[tuple[int, int]]] = WeakKeyDictionary()
"""Where the weights are, (begin, end), of each recording that some were moved for, as long as it lives."""


@functools.cache
def collapse_call() -> Callable[[int, int], int] | None:
    """`(begin, bytes)`; None where the system has no such call."""
    if not sys.platform.startswith("linux"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return lambda begin, nbytes: madvise(begin, nbytes, MADV_COLLAPSE)


def weights_of(
    plan: Plan, static: frozenset[int], address_of_packed: Callable[[torch.Tensor], int] | None
) -> Iterator[tuple[int, int]]:
    """(begin, end) of what every replay finds in one place: `static` inputs and constants, packed ones among them."""
    for root in plan.roots:
        if root.kind in ("attribute", "constant") or (root.kind == "input" and root.index in static):
            yield span_of(root.contents)
    if address_of_packed is None:
        return
    for weight in packed_in(plan):
        if begin := address_of_packed(weight):
            yield begin, begin + torch.ops.mkldnn._nbytes(weight)


def move_weights(plan: Plan, static: frozenset[int], address_of_packed: Callable[[torch.Tensor], int] | None) -> None:
    """Those of `weights_of`, now and at each `move_again`."""
    spans = [*weights_of(plan, static, address_of_packed)]
    if move_to_huge_pages(spans):
        _MOVED[plan] = spans


def move_again() -> None:
    """What lay on huge pages that somebody has taken apart; one that is whole takes no time."""
    move_to_huge_pages(span for spans in [*_MOVED.values()] for span in spans)


def move_to_huge_pages(spans: Iterable[tuple[int, int]]) -> bool:
    """Whole pages that lie for the greater part in `spans`, (begin, end), for LIMIT_S at most; see the Note. Whether
    any was moved, or lay on a huge page already."""
    known = sorted(span for span in set(spans) if span[0] < span[1])
    collapse = collapse_call()
    if collapse is None or sum(end - begin for begin, end in known) < LEAST:
        return False
    until = time.monotonic() + LIMIT_S
    moved = False
    left = deque(part for begin, end in whole_pages(known) for part in _parts(begin, end, AT_ONCE))
    while left and time.monotonic() <= until:
        begin, end = left.popleft()
        if collapse(begin, end - begin) == 0:
            moved = True
        elif end - begin > HUGE:
            left.extendleft(reversed([*_parts(begin, end, HUGE)]))
    return moved


def _parts(begin: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of `step` bytes each, and of what is left."""
    return ((at, min(at + step, end)) for at in range(begin, end, step))


def whole_pages(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Of spans in order, what is next to one another taken together: to the nearest multiples of a huge page."""
    begin = end = -HUGE
    for first, last in (*spans, (sys.maxsize, sys.maxsize)):
        if first - end <= HUGE // 2:  # malloc's own words lie between two tensors
            end = max(end, last)
            continue
        low, high = ((place + HUGE // 2) // HUGE * HUGE for place in (begin, end))
        if low < high:
            yield low, high
        begin, end = first, last
