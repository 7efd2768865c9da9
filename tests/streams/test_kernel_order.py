"""The list that kernels of several streams stand in, and the events that such a list needs."""

from __future__ import annotations

import pytest

from npucompose.streams import dag
from npucompose.streams.events import fewest_events, in_runs

Pairs = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("streams", "then", "ranked", "order"),
    [
        ([], [], [], []),
        ([0, 1, 0], [[], [], []], [0, 1, 2], [0, 2, 1]),
        ([0, 1, 0], [[], [], []], [1, 0, 2], [1, 0, 2]),  # the stream whose next kernel ranks first comes first
        ([0, 1, 0, 1], [[], [2], [], []], [0, 1, 2, 3], [0, 1, 3, 2]),  # 2 has to wait for 1, which stays on its stream
        ([0, 1, 0, 1], [[], [2, 2], [], []], [0, 1, 2, 3], [0, 1, 3, 2]),
        ([2, 0, 1], [[], [], []], [2, 0, 1], [2, 0, 1]),
        ([0, 0, 0], [[], [], []], [2, 1, 0], [2, 1, 0]),  # a stream's own order is the ranking's
        ([0, 1, 1, 0], [[1, 2], [3], [3], []], [0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 1, 2, 0], [[2], [3], [], []], [0, 1, 3, 2], [0, 1, 3, 2]),
    ],
)
def test_streams_stand_in_long_runs(
    streams: list[int], then: list[list[int]], ranked: list[int], order: list[int]
) -> None:
    assert in_runs(streams, then, ranked) == order


@pytest.mark.parametrize(
    ("order", "streams", "edges", "events"),
    [
        ([], [], [], []),
        ([0, 1], [0, 0], [(0, 1)], []),
        ([0, 1], [0, 1], [(0, 1)], [(0, 1)]),
        ([0, 1], [1, 0], [(0, 1)], [(0, 1)]),
        ([0, 1, 2], [0, 1, 0], [(0, 2), (1, 2)], [(1, 2)]),
        ([0, 1, 2], [0, 0, 1], [(0, 2), (1, 2)], [(1, 2)]),  # the later of two on one stream is enough
        ([0, 1, 2], [0, 0, 1], [(1, 2), (0, 2)], [(1, 2)]),
        ([0, 1, 2], [0, 1, 1], [(0, 1), (0, 2)], [(0, 1)]),  # who waited before knows already
        ([0, 1, 2], [0, 1, 2], [(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2)]),  # known through another stream
        ([0, 1, 2], [0, 1, 2], [(0, 1), (1, 2)], [(0, 1), (1, 2)]),
        ([0, 1, 2], [0, 1, 2], [(0, 2), (1, 2)], [(0, 2), (1, 2)]),
        ([0, 1, 2, 3], [0, 1, 1, 0], [(0, 1), (2, 3)], [(0, 1), (2, 3)]),
        ([1, 0, 2], [0, 0, 1], [(0, 2), (1, 2)], [(0, 2)]),  # places in the list count, not numbers
        ([2, 0, 1], [1, 2, 0], [(2, 0), (0, 1), (2, 1)], [(2, 0), (0, 1)]),
        ([0, 1, 2, 3], [0, 1, 2, 3], [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)], [(0, 1), (0, 2), (1, 3), (2, 3)]),
        # 1 knows the stream of 0 only until 0: the wait for 2, which comes later on it, stays
        ([0, 1, 2, 3], [0, 1, 0, 2], [(0, 1), (1, 3), (2, 3)], [(1, 3), (2, 3), (0, 1)]),
        # what stream 2 learnt of stream 0 it still knows after it has waited for stream 1, which knows less
        ([0, 1, 2, 3, 4], [1, 0, 2, 2, 2], [(1, 2), (0, 3), (1, 4)], [(1, 2), (0, 3)]),
        ([0, 1, 2, 3], [0, 0, 1, 1], [(0, 2), (1, 3)], [(0, 2), (1, 3)]),
    ],
)
def test_the_events_that_an_order_needs(order: list[int], streams: list[int], edges: Pairs, events: Pairs) -> None:
    found = fewest_events(order, streams, edges)
    assert sorted(found) == sorted(events)
    place = {index: at for at, index in enumerate(order)}
    assert [place[waiter] for _, waiter in found] == sorted(place[waiter] for _, waiter in found)


def test_two_kernels_on_one_stream_are_no_event_whoever_else_waits() -> None:
    then = dag.successors(4, edges := [(0, 1), (0, 2), (1, 3), (2, 3)])
    order = in_runs([0, 0, 1, 0], then, range(4))
    assert order == [0, 1, 2, 3]
    assert fewest_events(order, [0, 0, 1, 0], edges) == [(0, 2), (2, 3)]
