"""The caching allocator in numbers: torch's own rules, and nothing that lives overlaps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.npu.capture.pool import (
    BLOCK,
    LARGE_ALONE,
    LARGE_SEGMENT,
    ROUND_LARGE,
    SMALL,
    SMALL_SEGMENT,
    Block,
    CachingPool,
)
from tests.searches import examples


@pytest.mark.parametrize(
    ("nbytes", "reserved"),
    [
        (512, SMALL_SEGMENT),
        (SMALL, SMALL_SEGMENT),
        (SMALL + 512, LARGE_SEGMENT),
        (LARGE_ALONE - 512, LARGE_SEGMENT),
        (LARGE_ALONE, LARGE_ALONE),
        (LARGE_ALONE + 512, LARGE_ALONE + ROUND_LARGE),
        (0, 0),
    ],
)
def test_segments_are_those_of_torchs_own_test_of_cuda_graphs(nbytes: int, reserved: int) -> None:
    """test_graph_memory_stats_and_use_result_after_destroy_graph (torch/test/test_cuda.py) has these cases."""
    pool = CachingPool()
    pool.take(nbytes, "s")
    assert pool.reserved == reserved


def test_the_smallest_free_block_that_fits_is_taken() -> None:
    pool = CachingPool()
    blocks = [pool.take(size, "s") for size in (4 * BLOCK, BLOCK, 2 * BLOCK, BLOCK)]
    pool.give(blocks[0])
    pool.give(blocks[2])
    assert pool.take(2 * BLOCK, "s") is blocks[2]
    assert pool.take(3 * BLOCK, "s") is blocks[0]
    assert pool.reserved == SMALL_SEGMENT


def test_free_neighbours_become_one_block() -> None:
    pool = CachingPool()
    blocks = [pool.take(SMALL // 2, "s") for _ in range(4)]
    for block in blocks:
        pool.give(block)
    pool.take(SMALL, "s")
    pool.take(SMALL, "s")
    assert pool.reserved == SMALL_SEGMENT


def test_a_stream_does_not_get_what_another_one_freed() -> None:
    pool = CachingPool()
    pool.give(pool.take(BLOCK, "a"))
    pool.take(BLOCK, "b")
    assert pool.reserved == 2 * SMALL_SEGMENT


def test_a_large_block_is_split_only_where_more_than_one_mebibyte_is_left() -> None:
    pool = CachingPool()
    whole = pool.take(LARGE_ALONE, "s")
    pool.give(whole)
    assert pool.take(LARGE_ALONE - SMALL, "s") is whole
    pool.take(2 * SMALL, "s")
    assert pool.reserved == LARGE_ALONE + LARGE_SEGMENT


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * LARGE_ALONE), st.sampled_from("ab"), st.integers(0, 3)), max_size=40))
def test_what_is_reserved_is_what_is_taken_and_what_is_free(asked: list[tuple[int, str, int]]) -> None:
    """In any order of requests and frees: pieces add up, and a pool that was emptied serves the same without more."""
    pool = CachingPool()
    taken: list[Block | None] = []
    for nbytes, stream, drop in asked:
        taken.append(pool.take(nbytes, stream))
        for _ in range(min(drop, len(taken) - 1)):
            pool.give(taken.pop(0))
        free = sum(nbytes for known in pool._free.values() for nbytes, _, _ in known)
        assert free + sum(block.nbytes for block in taken if block is not None) == pool.reserved
    for block in taken:
        pool.give(block)
    before = pool.reserved
    for nbytes, stream, _ in asked:
        pool.give(pool.take(nbytes, stream))
    assert pool.reserved == before
