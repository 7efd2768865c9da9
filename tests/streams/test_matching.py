"""Maximum matchings: which pairs are found, which wishes are kept, and how a phase of each search behaves."""

from __future__ import annotations

import random

import pytest

from npucompose.streams import dag
from npucompose.streams.dag import NONE, by_bits, hopcroft_karp


def test_who_has_no_partner_has_minus_one() -> None:
    assert hopcroft_karp([[0], []]) == by_bits([1, 0]) == [0, -1]


def mask(targets: list[int]) -> int:
    return sum(1 << right for right in set(targets))


def valid(adjacency: list[list[int]], partner: list[int]) -> int:
    """The number of pairs, after a look that each is an edge and no right vertex has two."""
    pairs = [(left, right) for left, right in enumerate(partner) if right != NONE]
    assert len(partner) == len(adjacency)
    assert all(right in adjacency[left] for left, right in pairs)
    assert len({right for _, right in pairs}) == len(pairs)
    return len(pairs)


@pytest.mark.parametrize(
    ("adjacency", "partner"),
    [
        ([], []),
        ([[], []], [NONE, NONE]),
        ([[1, 2], [2], []], [1, 2, NONE]),
        ([[2, 1], [1], []], [2, 1, NONE]),  # the order of a list is a wish
        ([[1, 0], [0], []], [1, 0, NONE]),
        ([[0, 1], [0], []], [1, 0, NONE]),
        ([[0, 1], [0, 2], [0]], [1, 2, 0]),
        ([[0], [0], [0]], [0, NONE, NONE]),
        ([[0, 1], [1, 2], [2, 3], [0]], [1, 2, 3, 0]),  # one path through all that are matched
    ],
)
def test_the_pairs_of_a_small_graph(adjacency: list[list[int]], partner: list[int]) -> None:
    assert hopcroft_karp(adjacency) == partner


@pytest.mark.parametrize(
    ("masks", "partner"),
    [
        ([], []),
        ([0, 0], [NONE, NONE]),
        ([0b110, 0b100, 0], [1, 2, NONE]),
        ([0b011, 0b001, 0], [1, 0, NONE]),
        ([0b001, 0b001, 0b001], [0, NONE, NONE]),
        ([0b0011, 0b0110, 0b1100, 0b0001], [1, 2, 3, 0]),
    ],
)
def test_the_pairs_of_a_small_graph_in_bits(masks: list[int], partner: list[int]) -> None:
    assert by_bits(masks) == partner


def test_a_matching_to_start_from_is_kept_where_nothing_is_gained() -> None:
    given = [1, 0]
    assert by_bits([0b11, 0b11], given) == [1, 0]
    assert by_bits([0b11, 0b11, 0], [NONE, 0, NONE]) == [1, 0, NONE]
    assert given == [1, 0]


def test_a_matching_to_start_from_is_not_written() -> None:
    given = [0, NONE]
    assert by_bits([0b11, 0b01], given) == [1, 0]
    assert given == [0, NONE]


def test_searches_that_fail_look_at_each_vertex_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last phase finds nothing for those that are left over, and there is no phase after it."""
    calls: list[tuple[int, int]] = []
    real = dag._search

    def counted(root: int, adjacency: list[int], partner: list[int], owner: dict[int, int], unseen: int) -> object:
        calls.append((root, unseen))
        return real(root, adjacency, partner, owner, unseen)

    monkeypatch.setattr(dag, "_search", counted)
    assert by_bits([0b001, 0b001, 0b001]) == [0, NONE, NONE]
    assert calls == [(1, 0b111), (2, 0b110)]


def test_only_those_without_a_partner_and_with_a_candidate_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[int] = []
    real = dag._augment
    monkeypatch.setattr(dag, "_augment", lambda root, *rest: (roots.append(root), real(root, *rest)))
    hopcroft_karp([[0, 1], [0], [], []])
    assert roots == [1]


@pytest.mark.parametrize(
    ("adjacency", "partner", "levels", "found"),
    [
        ([[1], []], [1, NONE], [NONE, NONE], False),
        ([[0, 1], [0], []], [0, NONE, NONE], [1, 0, NONE], True),  # a free right vertex one step further
        ([[1], []], [NONE, NONE], [0, NONE], True),
        ([[0], [0], [0]], [0, NONE, NONE], [1, 0, 0], False),
        ([[3, 1], [2], [], []], [NONE, 1, NONE, NONE], [0, 1, NONE, NONE], True),
        ([[1, 3], [1, 2], [2], []], [NONE, 1, 2, NONE], [0, 1, NONE, NONE], True),  # nothing beyond the depth it needs
    ],
)
def test_levels_count_the_steps_from_those_without_a_partner(
    adjacency: list[list[int]], partner: list[int], levels: list[int], found: bool
) -> None:
    owner = [NONE] * len(adjacency)
    for left, right in enumerate(partner):
        if right != NONE:
            owner[right] = left
    assert dag._levels(adjacency, partner, owner) == (levels, found)


def test_both_searches_agree_on_random_graphs() -> None:
    """Large enough that a greedy beginning misses pairs and that paths are long."""
    for seed in range(60):
        chance = random.Random(seed)
        count = chance.randint(8, 40)
        adjacency = [chance.sample(range(count), k=chance.choice([0, 1, 1, 2, 2, 3])) for _ in range(count)]
        masks = [mask(targets) for targets in adjacency]
        sizes = {
            valid(adjacency, found)
            for found in (hopcroft_karp(adjacency), by_bits(masks), by_bits(masks, hopcroft_karp(adjacency)))
        }
        assert len(sizes) == 1


def test_a_long_path_is_found_in_both() -> None:
    """Each but the last took its first wish; the last one's only wish moves all of them."""
    adjacency = [[k, k + 1] for k in range(30)] + [[0]]
    wanted = [*range(1, 31), 0]
    assert hopcroft_karp(adjacency) == wanted
    assert by_bits([mask(targets) for targets in adjacency]) == wanted
