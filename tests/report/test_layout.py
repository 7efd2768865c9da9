"""Where nodes are drawn: none over another, each below what it reads, the same for the same graph."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.report import graph_view as drawn
from npucompose.report.graph_view import GraphLayout, layout, spread
from tests.searches import examples


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[tuple[int, int]]]:
    """(inputs of each node, events), all forward."""
    count = draw(st.integers(0, 60))
    inputs = [tuple(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else () for n in range(count)]
    pairs = st.tuples(st.integers(0, max(count - 1, 0)), st.integers(0, max(count - 1, 0)))
    events = draw(st.lists(pairs.filter(lambda p: p[0] < p[1]), max_size=4)) if count > 1 else []
    return inputs, events


def rows(found: GraphLayout, inputs: list[tuple[int, ...]]) -> list[int]:
    """The row of each node, columns one after the other."""
    starts = sorted({x for x, _ in found.at})
    column = {starts[0]: 0} if starts else {}
    for before, x in itertools.pairwise(starts):
        column[x] = column[before] + (x - before >= drawn.NODE_WIDTH + drawn.BETWEEN_COLUMNS)
    return [column[x] * found.height + y for x, y in found.at]


@given(graphs())
@settings(max_examples=examples(80), deadline=None)
def test_no_node_lies_over_another_and_all_lie_inside(
    given: tuple[list[tuple[int, ...]], list[tuple[int, int]]],
) -> None:
    found = layout(*given)
    assert layout(*given) == found
    for (x, y), (other_x, other_y) in itertools.combinations(found.at, 2):
        assert abs(x - other_x) >= drawn.NODE_WIDTH or abs(y - other_y) >= drawn.NODE_HEIGHT
    for x, y in found.at:
        assert 0 <= x <= found.width - drawn.NODE_WIDTH
        assert 0 <= y <= found.height - drawn.NODE_HEIGHT


@given(graphs())
@settings(max_examples=examples(60), deadline=None)
def test_a_node_is_in_a_later_layer_than_what_it_reads_and_what_it_waits_for(
    given: tuple[list[tuple[int, ...]], list[tuple[int, int]]],
) -> None:
    inputs, events = given
    layers = drawn._layers(inputs, events)
    assert all(layers[other] < layers[node] for node, read in enumerate(inputs) for other in read)
    sources = {node for node, read in enumerate(inputs) if not read and not any(w == node for _, w in events)}
    assert all(layers[r] < layers[w] for r, w in events)
    for node in sources:
        readers = [layers[other] for other, read in enumerate(inputs) if node in read]
        readers += [layers[w] for r, w in events if r == node]
        assert layers[node] == (min(readers) - 1 if readers else 0)


def test_a_chain_is_straight_and_branches_lie_side_by_side() -> None:
    found = layout([(), (0,), (1,), (1,), (2, 3)])
    (x, _), (one, _), (left, first), (right, second), (last, _) = found.at
    assert x == one == last == (left + right) / 2
    assert first == second


def test_a_wide_layer_takes_several_rows_and_a_long_graph_several_columns() -> None:
    wide = layout([(), *[(0,)] * 50])
    assert len({y for _, y in wide.at}) == 1 + -(-50 // drawn.WIDEST)
    long = layout([(), *[(n,) for n in range(999)]])
    assert 0.5 < long.width / long.height < 2 * drawn.ASPECT


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), max_size=30))
def test_spread_keeps_order_and_distance_and_moves_nothing_that_has_room(wanted: list[float]) -> None:
    found = spread(wanted)
    ordered = sorted(range(len(wanted)), key=wanted.__getitem__)
    for one, other in itertools.pairwise(ordered):
        assert found[other] - found[one] >= 1 - 1e-9
    if all(wanted[b] - wanted[a] >= 1 for a, b in itertools.pairwise(ordered)):
        assert found == pytest.approx(wanted, abs=1e-9)


def test_spread_shares_the_way_that_nodes_have_to_give() -> None:
    assert spread([0.0, 0.0]) == [-0.5, 0.5]
    assert spread([3.0, 0.0]) == [3.0, 0.0]
    assert spread([0.0, 0.0, 10.0]) == [-0.5, 0.5, 10.0]
