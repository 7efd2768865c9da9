"""No plan beats the lower bound; where the best plan is known, it is met."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.streams import dag
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.simulate import Work, simulate
from npucompose.streams.strategies.list_schedule import by_urgency
from npucompose.vendor.devices import ATLAS_A2
from tests.searches import examples
from tests.streams import dags, named
from tests.streams.exhaustive import best_makespan, makespan_of
from tests.streams.lower_bound import lower_bound

MODEL = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0)
WORKS = st.builds(
    Work,
    us=st.sampled_from([1.0, 3.0, 10.0]),
    cube=st.sampled_from([0, 8, 24, 30]),
    vector=st.sampled_from([0, 16, 48]),
    bandwidth=st.sampled_from([0.0, 0.3, 0.8]),
    gang=st.sampled_from([False, False, True]),
)


def fits(item: Work) -> Work:
    """A gang that wants more cores than there are never starts."""
    return attrs.evolve(item, cube=min(item.cube, MODEL.cube)) if item.gang else item


@given(st.data(), st.integers(0, 10_000), st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_no_plan_of_a_small_graph_beats_it(data: st.DataObject, seed: int, streams: int) -> None:
    then = dags.small_dag(seed, most=4)
    work = [fits(data.draw(WORKS)) for _ in then]
    assert lower_bound(then, work, streams, MODEL) <= best_makespan(then, work, streams, MODEL) + 1e-6


@given(st.data(), st.integers(0, 10_000), st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_no_random_plan_beats_it(data: st.DataObject, seed: int, streams: int) -> None:
    then = dags.small_dag(seed, most=12)
    work = [fits(data.draw(WORKS)) for _ in then]
    on = [data.draw(st.integers(0, streams - 1)) for _ in then]
    ranked = dag.topological(then)[0]
    assert lower_bound(then, work, streams, MODEL) <= makespan_of(then, work, on, ranked, MODEL) + 1e-6


@pytest.mark.parametrize(
    ("then", "us", "streams", "best"),
    [
        ([[1], [2], []], [5, 5, 5], 4, 15),
        ([[], []], [5, 5], 2, 5.5),  # the one on the side stream begins when that is awake: 6 is possible
        ([[1, 2], [], []], [5, 5, 5], 2, 11),  # one of the two is behind an event
        ([[2], [2], []], [5, 5, 5], 2, 11),
        ([[1, 2], [3], [3], []], [5, 5, 5, 5], 1, 20),
        ([[2], [2], []], [5, 0.5, 5], 2, 10),  # the short one's event is over before the long one ends
    ],
)
def test_it_is_met_where_the_best_plan_is_known(then: dags.Dag, us: list[float], streams: int, best: float) -> None:
    assert lower_bound(then, [Work(us=one, vector=1) for one in us], streams, MODEL) == pytest.approx(best)


def test_cores_and_bandwidth_bound_as_streams_do() -> None:
    def four(item: Work) -> float:
        return lower_bound([[]] * 4, [item] * 4, 4, MODEL)

    assert four(Work(us=10, cube=24)) == four(Work(us=10, vector=48)) == four(Work(us=10, bandwidth=1.0)) == 40
    assert four(Work(us=10, cube=12)) == 20
    assert four(Work(us=10)) == 10.75


@pytest.mark.parametrize("name", named.NAMES)
def test_the_list_schedule_of_a_named_graph_stands_above_it_and_within_two_thirds(name: str) -> None:
    graph = named.graph(name)
    on, ranked = by_urgency(graph.work, graph.then, 4, MODEL)
    ratio = makespan_of(graph.then, graph.work, on, ranked, MODEL) / lower_bound(graph.then, graph.work, 4, MODEL)
    assert 1.0 <= ratio <= 1.67


def test_a_plan_without_its_events_would_beat_it() -> None:
    """Negative control: what is compared with the bound is a plan that keeps every edge."""
    then, work = [[1], []], [Work(us=5.0, vector=1)] * 2
    on = [0, 1]
    order = in_runs(on, then, [0, 1])
    bound = lower_bound(then, work, 2, MODEL)
    assert simulate(order, on, [], work, MODEL).makespan < bound
    assert simulate(order, on, fewest_events(order, on, [(0, 1)]), work, MODEL).makespan >= bound
