"""The simulated device step by step: prices, shares of cores and bandwidth, gangs, what is stuck."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.streams.simulate import Work, _share, rates, simulate
from npucompose.vendor.devices import ATLAS_A2

MODEL = attrs.evolve(ATLAS_A2, cube=4, vector=8, launch_us=0.0, event_us=1.0, stream_us=3.0)
FREE = attrs.evolve(MODEL, event_us=0.0, stream_us=0.0)
Times = tuple[list[float], list[float]]
Pairs = list[tuple[int, int]]


def times(streams: list[int], events: Pairs, *work: Work, model: object = FREE) -> Times:
    """(starts, ends), kernels in the order of their numbers."""
    found = simulate(range(len(work)), streams, events, work, model)  # type: ignore[arg-type]
    assert found.makespan == max(found.end, default=0.0)
    assert found.stuck == ()
    return list(found.start), list(found.end)


def us(*lengths: float) -> list[Work]:
    return [Work(us=length) for length in lengths]


def test_nothing_takes_no_time() -> None:
    assert times([], []) == ([], [])


@pytest.mark.parametrize(
    ("streams", "events", "lengths", "found"),
    [
        ([0, 0], [], [2.0, 3.0], ([0.0, 2.0], [2.0, 5.0])),
        ([0, 1], [], [2.0, 3.0], ([0.0, 3.0], [2.0, 6.0])),  # a side stream is woken first
        ([0, 1, 2], [], [1.0, 1.0, 1.0], ([0.0, 3.0, 3.0], [1.0, 4.0, 4.0])),
        ([0, 1], [(0, 1)], [5.0, 1.0], ([0.0, 6.0], [5.0, 7.0])),  # an event from the end of its recorder
        ([0, 1], [(0, 1)], [1.0, 1.0], ([0.0, 3.0], [1.0, 4.0])),  # while the stream is woken
        ([1, 1, 0], [(0, 2)], [2.0, 2.0, 1.0], ([3.0, 5.0, 6.0], [5.0, 7.0, 7.0])),
        ([0, 1, 1], [(0, 1)], [5.0, 1.0, 1.0], ([0.0, 6.0, 7.0], [5.0, 7.0, 8.0])),
        ([0, 1, 1], [(0, 2)], [5.0, 1.0, 1.0], ([0.0, 3.0, 6.0], [5.0, 4.0, 7.0])),
        ([0, 1, 2], [(0, 2), (1, 2)], [4.0, 2.0, 1.0], ([0.0, 3.0, 6.0], [4.0, 5.0, 7.0])),  # the later of two
        ([0, 1, 2], [(0, 2), (1, 2)], [4.0, 0.5, 1.0], ([0.0, 3.0, 5.0], [4.0, 3.5, 6.0])),
        ([0, 1, 2], [(0, 1), (0, 2)], [4.0, 2.0, 1.0], ([0.0, 5.0, 5.0], [4.0, 7.0, 6.0])),  # one for two
        ([0, 0], [(0, 1)], [2.0, 3.0], ([0.0, 3.0], [2.0, 6.0])),
        ([0, 0, 1, 1], [(0, 3), (2, 1)], [2.0, 2.0, 2.0, 2.0], ([0.0, 6.0, 3.0, 5.0], [2.0, 8.0, 5.0, 7.0])),
    ],
)
def test_streams_and_events_have_their_prices(
    streams: list[int], events: Pairs, lengths: list[float], found: Times
) -> None:
    assert times(streams, events, *us(*lengths), model=MODEL) == found


def test_a_stream_takes_its_kernels_as_the_order_has_them() -> None:
    found = simulate([1, 2, 0], [0, 0, 1], [], us(2.0, 3.0, 1.0), MODEL)
    assert (found.start, found.end) == ([3.0, 0.0, 3.0], [5.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("work", "found"),
    [
        # as many as there are run as if alone; more share
        ([Work(us=6.0, cube=2), Work(us=6.0, cube=2)], ([0.0, 0.0], [6.0, 6.0])),
        ([Work(us=6.0, cube=4), Work(us=6.0, cube=4)], ([0.0, 0.0], [12.0, 12.0])),
        ([Work(us=6.0, cube=4), Work(us=6.0, cube=2)], ([0.0, 0.0], [9.0, 9.0])),
        ([Work(us=6.0, vector=8), Work(us=6.0, vector=8)], ([0.0, 0.0], [12.0, 12.0])),
        ([Work(us=6.0, vector=8), Work(us=6.0, cube=4)], ([0.0, 0.0], [6.0, 6.0])),
        # who is alone again goes on at full speed
        ([Work(us=2.0, vector=8), Work(us=6.0, vector=8)], ([0.0, 0.0], [4.0, 8.0])),
        ([Work(us=6.0, vector=8), Work(us=2.0, vector=8)], ([0.0, 0.0], [8.0, 4.0])),
        # the scarcest of what a kernel needs decides
        ([Work(us=6.0, vector=8, bandwidth=0.75), Work(us=6.0, vector=8, bandwidth=0.75)], ([0.0, 0.0], [12.0, 12.0])),
        ([Work(us=6.0, vector=4, bandwidth=1.0), Work(us=6.0, vector=4, bandwidth=1.0)], ([0.0, 0.0], [12.0, 12.0])),
        ([Work(us=6.0, bandwidth=0.5), Work(us=6.0, bandwidth=0.5)], ([0.0, 0.0], [6.0, 6.0])),
        ([Work(us=4.0, bandwidth=1.0), Work(us=4.0, bandwidth=1.0)], ([0.0, 0.0], [8.0, 8.0])),
        # and no kernel waits for what it does not need
        ([Work(us=6.0, cube=4), Work(us=9.0, cube=4), Work(us=5.0)], ([0.0, 0.0, 0.0], [12.0, 15.0, 5.0])),
        ([Work(us=6.0, vector=8), Work(us=9.0, vector=8), Work(us=5.0, cube=1)], ([0.0, 0.0, 0.0], [12.0, 15.0, 5.0])),
        ([Work(us=6.0, bandwidth=1.0), Work(us=9.0, bandwidth=1.0), Work(us=5.0)], ([0.0] * 3, [12.0, 15.0, 5.0])),
    ],
)  # fmt: skip
def test_kernels_side_by_side_share_what_they_need(work: list[Work], found: Times) -> None:
    assert times(list(range(len(work))), [], *work) == found


def test_a_newcomer_slows_down_those_that_run() -> None:
    """The first has done 3 of its 6 µs when the second one comes; from then on both run at half their speed."""
    model = attrs.evolve(FREE, stream_us=3.0)
    found = times([0, 1], [], Work(us=6.0, cube=4), Work(us=6.0, cube=4), model=model)
    assert found == ([0.0, 3.0], [9.0, 12.0])


def test_the_next_kernel_of_a_stream_takes_the_place_of_the_one_before() -> None:
    work = [Work(us=2.0, cube=4), Work(us=2.0, cube=4), Work(us=8.0, cube=4)]
    assert times([0, 0, 1], [], *work) == ([0.0, 4.0, 0.0], [4.0, 8.0, 12.0])


GANG = Work(us=4.0, vector=8, gang=True)


@pytest.mark.parametrize(
    ("work", "starts"),
    [
        ([GANG, GANG], [0.0, 4.0]),
        ([Work(us=3.0, vector=1), GANG], [0.0, 3.0]),
        ([Work(us=3.0, cube=1), GANG], [0.0, 0.0]),  # of other cores
        ([Work(us=3.0, cube=1), Work(us=4.0, cube=4, gang=True)], [0.0, 3.0]),
        ([Work(us=3.0, vector=1), Work(us=4.0, cube=4, gang=True)], [0.0, 0.0]),
        ([GANG, Work(us=3.0, cube=4)], [0.0, 0.0]),
        ([GANG, Work(us=3.0)], [0.0, 0.0]),  # of none
        ([Work(us=4.0, vector=5, gang=True), Work(us=4.0, vector=3, gang=True)], [0.0, 0.0]),
        ([Work(us=4.0, vector=5, gang=True), Work(us=4.0, vector=4, gang=True)], [0.0, 4.0]),
        ([Work(us=4.0, cube=4, gang=True), Work(us=4.0, cube=1)], [0.0, 4.0]),
        ([Work(us=4.0, cube=2, gang=True), Work(us=4.0, cube=3, gang=True)], [0.0, 4.0]),
        ([Work(us=4.0, vector=7, gang=True), Work(us=4.0, vector=8)], [0.0, 0.0]),  # one core is enough to begin
    ],
)
def test_a_gang_starts_with_all_its_cores_or_not_at_all(work: list[Work], starts: list[float]) -> None:
    assert times(list(range(len(work))), [], *work)[0] == starts


def test_at_one_moment_those_who_end_make_room_before_anybody_comes() -> None:
    """At 3 the first one's cores go to the gang behind it; the side stream, which is awake then, has to wait."""
    model = attrs.evolve(FREE, stream_us=3.0)
    work = [Work(us=3.0, vector=8), GANG, Work(us=1.0, vector=1)]
    assert times([0, 0, 1], [], *work, model=model) == ([0.0, 3.0, 7.0], [3.0, 7.0, 8.0])


def test_only_rounding_makes_two_ends_one() -> None:
    starts, _ = times([0, 0, 1, 1], [], *us(1.0, 1.0, 1.0000001, 1.0))
    assert starts == [0.0, 1.0, 0.0, 1.0000001]
    starts, _ = times([0, 0, 1, 1], [], *us(1.0, 1.0, 1.0 + 1e-12, 1.0))
    assert starts == [0.0, 1.0, 0.0, 1.0]


def test_a_gang_keeps_its_cores_and_its_speed_and_others_share_the_rest() -> None:
    """Two cores are left for a kernel that wants four: it runs at half its speed until the gang is done."""
    gang = Work(us=4.0, cube=2, gang=True)
    assert times([0, 1], [], gang, Work(us=6.0, cube=4)) == ([0.0, 0.0], [4.0, 8.0])
    gang = Work(us=4.0, vector=4, gang=True)
    assert times([0, 1], [], gang, Work(us=6.0, vector=8)) == ([0.0, 0.0], [4.0, 8.0])


def test_a_gang_shares_bandwidth_as_everybody_does() -> None:
    work = [Work(us=4.0, vector=1, gang=True, bandwidth=1.0), Work(us=4.0, bandwidth=1.0)]
    assert times([0, 1], [], *work) == ([0.0, 0.0], [8.0, 8.0])


def test_those_who_wait_for_cores_are_asked_again_in_their_order() -> None:
    work = [GANG, Work(us=1.0, vector=8, gang=True), Work(us=1.0, vector=8, gang=True)]
    assert times([0, 1, 2], [], *work) == ([0.0, 4.0, 5.0], [4.0, 5.0, 6.0])


@pytest.mark.parametrize(
    ("streams", "events", "work", "stuck", "makespan"),
    [
        ([0, 1], [(1, 0), (0, 1)], us(1.0, 1.0), (0, 1), 0.0),
        ([0, 1, 2], [(1, 0), (0, 1)], us(1.0, 1.0, 2.0), (0, 1), 2.0),
        ([1, 0, 1], [(2, 0)], us(1.0, 1.0, 1.0), (0, 2), 1.0),
        ([0], [], [Work(us=1.0, cube=5, gang=True)], (0,), 0.0),
    ],
)
def test_what_can_never_start_is_told_by_number(
    streams: list[int], events: Pairs, work: list[Work], stuck: tuple[int, ...], makespan: float
) -> None:
    found = simulate(range(len(work)), streams, events, work, FREE)
    assert (found.stuck, found.makespan) == (stuck, makespan)
    assert all((found.start[k] != found.start[k]) is (k in stuck) for k in range(len(work)))
    assert all((found.end[k] != found.end[k]) is (k in stuck) for k in range(len(work)))


def test_a_device_without_cube_cores_computes_on_its_vector_cores() -> None:
    model = attrs.evolve(FREE, cube=0, vector=2)
    assert times([0, 1], [], Work(us=3.0, vector=1), Work(us=3.0, vector=1), model=model) == ([0.0, 0.0], [3.0, 3.0])
    assert times([0, 1], [], Work(us=3.0, vector=2), Work(us=3.0, vector=2), model=model) == ([0.0, 0.0], [6.0, 6.0])


@pytest.mark.parametrize(
    ("there", "wanted", "share"), [(4, 8, 0.5), (4, 4, 1.0), (4, 2, 1.0), (4, 0, 1.0), (0, 0, 1.0), (1.0, 1.6, 0.625)]
)
def test_a_share_is_what_there_is_of_what_is_wanted_and_never_more_than_all(
    there: float, wanted: float, share: float
) -> None:
    assert _share(there, wanted) == share


def test_a_stream_whose_kernel_ends_with_the_recorder_that_its_next_one_waits_for_goes_on_once() -> None:
    """Streams 0 and 1 end at 2; stream 1's second kernel waits for stream 0's first, its third for nothing."""
    model = attrs.evolve(FREE, event_us=1.0)
    found = simulate([0, 1, 2, 3], [0, 1, 1, 1], [(0, 2)], us(2.0, 2.0, 4.0, 1.0), model)
    assert (list(found.start), list(found.end)) == ([0.0, 0.0, 3.0, 7.0], [2.0, 2.0, 7.0, 8.0])


HALF = Work(us=10.0, fixed_us=5.0, vector=8)
"""Half of its time is divided among its cores: the published kernel that takes 1.5 T on half of them."""


@pytest.mark.parametrize(
    ("work", "limit", "found"),
    [
        (HALF, (4, 4), (15.0, 0, 4)),
        (HALF, (4, 2), (25.0, 0, 2)),
        (HALF, (1, 8), (10.0, 0, 8)),  # cores of the kind that it does not need
        (HALF, (4, 9), (10.0, 0, 8)),
        (Work(us=10.0, cube=4), (2, 8), (20.0, 2, 0)),  # divided evenly where nothing else is known
        (Work(us=10.0, fixed_us=1.0, divided_us=3.0, vector=8), (4, 4), (10.0, 0, 4)),  # memory has cores to spare
        (Work(us=10.0, fixed_us=1.0, divided_us=3.0, vector=8), (4, 2), (13.0, 0, 2)),
        (Work(us=10.0, cube=4, tiles=6), (3, 8), (10.0, 3, 0)),  # two rounds on four cores as on three
        (Work(us=10.0, cube=4, tiles=6), (2, 8), (15.0, 2, 0)),
        (Work(us=10.0, cube=4, vector=8), (2, 8), (20.0, 2, 4)),  # a mixed kernel keeps its proportion
        (Work(us=10.0, cube=4, vector=8), (4, 2), (40.0, 1, 2)),
        (Work(us=10.0, cube=4, vector=1), (1, 8), (40.0, 1, 1)),  # and at least a core of each kind
    ],
)
def test_on_fewer_cores_a_kernel_takes_as_long_as_its_curve_says(
    work: Work, limit: tuple[int, int], found: tuple[float, int, int]
) -> None:
    limited = work.on(*limit)
    assert (limited.us, limited.cube, limited.vector) == (pytest.approx(found[0]), *found[1:])


def test_fewer_cores_move_the_same_bytes_in_more_time() -> None:
    limited = Work(us=10.0, vector=8, bandwidth=0.6).on(4, 4)
    assert (limited.us, limited.bandwidth) == (20.0, pytest.approx(0.3))


@given(
    st.builds(
        Work,
        us=st.floats(1, 100),
        fixed_us=st.floats(0, 1),
        divided_us=st.none() | st.floats(0, 1),
        cube=st.integers(0, 24),
        vector=st.integers(0, 48),
        tiles=st.integers(0, 100),
        bandwidth=st.floats(0, 1),
    ),
    st.integers(1, 24),
    st.integers(1, 48),
)
def test_a_limit_never_makes_a_kernel_faster_nor_larger(work: Work, cube: int, vector: int) -> None:
    limited = work.on(cube, vector)
    assert limited.us >= work.us
    assert limited.bandwidth <= work.bandwidth
    assert limited.cube <= cube
    assert limited.vector <= vector
    assert (limited.cube > 0, limited.vector > 0) == (work.cube > 0, work.vector > 0)
    assert limited.on(cube, vector) == limited
    fewer = work.on(max(1, cube // 2), max(1, vector // 2))
    assert fewer.us >= limited.us or fewer.us == pytest.approx(limited.us)
    if not (work.cube and work.vector):  # a mixed one rounds its proportion twice
        assert limited.on(max(1, cube // 2), max(1, vector // 2)).us == pytest.approx(fewer.us)


def test_two_kernels_that_fill_the_device_take_2t_and_divided_1_5_t() -> None:
    """cann-recipes-infer, multi_stream_principles.md, 2.2.2: on half of the cores each takes 1.5 T."""
    assert times([0, 1], [], HALF, HALF) == ([0.0, 0.0], [20.0, 20.0])
    assert times([0, 0], [], HALF, HALF) == ([0.0, 10.0], [10.0, 20.0])
    assert times([0, 1], [], HALF.on(2, 4), HALF.on(2, 4)) == ([0.0, 0.0], [15.0, 15.0])


@pytest.mark.parametrize(
    ("running", "found"),
    [
        ([], []),
        ([Work(us=1.0, cube=4)], [1.0]),
        ([Work(us=1.0, cube=4), Work(us=2.0, cube=4), Work(us=1.0, vector=8)], [0.5, 0.5, 1.0]),
        ([Work(us=1.0, cube=4, vector=8), Work(us=1.0, vector=8)], [0.5, 0.5]),  # mixed: it waits for its vector half
        ([Work(us=1.0, cube=4, vector=8), Work(us=1.0, cube=2)], [4 / 6, 4 / 6]),
        ([Work(us=1.0, vector=4, gang=True), Work(us=1.0, vector=8)], [1.0, 0.5]),
        ([Work(us=1.0, bandwidth=0.75), Work(us=1.0, bandwidth=0.75), Work(us=1.0)], [1 / 1.5, 1 / 1.5, 1.0]),
    ],
)
def test_the_rates_of_kernels_that_run_together(running: list[Work], found: list[float]) -> None:
    assert rates(running, FREE) == pytest.approx(found)


def chains(order: Pairs) -> float:
    """V20-C40-V20 on stream 0 and V30-C20-V20 on stream 1, with the order that is added to their own."""
    first = [Work(us=20.0, vector=8), Work(us=40.0, cube=4), Work(us=20.0, vector=8)]
    second = [Work(us=30.0, vector=8), Work(us=20.0, cube=4), Work(us=20.0, vector=8)]
    return simulate(range(6), [0, 0, 0, 1, 1, 1], order, [*first, *second], FREE).makespan


def test_cube_and_vector_beside_each_other_take_110_us_in_one_order_and_100_in_the_other() -> None:
    """cann-recipes-infer, multi_stream_principles.md, 2.1.3: who takes the vector cores first decides."""
    assert chains([(3, 0), (4, 1), (5, 2)]) == 110.0
    assert chains([(0, 3), (1, 4)]) == 100.0
    assert chains([]) == 130.0  # nobody is first: both are late
