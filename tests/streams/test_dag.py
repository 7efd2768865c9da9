"""Graphs of plain numbers: edges both ways, legal orders, circles, reach, the edges that matter, urgency, bit sets."""

from __future__ import annotations

import pytest

from npucompose.streams import dag
from tests.streams.dags import Dag

DIAMOND: Dag = [[1, 2], [3], [3], []]
IMPLIED: Dag = [[3, 1, 2, 1], [2, 3], [3], []]
"""Each edge but 0 -> 1 -> 2 -> 3 is implied by a longer path, and one is written twice."""


def test_edges_are_kept_in_their_order_and_as_often_as_they_come() -> None:
    assert dag.successors(3, [(0, 2), (0, 1), (1, 2), (0, 2)]) == [[2, 1, 2], [2], []]
    assert dag.successors(0, []) == []


def test_predecessors_are_the_edges_read_backwards() -> None:
    assert dag.predecessors(DIAMOND) == [[], [0], [0], [1, 2]]
    assert dag.predecessors([[2, 1], [2], []]) == [[], [0], [0, 1]]


@pytest.mark.parametrize(
    ("then", "order"),
    [
        ([], []),
        ([[], [], []], [0, 1, 2]),
        (DIAMOND, [0, 1, 2, 3]),
        ([[], [0], [1], [0]], [2, 1, 3, 0]),
        ([[3], [2], [], [], [0]], [1, 2, 4, 0, 3]),
        ([[1, 1], []], [0, 1]),
    ],
)
def test_of_what_may_come_next_the_lowest_number_comes(then: Dag, order: list[int]) -> None:
    assert dag.topological(then) == (order, [])


@pytest.mark.parametrize(
    ("then", "order", "circle"),
    [
        ([[0]], [], [0, 0]),
        ([[1], [0]], [], [0, 1, 0]),
        ([[], [3], [1], [2]], [0], [1, 3, 2, 1]),
        ([[1], [2], [3], [1]], [0], [1, 2, 3, 1]),  # what leads into a circle is no part of it
        ([[], [2], [1, 0]], [], [1, 2, 1]),  # nor is what it leads to
        ([[1, 2], [0], [3], [2]], [], [0, 1, 0]),
        ([[1, 3], [2], [], [4], [3]], [0, 1, 2], [3, 4, 3]),
    ],
)
def test_a_circle_begins_and_ends_with_its_lowest_node(then: Dag, order: list[int], circle: list[int]) -> None:
    assert dag.topological(then) == (order, circle)


def test_descendants_and_ancestors_are_reach_with_the_node_itself() -> None:
    assert dag.descendants(DIAMOND) == [0b1111, 0b1010, 0b1100, 0b1000]
    assert dag.ancestors(DIAMOND) == [0b0001, 0b0011, 0b0101, 0b1111]
    assert dag.descendants([[], []]) == dag.ancestors([[], []]) == [0b01, 0b10]
    assert dag.descendants([]) == dag.ancestors([]) == []


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (IMPLIED, [[1], [2], [3], []]),
        (DIAMOND, DIAMOND),
        ([[2, 1], [], []], [[1, 2], [], []]),
        ([[1, 1], []], [[1], []]),
        ([[8, 1], [8], *([] for _ in range(7))], [[1], [8], *([] for _ in range(7))]),
    ],
)
def test_what_a_longer_path_says_is_left_out(then: Dag, kept: Dag) -> None:
    assert dag.minimum_equivalent(then, dag.descendants(then)) == kept


def test_a_reduction_leaves_the_graph_that_it_was_made_of() -> None:
    then: Dag = [[1], []]
    dag.minimum_equivalent(then, dag.descendants(then))[0].append(5)
    assert then == [[1], []]


def test_urgency_is_the_heaviest_path_with_the_node_itself() -> None:
    weights = [1.0, 5.0, 2.0, 4.0]
    assert dag.longest_paths(weights, DIAMOND) == [10.0, 9.0, 6.0, 4.0]
    assert dag.longest_paths([3.0, 2.0], [[], []]) == [3.0, 2.0]
    assert weights == [1.0, 5.0, 2.0, 4.0]


@pytest.mark.parametrize(("mask", "members"), [(0, []), (1, [0]), (0b1011, [0, 1, 3]), (1 << 70 | 4, [2, 70])])
def test_the_members_of_a_bit_set_come_lowest_first(mask: int, members: list[int]) -> None:
    assert list(dag.bits(mask)) == members
