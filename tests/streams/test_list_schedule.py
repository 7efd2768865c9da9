"""The list scheduler and the choice of plans for an objective, on plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from npucompose.streams import assignment
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.instance import Assignment, Instance, tidy
from npucompose.streams.strategies.list_schedule import _place, by_urgency
from npucompose.vendor.devices import ATLAS_A2
from tests.streams.dags import Dag

PRICED = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=1.0, stream_us=3.0)
FREE = attrs.evolve(PRICED, event_us=0.0, stream_us=0.0)


def work(*us: float) -> list[Work]:
    return [Work(us=one) for one in us]


def instance(then: Dag, kernels: list[Work], streams: int, factories: Sequence[int] = ()) -> Instance:
    return Instance(then=then, work=kernels, streams=streams, model=FREE, factories=factories)


@pytest.mark.parametrize(
    ("us", "then", "streams", "found"),
    [
        ([], [], 2, ([], [])),
        ([5.0, 5.0, 1.0], [[2], [2], []], 2, ([0, 1, 1], [0, 1, 2])),
        ([5.0, 5.0, 1.0], [[2], [2], []], 1, ([0, 0, 0], [0, 1, 2])),
        ([2.0, 5.0], [[], []], 2, ([1, 0], [1, 0])),  # the most urgent comes first
        ([2.0, 1.0, 9.0], [[], [2], []], 2, ([1, 0, 0], [1, 2, 0])),  # for what is behind it
        ([2.0, 2.0], [[], []], 2, ([0, 0], [0, 1])),  # waking a stream costs more than waiting
        ([4.0, 4.0], [[], []], 2, ([0, 1], [0, 1])),
        ([4.0, 4.0, 4.0], [[], [], []], 3, ([0, 1, 2], [0, 1, 2])),
        ([4.0, 4.0, 4.0], [[], [], []], 2, ([0, 1, 0], [0, 1, 2])),
        ([5.0, 4.0], [[1], []], 2, ([0, 0], [0, 1])),
        # whoever waits for two waits for both: the later one keeps its stream
        ([5.0, 9.0, 1.0], [[2], [2], []], 2, ([1, 0, 0], [1, 0, 2])),
    ],
)
def test_the_most_urgent_kernel_goes_where_it_starts_first(
    us: list[float], then: Dag, streams: int, found: tuple[list[int], list[int]]
) -> None:
    assert by_urgency(work(*us), then, streams, PRICED) == found


def test_among_equal_starts_the_stream_of_a_source_is_kept() -> None:
    """Two kernels of 5 µs and their sum, an event of 1 µs."""
    model = attrs.evolve(PRICED, stream_us=0.0)
    assert by_urgency(work(5.0, 5.0, 1.0), [[2], [2], []], 2, model) == ([0, 1, 0], [0, 1, 2])


def test_what_waits_for_the_link_comes_when_all_that_it_awaits_has_arrived_and_other_work_before() -> None:
    """Two collectives of 6 µs arrive at 6 and 12 µs, for the link takes one after the other."""
    sent = Work(us=6.0, link=True)
    kernels = [sent, sent, Work(us=0.0, awaits=(0, 1)), Work(us=0.0, awaits=(0,)), Work(us=6.0), Work(us=5.0)]
    then: Dag = [[2, 3], [2], [], [], [], []]
    assert by_urgency(kernels, then, 1, FREE) == ([0] * 6, [0, 1, 4, 3, 5, 2])


@pytest.mark.parametrize(
    ("sources", "result", "end", "free", "tail", "placed"),
    [
        ([], [], [], [0.0, 0.0], [None, None], (0, 0.0)),  # among empty ones the first
        ([], [], [], [4.0, 3.0], [0, None], (1, 3.0)),
        (
            [],
            [],
            [],
            [4.0, 3.0, 0.0],
            [0, None, None],
            (1, 3.0),
        ),  # all further ones are as empty as the first empty one
        ([], [], [], [4.0, 3.0, 0.0], [0, 1, None], (2, 0.0)),
        ([], [], [], [4.0, 3.0, 0.0], [1, 0, None], (2, 0.0)),
        ([], [], [], [4.0, 3.0, 2.0], [None, 1, 2], (2, 2.0)),  # the default stream may be empty alone
        ([0], [1], [4.0], [0.0, 4.0], [None, 0], (1, 4.0)),  # no event on the stream of its source
        ([0], [1], [4.0], [0.0, 6.0], [None, 2], (0, 5.0)),  # an event from the end of its source
        ([0], [1], [4.0], [9.0, 9.0], [3, 2], (0, 9.0)),
        ([0, 1], [0, 1], [4.0, 7.0], [4.0, 7.0], [0, 1], (1, 7.0)),
        ([1, 0], [0, 1], [4.0, 7.0], [4.0, 7.0], [0, 1], (1, 7.0)),
        ([0], [1], [4.0], [5.0, 5.0], [7, 0], (1, 5.0)),  # among equals behind its source
        ([0, 1], [1, 0], [4.0, 4.0], [5.0, 5.0], [7, 0], (1, 5.0)),
    ],
)
def test_the_place_of_one_kernel(
    sources: list[int], result: list[int], end: list[float], free: list[float], tail: list[int | None], placed: Any
) -> None:
    assert _place(sources, result, end, free, tail, 1.0) == placed


DIAMOND: Dag = [[1, 2], [3], [3], []]


def test_for_makespan_the_schedule_and_the_fewest_events_compete() -> None:
    listed, shaped = assignment.candidates("makespan", instance(DIAMOND, work(1.0, 9.0, 5.0, 1.0), 2))
    assert (list(listed.streams), list(listed.ranked)) == ([0, 0, 1, 0], [0, 1, 2, 3])
    assert (list(shaped.streams), list(shaped.ranked)) == ([0, 0, 1, 0], [0, 1, 2, 3])


@pytest.mark.parametrize("objective", ["events", "streams", "ge"])
def test_every_other_objective_has_one_plan_by_shape_in_the_order_of_the_numbers(objective: Any) -> None:
    (found,) = assignment.candidates(objective, instance(DIAMOND, work(1.0, 5.0, 9.0, 1.0), 2))
    assert list(found.ranked) == [0, 1, 2, 3]
    assert list(found.streams) == ([0, 0, 0, 0] if objective == "ge" else [0, 1, 0, 1])


@pytest.mark.parametrize("objective", ["makespan", "events", "streams", "ge"])
def test_nothing_to_plan_is_no_stream(objective: Any) -> None:
    assert all(not one.streams for one in assignment.candidates(objective, instance([], [], 3)))


def test_the_limit_holds_for_each_plan() -> None:
    for limit in (1, 2, 3):
        for found in assignment.candidates("makespan", instance([[], [], []], work(9.0, 9.0, 9.0), limit)):
            assert set(found.streams) == set(range(limit))


@pytest.mark.parametrize(
    ("streams", "ranked", "us", "factories", "tidied"),
    [
        ([1, 0, 0], [0, 1, 2], [9.0, 1.0, 1.0], [], [0, 1, 1]),  # the stream with the most work is the default one
        ([1, 0, 0], [0, 1, 2], [1.0, 1.0, 1.0], [], [1, 0, 0]),
        ([1, 0, 0], [0, 1, 2], [2.0, 1.0, 1.0], [], [0, 1, 1]),  # among equals the one that is needed first
        ([0, 1, 0], [1, 0, 2], [1.0, 2.0, 1.0], [], [1, 0, 1]),
        ([5, 3, 7], [2, 1, 0], [9.0, 1.0, 1.0], [], [0, 2, 1]),  # the others as they are needed
        ([0, 1, 0], [0, 1, 2], [5.0, 1.0, 5.0], [1], [0, 0, 0]),  # a factory goes where its first reader is
        ([], [], [], [], []),
    ],
)
def test_streams_are_numbered_by_work_and_need(
    streams: list[int], ranked: list[int], us: list[float], factories: list[int], tidied: list[int]
) -> None:
    then: Dag = [[2], [2], []][: len(streams)]
    found = tidy(Assignment(streams=streams, ranked=ranked), instance(then, work(*us), 9, factories))
    assert (list(found.streams), list(found.ranked)) == (tidied, ranked)


@pytest.mark.parametrize(
    ("then", "streams", "factories", "tidied"),
    [
        ([[2, 1], [], []], [0, 0, 1], [0], [0, 0, 1]),  # the first reader is the one with the lowest number
        ([[], [], []], [0, 1, 1], [0], [1, 0, 0]),  # nobody reads it: it stays
        ([[1], [2], []], [0, 0, 1], [0, 1], [0, 0, 0]),  # a factory that a factory reads follows it
    ],
)
def test_a_factory_follows_its_first_reader(
    then: Dag, streams: list[int], factories: list[int], tidied: list[int]
) -> None:
    given = list(streams)
    found = tidy(Assignment(streams=given, ranked=[0, 1, 2]), instance(then, work(1.0, 1.0, 1.0), 2, factories))
    assert list(found.streams) == tidied
    assert given == streams
