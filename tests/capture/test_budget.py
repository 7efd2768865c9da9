"""What captures take: intervals that hold what was seen in public, and the most sizes that fit, as trying all finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.errors import ConfigError
from npucompose.npu.capture.budget import (
    CASCADE,
    CASCADE_RESERVE,
    BudgetQuestion,
    CapturedGraph,
    CommunicatorGroup,
    Interval,
    _own_streams,
    capture_budget,
)
from npucompose.npu.capture.fitting import Amounts, largest_set
from npucompose.vendor.devices import device_of
from tests.searches import examples

VLLM_SIZES = (1, 2, 4, *range(8, 520, 8))
TP, EP = (CommunicatorGroup(name=name, ranks=8) for name in ("tp", "ep"))
QWEN3_235B = BudgetQuestion(
    soc="Ascend910B1",
    graphs=(CapturedGraph(name="main", layers=94, pieces=True, communicators=("tp", "ep")),),
    communicators=(TP, EP),
    sizes=VLLM_SIZES,
    many_streams=False,
)
"""vllm-ascend #1168 (2025-06): 94 layers on 8 NPUs, a piece for each layer."""
WHOLE = CapturedGraph(name="main", layers=94)


def most_by_trying_all(costs: Mapping[int, Amounts], limits: Amounts) -> int:
    """Of sets with the largest size."""
    *smaller, largest = sorted(costs)
    fitting = [
        1 + len(chosen)
        for count in range(len(smaller) + 1)
        for chosen in itertools.combinations(smaller, count)
        if all(sum(costs[s][at] for s in (*chosen, largest)) <= limit for at, limit in enumerate(limits))
    ]
    return max(fitting, default=0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[int, Amounts], Amounts]:
    amounts = st.tuples(st.integers(0, 6), st.integers(0, 9), st.sampled_from([0.25, 0.5, 1.0, 3.5]))
    costs = draw(st.dictionaries(st.integers(1, 512), amounts, min_size=1, max_size=9))
    if draw(st.integers(0, 3)) == 3:  # as sizes whose bytes nobody knows
        costs = dict.fromkeys(costs, next(iter(costs.values())))
    return costs, draw(st.tuples(st.integers(0, 30), st.integers(0, 40), st.sampled_from([0.5, 2.0, 6.0, 20.0])))


@settings(max_examples=examples(300), deadline=None)
@given(cases())
def test_no_set_of_sizes_that_fits_is_larger(case: tuple[dict[int, Amounts], Amounts]) -> None:
    costs, limits = case
    found = largest_set(costs, limits)
    assert len(found) == most_by_trying_all(costs, limits)
    assert all(sum(costs[size][at] for size in found) <= limit for at, limit in enumerate(limits))
    assert not found or found[-1] == max(costs)


def test_a_search_that_takes_the_smallest_first_is_found_out() -> None:
    """The negative control: sizes do not always cost more the larger they are."""
    costs: dict[int, Amounts] = {1: (5.0,), 2: (1.0,), 4: (1.0,), 8: (2.0,)}
    assert largest_set(costs, (4.0,)) == (2, 4, 8)


def test_of_sizes_at_two_prices_a_dear_one_gives_way_to_cheap_ones() -> None:
    """Taken by size until one does not fit, 64 would stay alone."""
    costs: dict[int, Amounts] = {1: (2.0,), 8: (2.0,), 32: (5.0,), 64: (2.0,)}
    assert largest_set(costs, (6.0,)) == (1, 8, 64)


def test_of_sets_that_take_the_same_the_larger_sizes_are_chosen() -> None:
    costs = {64: (1.0, 0.0), 32: (3.0, 0.0), 8: (2.0, 2.0), 4: (2.0, 1.0), 1: (1.0, 3.0)}
    assert largest_set(costs, (5.0, 3.0)) == (1, 32, 64)
    assert largest_set({}, (5.0,)) == ()
    assert largest_set({8: (6.0,), 1: (1.0,)}, (5.0,)) == ()


@pytest.mark.parametrize(
    ("interval", "written"),
    [
        (Interval(2, 2), "2"),
        (Interval(1234, 56789), "1,234 to 56,789"),
        (Interval(1234, math.inf), "1,234 or more"),
        (Interval(2, 3) + Interval(10, 20), "12 to 23"),
        (Interval(20, 30) - Interval(1, 5), "15 to 29"),
        (Interval(2, 3) * Interval(10, 20), "20 to 60"),
    ],
)
def test_an_interval_is_written_with_both_of_its_ends(interval: Interval, written: str) -> None:
    assert str(interval) == written


def test_the_public_observation_lies_in_the_interval(golden: Callable[[str, str], None]) -> None:
    found = capture_budget(QWEN3_235B)
    assert found.possible == (1, 88, 192, 304, 408, 512)
    assert found.sizes.low <= 6 <= found.sizes.high
    assert found.sizes.high / found.sizes.low <= 3
    assert found.fits() is False
    assert len(found.unknown) >= 4
    golden("capture/budget_94_layers_8_ranks.txt", "\n".join(found.lines()) + "\n")


@pytest.mark.parametrize(
    ("layers", "communicators", "observed"),
    [
        pytest.param(64, ("tp",), 15, id="32B on 2 NPUs, #1168: 1920/64/2"),
        pytest.param(80, ("tp",), 11, id="Qwen2.5-72B, #739"),
        pytest.param(48, ("tp",), 19, id="update_aclgraph_sizes: (1920)/(48+1)/2"),
        pytest.param(48, ("tp",), 12, id="update_aclgraph_sizes: (1920-40)/(48+1)/3"),
        pytest.param(40, (), 45, id="14B, #1168: 67 sizes are 2,680 pieces, too many"),
    ],
)
def test_other_public_figures_lie_in_theirs(layers: int, communicators: tuple[str, ...], observed: int) -> None:
    graph = CapturedGraph(name="main", layers=layers, pieces=True, communicators=communicators)
    groups = tuple(group for group in (TP, EP) if group.name in communicators)
    found = capture_budget(evolve(QWEN3_235B, graphs=(graph,), communicators=groups))
    assert found.sizes.low <= observed <= found.sizes.high


def test_newer_drivers_are_an_unknown_that_is_named() -> None:
    found = capture_budget(evolve(QWEN3_235B, many_streams=None))
    assert found.fits() is None
    assert any("newer drivers" in what for what in found.unknown)
    assert capture_budget(evolve(QWEN3_235B, many_streams=True)).fits() is True


@pytest.mark.parametrize(
    ("tasks", "streams"),
    [
        pytest.param(2016, Interval(1, 2), id="as many as come near to the queue's depth"),
        pytest.param(2017, Interval(2, 2), id="one more makes another stream"),
        pytest.param(1888, Interval(1, 1), id="so few that the runtime's reserve makes no difference"),
        pytest.param(5 * 2016, Interval(5, 6), id="five queues"),
    ],
)
def test_a_queue_within_32_tasks_of_its_depth_makes_another_stream(tasks: int, streams: Interval) -> None:
    graph = CapturedGraph(name="main", layers=1, tasks=Interval(tasks, tasks))
    found = capture_budget(evolve(QWEN3_235B, graphs=(graph,), sizes=(8,)))
    assert found.total.streams == streams
    assert found.total.tasks == Interval(tasks, tasks)


def test_draft_and_encoder_are_counted_with_the_main_model() -> None:
    draft = CapturedGraph(name="draft", layers=1, streams=2)
    encoder = CapturedGraph(name="encoder", layers=4, sizes=(16, 32, 64))
    sizes = (8, 16)
    alone, all_three = (
        capture_budget(evolve(QWEN3_235B, graphs=graphs, sizes=sizes)).total
        for graphs in ((WHOLE,), (WHOLE, draft, encoder))
    )
    assert all_three.streams - alone.streams == Interval(
        2 * 2 + 3 + alone.streams.low - alone.streams.high, 2 * 2 + 3 + alone.streams.high - alone.streams.low
    )


def test_bytes_bound_the_sizes_too_and_a_doubt_about_them_makes_an_interval() -> None:
    nbytes = {size: Interval(size * 1.0, size * 2.0) for size in (1, 2, 4, 8)}
    found = capture_budget(evolve(QWEN3_235B, graphs=(WHOLE,), sizes=(1, 2, 4, 8), nbytes=nbytes, memory=15.0))
    assert found.possible == (1, 2, 4, 8)
    assert found.certain == ()
    assert capture_budget(evolve(QWEN3_235B, graphs=(WHOLE,), sizes=(8,), nbytes=nbytes, memory=16.0)).fits() is True


def test_the_change_that_frees_most_comes_first() -> None:
    plan = evolve(QWEN3_235B.graphs[0], streams=3, events=4)
    asked = evolve(QWEN3_235B, graphs=(plan, CapturedGraph(name="draft", layers=1)))
    changes = capture_budget(asked).changes
    assert [change.freed.high for change in changes] == sorted((c.freed.high for c in changes), reverse=True)
    assert [change.what for change in changes][:2] == ["main captured whole", "two pieces of main merged into one"]
    assert {"main with one stream fewer", "one communicator for main", "draft not captured"} <= {
        c.what for c in changes
    }


def test_shared_events_free_events_and_no_stream() -> None:
    whole = evolve(WHOLE, events=4)
    (change,) = capture_budget(evolve(QWEN3_235B, graphs=(whole,), sizes=(8, 16))).changes
    assert change.what == "events of main shared by its layers"
    assert (change.freed, change.events) == (Interval(0, 0), Interval(2 * 4 * 93, 2 * 4 * 93))


def test_hccl_on_vector_cores_frees_streams_on_a3() -> None:
    """HCCL's default there takes up to a stream for each rank but one."""
    changes = capture_budget(evolve(QWEN3_235B, soc="Ascend910_9391")).changes
    assert next(change for change in changes if "AIV" in change.what).freed.high > 0


def test_at_most_four_sizes_are_certain_on_a_950() -> None:
    found = capture_budget(evolve(QWEN3_235B, soc="ascend950", graphs=(WHOLE,), many_streams=None))
    assert len(found.certain) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"soc": "ascend310b"}, "ascend310b captures nothing: Atlas 200I/500 A2 inference"),
        ({"soc": "h100"}, "unknown product 'h100'"),
        ({"sizes": ()}, "sizes: none; one or more"),
        ({"communicators": (TP,)}, "main uses the communicators ep, which are not described"),
        ({"graphs": (evolve(WHOLE, layers=0),)}, "main: layers, streams and merged are at least 1"),
        ({"nbytes": {1: Interval(1, 1)}}, "nbytes: has to say it of every size"),
    ],
)
def test_what_cannot_be_counted_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        capture_budget(evolve(QWEN3_235B, **change))


@pytest.mark.parametrize(
    ("merged", "streams"),
    [
        pytest.param(1, Interval(2 * 10, 2 * 11), id="two queues for each of ten or eleven pieces"),
        pytest.param(5, Interval(2 * 5, 3 * 8), id="a piece of three fills five queues, one of two eight"),
    ],
)
def test_the_fewest_tasks_of_a_piece_are_those_of_most_pieces(merged: int, streams: Interval) -> None:
    graph = CapturedGraph(name="main", layers=10, pieces=True, merged=merged, tasks=Interval(3000, 3000))
    assert capture_budget(evolve(QWEN3_235B, graphs=(graph,), sizes=(8,))).total.streams == streams


def test_a_graph_with_one_communicator_has_none_to_save() -> None:
    def saved(*names: str) -> list[str]:
        graph = CapturedGraph(name="main", layers=4, communicators=names)
        asked = evolve(QWEN3_235B, graphs=(graph,), sizes=(8,))
        return [change.what for change in capture_budget(asked).changes if "communicator" in change.what]

    assert saved("tp") == []
    assert saved("tp", "ep") == ["one communicator for main"]


def test_a_queue_is_full_before_its_last_places_which_the_runtime_keeps() -> None:
    soc = device_of("Ascend910B1")
    room = soc.depth - CASCADE - CASCADE_RESERVE.high

    def streams(tasks: float) -> float:
        return _own_streams(WHOLE, Interval(tasks, tasks), soc, {}).high

    assert (streams(room), streams(room + 1)) == (1, 2)
