"""Plans of small graphs are the best there are, and what says so finds the best plan itself."""

from __future__ import annotations

from math import inf

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.streams import assignment
from npucompose.streams.simulate import SharedDevice, Work
from npucompose.streams.strategies import exact
from npucompose.streams.strategies.exact import fastest
from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan
from tests.searches import examples
from tests.streams.exhaustive import best_makespan, least_makespan
from tests.streams.small import FREE, MODEL, SmallGraph, small_graph

SEEDS = st.integers(0, 10**6)
TEXTBOOK = [Work(us=20.0, vector=48), Work(us=40.0, cube=24), Work(us=20.0, vector=48)]
OTHER = [Work(us=30.0, vector=48), Work(us=20.0, cube=24), Work(us=20.0, vector=48)]


def one_stream(given: Instance) -> TimedPlan:
    return given.realised(Assignment(streams=[0] * len(given.work), ranked=range(len(given.work))))


def of_all(given: Instance) -> float:
    return best_makespan(given.then, given.work, given.streams, given.model)


def least(given: Instance, known: float) -> float:
    return least_makespan(given.then, given.work, given.streams, given.model, known)


@settings(max_examples=examples(25), deadline=None)
@given(SEEDS)
def test_from_any_plan_the_fastest_of_all_is_found(seed: int) -> None:
    given = small_graph(seed, most=4).instance
    assert fastest(given, one_stream(given)).makespan == pytest.approx(of_all(given))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_from_any_plan_of_six_kernels_the_fastest_of_all_is_found(seed: int) -> None:
    given = small_graph(seed, most=5 if seed % 4 == 1 else 6).instance
    known = one_stream(given)
    assert fastest(given, known, states=10**6).makespan == pytest.approx(of_all(given))
    assert least(given, known.makespan) == pytest.approx(of_all(given))


@pytest.mark.parametrize("seed", [207, 244, 264])
def test_the_fastest_of_all_is_given_with_the_fewest_events_for_its_time(seed: int) -> None:
    given = small_graph(seed, most=6).instance
    best = fastest(given, assignment.relocated(given, [one_stream(given)], inf), inf)
    found = assignment._fastest(given, [one_stream(given)], inf)
    assert found.makespan == best.makespan
    assert len(found.events) < len(best.events)


@settings(max_examples=examples(25), deadline=None)
@given(SEEDS)
def test_what_plans_are_judged_by_leaves_out_no_plan_that_is_better(seed: int) -> None:
    given = small_graph(seed, most=4).instance
    assert least(given, one_stream(given).makespan) == pytest.approx(of_all(given))


def test_a_plan_that_is_not_the_best_is_seen() -> None:
    """Negative control: the judge finds the better plan beside one that is given."""
    given = small_graph(9, most=5).instance
    assert least(given, 2 * of_all(given)) == pytest.approx(of_all(given))
    assert least(given, of_all(given) / 2) == of_all(given) / 2


def test_a_stream_may_wait_for_a_kernel_though_another_could_start() -> None:
    """The textbook's two chains: 110 µs where every kernel starts as soon as it can, 100 where one lets another by."""
    given = Instance(then=[[1], [2], [], [4], [5], []], work=[*TEXTBOOK, *OTHER], streams=2, model=FREE)
    found = fastest(given, one_stream(given))
    assert found.makespan == 100.0 == of_all(given)


def test_the_default_stream_need_not_have_the_most_work() -> None:
    """The long kernel fills the vector cores at once; the two others share them when the side stream is awake."""
    work = [Work(us=13.0, vector=30), Work(us=13.0, vector=1), Work(us=20.0, vector=48)]
    given = Instance(then=[[], [], []], work=work, streams=2, model=MODEL)
    found = fastest(given, one_stream(given))
    assert (found.streams, found.makespan) == ([1, 1, 0], pytest.approx(of_all(given)))
    assert found.makespan < given.timed(Assignment(streams=found.streams, ranked=found.order)).makespan


def test_a_plan_of_more_events_than_allowed_is_not_taken() -> None:
    given = Instance(then=[[1, 2], [3], [3], []], work=[Work(us=5.0)] * 4, streams=2, model=MODEL)
    known = one_stream(given)
    assert fastest(given, known, most_events=1) is known
    assert fastest(given, known, most_events=2).makespan == 16.0


def test_the_search_ends_after_so_many_states_and_keeps_what_it_has() -> None:
    given = small_graph(13).instance
    known = one_stream(given)
    assert fastest(given, known, states=1) is known
    assert fastest(given, known).makespan < known.makespan


@pytest.mark.parametrize("item", [Work(us=1.0, vector=1, gang=True), Work(us=1.0, link=True)])
def test_collectives_and_larger_graphs_are_left_as_they_are(item: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Instance(then=[[], []], work=[item, Work(us=5.0)], streams=2, model=FREE)
    known = one_stream(given)
    assert fastest(given, known) is known
    plain = attrs.evolve(given, work=[Work(us=1.0), Work(us=5.0)])
    assert fastest(plain, one_stream(plain)).makespan == 5.0
    monkeypatch.setattr(exact, "KERNELS", 1)
    assert fastest(plain, known) is known


def test_a_copied_device_goes_on_by_itself() -> None:
    device = SharedDevice([Work(us=4.0, cube=24)] * 2, FREE)
    device.start(0, 0)
    other = device.copy()
    other.start(1, 1)
    assert (device.next_end, other.next_end) == (4.0, 8.0)
    assert device.finish() == [(0, 0)]
    assert other.finish() == [(0, 0), (1, 1)]


def _beyond(graphs: list[SmallGraph]) -> list[float]:
    return [graph.beyond_the_best for graph in graphs]


def test_plans_of_ten_small_graphs_are_the_best_or_nearly() -> None:
    beyond = _beyond([small_graph(seed, most=7) for seed in range(10)])
    assert sum(beyond) / len(beyond) <= 0.02
    assert 0 <= min(beyond) <= max(beyond) <= 0.10


@pytest.mark.slow
def test_plans_of_five_hundred_small_graphs_are_the_best_or_nearly() -> None:
    beyond = _beyond([small_graph(seed) for seed in range(500)])
    assert sum(beyond) / len(beyond) <= 0.02
    assert 0 <= min(beyond) <= max(beyond) <= 0.10


def test_a_planner_without_search_is_further_from_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what is measured tells plans apart."""
    monkeypatch.setattr(assignment, "_fastest", lambda instance, found, most: max(found, key=lambda plan: plan.rank))
    monkeypatch.setattr(assignment, "_tried", lambda known, basic, instance: [])
    graphs = [small_graph(seed, most=7) for seed in range(20)]
    assert max(_beyond(graphs)) > 0.05
