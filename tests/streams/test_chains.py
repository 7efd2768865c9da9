"""Chains, matchings and reductions against the research's exact answers and against brute force."""

from __future__ import annotations

import pytest

from npucompose.streams import dag
from npucompose.streams.dag import NONE, by_bits, hopcroft_karp
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.strategies.chains import Shape, fewest_paths, fewest_streams, fewest_syncs, laid_on
from tests.streams import dags
from tests.streams.dags import Dag, pairs, small_dag

RANDOM = 1000
GRAPHS = pytest.mark.parametrize("graphs", [60, pytest.param(RANDOM, marks=pytest.mark.slow)])


def shape_of(then: Dag) -> Shape:
    return Shape.from_work(then, [1.0] * len(then))


def syncs(then: Dag, streams: list[int]) -> int:
    """The events of a plan whose streams keep the numbers' order."""
    return len(fewest_events(in_runs(streams, then, range(len(then))), streams, pairs(then)))


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "reduced", "matched", "events", "streams"),
    [
        ("DIAMOND", 4, 4, 4, 2, 2, 2),
        ("MM_ABS_SUB", 5, 6, 5, 3, 2, 2),
        ("INCEPTION_A", 10, 12, 12, 6, 6, 4),
        ("INCEPTION_E", 12, 16, 16, 6, 10, 6),
        ("NASNET_A", 18, 26, 25, 8, 17, 10),
        ("MOE", 12, 15, 12, 10, 2, 2),
        ("MLA", 17, 19, 19, 13, 6, 4),
    ],
)
def test_published_graphs_have_their_exact_answers(
    name: str, nodes: int, edges: int, reduced: int, matched: int, events: int, streams: int
) -> None:
    then: Dag = getattr(dags, name)
    shape = shape_of(then)
    assert (len(then), len(pairs(then)), len(pairs(shape.needed))) == (nodes, edges, reduced)
    assert sum(right != NONE for right in hopcroft_karp(shape.needed)) == matched
    assert len(fewest_streams(shape)) == streams
    assert len(fewest_syncs(shape)) == streams
    assert syncs(then, laid_on(fewest_syncs(shape), shape, streams)) == events


def reduction(then: Dag) -> set[tuple[int, int]]:
    """By its definition: the edges that no longer path implies."""
    edges = pairs(then)

    def reaches(first: int, last: int, without: tuple[int, int]) -> bool:
        return first == last or any(reaches(b, last, without) for a, b in edges if a == first and (a, b) != without)

    return {edge for edge in edges if not reaches(*edge, edge)}


def concurrent_assignments(then: Dag) -> list[list[int]]:
    """Every way to put nodes on streams that keeps each two independent nodes apart."""
    behind = dag.descendants(then)
    found: list[list[int]] = [[]]
    for node in range(len(then)):
        found = [
            [*streams, stream]
            for streams in found
            for stream in range(max(streams, default=-1) + 2)
            if all(other != stream or behind[earlier] >> node & 1 for earlier, other in enumerate(streams))
        ]
    return found


@GRAPHS
def test_chains_are_optimal_on_random_graphs(graphs: int) -> None:
    for seed in range(graphs):
        then = small_dag(seed, most=6 if seed % 4 else 8)
        shape = shape_of(then)
        assert pairs(shape.needed) == reduction(then)
        plans = concurrent_assignments(then)
        best = laid_on(fewest_syncs(shape), shape, len(then))
        assert relabelled(best) in plans
        fewest = len(pairs(shape.needed)) - sum(right != NONE for right in hopcroft_karp(shape.needed))
        assert syncs(then, best) == fewest == min(syncs(then, streams) for streams in plans)
        assert len(fewest_streams(shape)) == min(max(streams) + 1 for streams in plans)


def relabelled(streams: list[int]) -> list[int]:
    """The same assignment, streams numbered in the order of their first nodes."""
    number: dict[int, int] = {}
    return [number.setdefault(stream, len(number)) for stream in streams]


def test_events_are_the_edges_of_the_reduction_on_a_thousand_random_graphs() -> None:
    for seed in range(RANDOM):
        then = small_dag(seed)
        streams = [(seed * 7 + index * index) % 3 for index in range(len(then))]
        queue = {(a, b) for b in range(len(then)) for a in range(b) if streams[a] == streams[b]}
        both = dag.successors(len(then), sorted(pairs(then) | queue))
        cross = {edge for edge in reduction(both) if streams[edge[0]] != streams[edge[1]]}
        order = in_runs(streams, both, range(len(then)))
        assert set(fewest_events(order, streams, pairs(then))) == cross


def largest_matching(adjacency: Dag) -> int:
    if not adjacency:
        return 0
    skipped = largest_matching(adjacency[1:])
    taken = [
        1 + largest_matching([[r for r in targets if r != right] for targets in adjacency[1:]])
        for right in adjacency[0]
    ]
    return max([skipped, *taken])


def test_both_matchings_are_as_large_as_can_be() -> None:
    for seed in range(200):
        adjacency = small_dag(seed, most=7)
        wanted = largest_matching(adjacency)
        masks = [sum(1 << right for right in targets) for targets in adjacency]
        for found in (hopcroft_karp(adjacency), by_bits(masks), by_bits(masks, hopcroft_karp(adjacency))):
            used = [right for right in found if right != NONE]
            assert len(used) == len(set(used)) == wanted
            assert all(right == NONE or right in adjacency[left] for left, right in enumerate(found))


def test_a_matching_that_a_greedy_one_misses_is_found() -> None:
    assert sorted(hopcroft_karp([[1, 2], [1], [], []])) == [NONE, NONE, 1, 2]
    assert by_bits([0b110, 0b010, 0, 0]) == [2, 1, NONE, NONE]


def test_a_matching_that_one_phase_misses_is_found_in_the_next() -> None:
    """The third finds no way while the second's search has looked everywhere; when that is over it does."""
    assert sorted(by_bits([0b1100, 0b0011, 0b0101, 0b0001])) == [0, 1, 2, 3]


def test_a_chain_goes_where_it_keeps_nobody_from_overlapping() -> None:
    """Of two equal chains, the last kernel stays behind the one that it has to wait for anyway."""
    shape = Shape.from_work([[1], [3], [4], [], [], []], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert laid_on([[0, 1], [2, 4], [3], [5]], shape, 2)[:5] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_a_cap_is_kept_and_every_kernel_has_a_stream(streams: int) -> None:
    for seed in range(50):
        then = dags.random_dag(40, 60, seed)
        shape = shape_of(then)
        for chains in (fewest_syncs(shape), fewest_streams(shape), fewest_paths(then)):
            found = laid_on(chains, shape, streams)
            assert set(found) <= set(range(streams))
            assert len(found) == 40


def test_paths_need_more_events_where_an_edge_is_implied() -> None:
    then = dags.of("a b c d", "a c", "a e d", "b d")
    shape = shape_of(then)
    assert syncs(then, laid_on(fewest_paths(then), shape, 9)) >= syncs(then, laid_on(fewest_syncs(shape), shape, 9))


def test_a_circle_is_printed_from_its_lowest_node() -> None:
    assert dag.topological([[1], [2], [0], []]) == ([3], [0, 1, 2, 0])
    assert dag.topological([[1], [], [0]]) == ([2, 0, 1], [])


def test_the_order_is_legal_and_stays_on_a_stream_while_it_can() -> None:
    for seed in range(200):
        then = small_dag(seed)
        streams = [(seed + index * 3) % 3 for index in range(len(then))]
        order = in_runs(streams, then, range(len(then)))
        place = {index: position for position, index in enumerate(order)}
        assert sorted(order) == list(range(len(then)))
        assert all(place[a] < place[b] for a, b in pairs(then))
        for stream in set(streams):
            own = [index for index in order if streams[index] == stream]
            assert own == sorted(own)
    assert in_runs([0, 1, 0], [[], [], []], [0, 1, 2]) == [0, 2, 1]
