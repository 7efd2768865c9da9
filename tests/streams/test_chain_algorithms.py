"""Chains one by one: what each algorithm cuts a graph into, how they are joined, and the stream each is laid on."""

from __future__ import annotations

import pytest

from npucompose.streams import dag
from npucompose.streams.strategies import chains
from npucompose.streams.strategies.chains import Shape, fewest_paths, fewest_streams, fewest_syncs, laid_on
from tests.streams.dags import Dag

ONE = 1.0


def shape_of(then: Dag, *weights: float) -> Shape:
    return Shape.from_work(then, list(weights) or [ONE] * len(then))


def test_a_shape_holds_reach_both_ways_and_the_edges_that_matter() -> None:
    then: Dag = [[1, 2, 3], [3], [3], []]
    shape = shape_of(then, 1.0, 2.0, 5.0, 1.0)
    assert shape.then is then
    assert list(shape.behind) == [0b1111, 0b1010, 0b1100, 0b1000]
    assert list(shape.ahead) == [0b0001, 0b0011, 0b0101, 0b1111]
    assert list(shape.needed) == [[2, 1], [3], [3], []]  # 0 -> 3 is implied; the heavier branch comes first
    assert list(shape.weights) == [1.0, 2.0, 5.0, 1.0]


def test_of_equal_branches_the_lower_number_comes_first() -> None:
    assert shape_of([[2, 1], [], []]).needed[0] == [1, 2]
    assert shape_of([[2, 1], [], []], 1.0, 1.0, 2.0).needed[0] == [2, 1]


IMPLIED: Dag = [[2, 1], [2, 3], [], []]
"""0 -> 2 goes without saying, and a matching on the edges as they are takes it."""
WIDE: Dag = [[2], [2], [3, 4], [], []]
"""Two into one into two."""


@pytest.mark.parametrize(
    ("then", "syncs", "streams", "paths"),
    [
        ([], [], [], []),
        ([[]], [[0]], [[0]], [[0]]),
        ([[], []], [[0], [1]], [[0], [1]], [[0], [1]]),
        (IMPLIED, [[0, 1, 2], [3]], [[0, 1, 2], [3]], [[0, 2], [1, 3]]),
        (WIDE, [[0, 2, 3], [1, 4]], [[0, 2, 3], [1, 4]], [[0, 2, 3], [1], [4]]),
        # the branch with more behind it goes on in the chain; without reduction the first one
        ([[1], [2, 3], [], [4], []], [[0, 1, 3, 4], [2]], [[0, 1, 3, 4], [2]], [[0, 1, 2], [3, 4]]),
    ],
)
def test_what_each_algorithm_cuts_a_graph_into(then: Dag, syncs: Dag, streams: Dag, paths: Dag) -> None:
    shape = shape_of(then)
    assert fewest_syncs(shape) == syncs
    assert fewest_streams(shape) == streams
    assert fewest_paths(then) == paths


def test_a_path_takes_each_direct_edge_once() -> None:
    assert fewest_paths([[1, 1], []]) == [[0, 1]]


def test_chains_stand_in_the_order_of_their_first_nodes() -> None:
    assert chains._follow([3, chains.NONE, 1, chains.NONE]) == [[0, 3], [2, 1]]
    assert chains._follow([]) == []


@pytest.mark.parametrize(
    ("parts", "then", "joined"),
    [
        ([], [], []),
        ([[0, 1]], [[1], []], [[0, 1]]),
        ([[0], [1]], [[], []], [[0], [1]]),
        ([[0], [1]], [[1], []], [[0, 1]]),
        ([[0, 2], [1, 3]], [[2], [3], [], []], [[0, 2], [1, 3]]),
        ([[0, 1], [2], [3]], [[1], [3], [3], []], [[0, 1, 3], [2]]),
        ([[0], [1, 3], [2]], [[1, 2], [3], [], []], [[0, 1, 3], [2]]),
    ],
)
def test_chains_are_joined_where_the_end_of_one_reaches_the_beginning_of_another(
    parts: Dag, then: Dag, joined: Dag
) -> None:
    assert chains._merged(parts, shape_of(then)) == joined


def test_as_many_chains_as_streams_keep_a_stream_each() -> None:
    shape = shape_of([[2], [], []])
    assert laid_on([[0, 2], [1]], shape, 2) == [0, 1, 0]
    assert laid_on([[1], [0, 2]], shape, 2) == [1, 0, 1]
    assert laid_on([[0, 2], [1]], shape, 5) == [0, 1, 0]
    assert laid_on([], shape_of([]), 2) == []


@pytest.mark.parametrize(
    ("then", "weights", "parts", "streams", "found"),
    [
        # independent kernels: the heaviest first, each where the load is least
        ([[], [], []], [5.0, 3.0, 2.0], [[0], [1], [2]], 2, [0, 1, 1]),
        ([[], [], []], [2.0, 3.0, 5.0], [[0], [1], [2]], 2, [1, 1, 0]),
        ([[], [], []], [1.0, 1.0, 1.0], [[0], [1], [2]], 2, [0, 1, 0]),  # equal ones by their first node
        ([[], [], []], [1.0, 1.0, 1.0], [[2], [1], [0]], 2, [0, 1, 0]),
        ([[3], [2], [], [], []], [1.0] * 5, [[0, 3], [1, 2], [4]], 2, [0, 1, 1, 0, 0]),
        ([[], [], []], [1.0, 1.0, 1.0], [[0], [1], [2]], 1, [0, 0, 0]),
        # a kernel that has to wait for another anyway goes behind it
        ([[2], [], []], [3.0, 3.0, 1.0], [[0], [1], [2]], 2, [0, 1, 0]),
        ([[], [2], []], [3.0, 3.0, 1.0], [[0], [1], [2]], 2, [0, 1, 1]),
        ([[2], [2], []], [3.0, 3.0, 1.0], [[0], [1], [2]], 2, [0, 1, 0]),
        # also where it has to be done before another, through a third
        ([[1], [3], [], []], [1.0, 0.0, 3.0, 3.0], [[0], [1], [2], [3]], 2, [1, 1, 0, 1]),
        # behind the one that it would need an event of, though that stream has more to do
        ([[3], [2], [3], []], [5.0, 4.0, 0.0, 1.0], [[0], [1], [2], [3]], 2, [0, 1, 1, 0]),
        # weights of nothing do no harm
        ([[], [], []], [0.0, 0.0, 0.0], [[0], [1], [2]], 2, [0, 1, 0]),
    ],
)
def test_chains_are_laid_heaviest_first(
    then: Dag, weights: list[float], parts: Dag, streams: int, found: list[int]
) -> None:
    assert laid_on(parts, shape_of(then, *weights), streams) == found


def lane(*nodes: int, load: float = 0.0) -> chains._ChainStream:
    made = chains._ChainStream()
    if nodes:
        made.take(nodes, load)
    return made


def test_a_lane_remembers_its_members_their_order_and_their_load() -> None:
    made = lane(4, 1, load=2.5)
    made.take([0], 1.0)
    assert (made.members, made.nodes, made.load) == (0b10011, [4, 1, 0], 3.5)


@pytest.mark.parametrize(
    ("members", "chain", "ordered", "near", "load", "share", "score"),
    [
        ([], [0], 0, 0, 0.0, 1.0, 2),  # a new stream has its price
        ([1], [0], 0, 0, 0.0, 1.0, 4),  # a kernel that could have run beside
        ([1, 2], [0], 0, 0, 0.0, 1.0, 4),  # of the shorter of the two as many as there are
        ([1, 2], [0, 3], 0, 0, 0.0, 1.0, 8),
        ([1], [0, 3], 0, 0, 0.0, 1.0, 4),
        ([1], [0], 0b10, 0, 0.0, 1.0, 0),  # it could not: it waits anyway
        ([1], [0], 0b10, 0b10, 0.0, 1.0, -3),  # and an event falls away
        ([1, 2], [0], 0b110, 0b110, 0.0, 1.0, -6),
        ([1], [0], 0b10, 0, 6.0, 2.0, 6),  # two for each even share of the load
        ([1], [0, 3], 0b10, 0, 6.0, 2.0, 12),  # and for each kernel
        ([1], [0], 0, 0b10, 4.0, 2.0, 5),
    ],
)
def test_the_score_weighs_conflicts_events_load_and_new_streams(
    members: list[int], chain: list[int], ordered: int, near: int, load: float, share: float, score: float
) -> None:
    assert chains._score(lane(*members, load=load), chain, ordered, near, share) == score


def test_what_is_near_are_the_neighbours_of_every_kernel_of_a_chain_on_both_sides() -> None:
    """The chain 2 -> 3 is tied to 0 by the edge into its beginning, to 4 by the one out of its end: two against one."""
    then: Dag = [[2], [5], [3], [4], [], []]
    assert laid_on([[0, 4], [1, 5], [2, 3]], shape_of(then, 9.0, 8.0, 1.0, 1.0, 9.0, 8.0), 2) == [0, 1, 0, 0, 0, 1]


def test_reach_and_shape_are_those_of_the_graph() -> None:
    then: Dag = [[1], [2], []]
    shape = shape_of(then)
    assert (list(shape.behind), list(shape.ahead)) == (dag.descendants(then), dag.ancestors(then))
