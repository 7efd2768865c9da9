"""Plans of small graphs are the best there are or nearly, and what says so finds the best plan itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.streams import assignment
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan
from tests.searches import examples
from tests.streams.exhaustive import best_makespan, least_makespan
from tests.streams.small import SmallGraph, small_graph

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
def test_what_plans_are_judged_by_leaves_out_no_plan_that_is_better(seed: int) -> None:
    given = small_graph(seed, most=4).instance
    assert least(given, one_stream(given).makespan) == pytest.approx(of_all(given))


def test_a_plan_that_is_not_the_best_is_seen() -> None:
    """Negative control: the judge finds the better plan beside one that is given."""
    given = small_graph(9, most=5).instance
    assert least(given, 2 * of_all(given)) == pytest.approx(of_all(given))
    assert least(given, of_all(given) / 2) == of_all(given) / 2


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
    monkeypatch.setattr(assignment, "relocated", lambda instance, found, most: max(found, key=lambda plan: plan.rank))
    monkeypatch.setattr(assignment, "_tried", lambda known, basic, instance: [])
    graphs = [small_graph(seed, most=7) for seed in range(20)]
    assert max(_beyond(graphs)) > 0.05
