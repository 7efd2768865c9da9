"""Where blocks are put, step by step: gaps, windows of time, and what is told of the whole."""

from __future__ import annotations

import random

import pytest

from npucompose import placement as pool
from npucompose.placement import ALIGNMENT, MemoryBlock, place


def blocks(*given: tuple[int, int, int]) -> list[MemoryBlock]:
    return [MemoryBlock(nbytes=nbytes, first=first, last=last) for nbytes, first, last in given]


def test_sizes_are_rounded_up_to_what_torchs_allocator_gives() -> None:
    assert ALIGNMENT == 64
    assert [pool.aligned(n) for n in (0, 1, 63, 64, 65, 128)] == [0, 64, 64, 64, 128, 128]


def test_nothing_takes_no_place() -> None:
    found = place([])
    assert (found.offsets, found.pool_bytes, found.unplanned_bytes, found.live_bytes) == ((), 0, 0, 0)
    empty = place(blocks((0, 0, 5), (64, 0, 5)))
    assert (empty.offsets, empty.pool_bytes, empty.live_bytes) == ((0, 0), 64, 64)


def test_blocks_share_a_place_where_one_ends_before_the_other_begins() -> None:
    for first, offsets in ((1, (0, 64)), (2, (0, 0))):
        found = place(blocks((64, 0, 1), (64, first, 3)))
        assert found.offsets == offsets
        assert found.pool_bytes == max(offsets) + 64


def test_the_largest_comes_first_and_of_equals_the_one_that_begins_first() -> None:
    assert place(blocks((64, 0, 9), (128, 0, 9), (64, 0, 9))).offsets == (128, 0, 192)
    assert place(blocks((64, 5, 9), (64, 0, 9))).offsets == (64, 0)


BETTER_OTHERWISE = ((128, 1, 4), (192, 2, 5), (128, 0, 1), (192, 0, 0))
"""The largest first takes 448 bytes, 320 are enough."""


def test_what_lies_highest_comes_first_where_the_largest_first_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = blocks(*BETTER_OTHERWISE)
    found = place(made)
    assert (found.offsets, found.pool_bytes, found.live_bytes) == ((0, 128, 192, 0), 320, 320)
    for limit in ("_ORDERS", "_MOST_LAID"):
        with monkeypatch.context() as patch:
            patch.setattr(pool, limit, 0)
            assert place(made).pool_bytes == 448


def test_another_order_is_taken_only_where_it_takes_less() -> None:
    rng, gained = random.Random(0), 0
    for _ in range(200):
        first = [rng.randrange(40) for _ in range(30)]
        made = blocks(*((64 * rng.randint(1, 9), at, at + rng.randrange(12)) for at in first))
        sizes = [block.nbytes for block in made]
        order = sorted(range(len(made)), key=lambda i: (-sizes[i], made[i].first))
        greedy, found = pool._laid(order, made, sizes, None), place(made)
        assert found.live_bytes <= found.pool_bytes <= greedy[1]
        assert found.pool_bytes < greedy[1] or found.offsets == tuple(greedy[0])
        gained += found.pool_bytes < greedy[1]
    assert gained > 50


def test_what_is_told_of_the_whole() -> None:
    made = blocks((65, 0, 1), (64, 1, 2), (200, 4, 4))
    found = place(made)
    assert found.unplanned_bytes == 128 + 64 + 256
    assert found.live_bytes == 256
    assert place(made, unplanned=[1, 65]).unplanned_bytes == 64 + 128
    assert place(blocks((64, 0, 1), (64, 1, 1), (64, 2, 2))).live_bytes == 128


@pytest.mark.parametrize(
    ("taken", "size", "offset"),
    [
        ([], 64, 0),
        ([(0, 64)], 64, 64),
        ([(64, 128)], 64, 0),
        ([(64, 128)], 65, 128),
        ([(0, 64), (128, 192)], 64, 64),
        ([(128, 192), (256, 320)], 64, 192),
        ([(64, 128), (192, 256)], 64, 0),
        ([(0, 256), (64, 128), (320, 384)], 64, 256),
    ],
)
def test_a_block_lies_in_the_tightest_gap_the_first_of_equals_or_behind_all(
    taken: list[tuple[int, int]], size: int, offset: int
) -> None:
    assert pool._best_gap(taken, size) == offset


@pytest.mark.parametrize("length", [1, 70, 150, 250, 400, 700])
def test_what_lives_beside_a_block_is_found_whatever_windows_it_spans(length: int) -> None:
    drawn = random.Random(length)
    placed, spans = pool._Placed(), []
    for k in range(60):
        first = drawn.randrange(900)
        span = (64 * k, 64 * k + 64, first, first + drawn.choice((0, 3, 64, 300)))
        drawn.shuffle(spans)
        spans.append(span)
    for span in spans:
        placed.add(span)
    for begin in (0, 63, 64, 127, 500):
        last = begin + length - 1
        beside = [(low, high) for low, high, born, died in sorted(spans) if born <= last and died >= begin]
        assert placed.beside(begin, last) == beside, "by where they begin"


def test_where_steps_do_not_follow_one_another_somebody_else_says_who_meets() -> None:
    made = blocks((64, 0, 0), (64, 5, 5), (64, 9, 9))
    meeting = [{0, 1}, {0, 1}, {2}]
    found = place(made, interferes=lambda index: [other in meeting[index] for other in range(3)])
    assert found.offsets == (0, 64, 0)
    assert found.pool_bytes == 128
    assert place(made, interferes=lambda index: [True] * 3).offsets == (0, 64, 128)
    assert place(blocks((64, 0, 0), (128, 0, 0), (64, 0, 0)), interferes=lambda index: [True] * 3).offsets == (
        128,
        0,
        192,
    )
