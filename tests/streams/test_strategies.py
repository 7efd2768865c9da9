"""Strategies in simulated time: what each prefers, that none makes a plan worse, and how near the best they come."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.streams import assignment, dag
from npucompose.streams.assignment import MORE_EVENTS, candidates, plans
from npucompose.streams.events import merged_events
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.dispatch import Policy, dispatch
from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan
from npucompose.streams.strategies.relocation import relocated
from npucompose.vendor.devices import ATLAS_A2
from tests.searches import examples
from tests.streams import dags, named
from tests.streams.dags import Dag
from tests.streams.lower_bound import lower_bound

MODEL = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=1.0, stream_us=1.0)
FREE = attrs.evolve(MODEL, event_us=0.0, stream_us=0.0)
CUBE, VECTOR = Work(us=10.0, cube=24), Work(us=10.0, vector=48)


def instance(then: Dag, work: list[Work], streams: int = 2, model: Any = FREE) -> Instance:
    return Instance(then=then, work=work, streams=streams, model=model)


def best(given: Instance, objective: Literal["makespan", "time"] = "makespan") -> TimedPlan:
    return min(plans(objective, given), key=lambda plan: plan.rank)


def basic(given: Instance) -> TimedPlan:
    """The better one of the list schedule and the chains, which look at no cores."""
    return min([given.timed(one) for one in candidates("makespan", given)], key=lambda plan: plan.rank)


def drawn(seed: int, most: int = 9) -> tuple[Dag, list[Work]]:
    then = dags.small_dag(seed, most)
    return then, named.costed(len(then), random.Random(seed))


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), policy=st.integers(0, 2))
def test_a_dispatch_starts_every_kernel_once_and_in_a_legal_order(seed: int, streams: int, policy: int) -> None:
    then, work = drawn(seed, 14)
    policies = (Policy(), Policy(overbooking=2.0, most_booked=1.34), Policy(feeding=3.0))
    inst = instance(then, work, streams, MODEL)
    found = dispatch(inst, policies[policy])
    place = {index: position for position, index in enumerate(found.ranked)}
    assert sorted(place) == list(range(len(then)))
    assert all(place[first] < place[second] for first, second in dags.pairs(then))
    assert set(found.streams) <= set(range(streams))


def test_a_free_stream_takes_what_the_running_kernel_leaves_idle() -> None:
    """Two kernels for all cube cores, then two for all vector cores: in pairs of different kinds they take half."""
    work = [attrs.evolve(CUBE, us=11.0), CUBE, VECTOR, VECTOR]
    inst = instance([[], [], [], []], work)
    assert inst.realised(dispatch(inst, Policy(overbooking=0.0))).makespan > 21.0
    found = dispatch(inst, Policy(overbooking=2.0))
    assert (found.ranked, inst.realised(found).makespan) == ([0, 2, 3, 1], 21.0)


def test_a_kernel_that_overbooks_waits_where_the_policy_says_so() -> None:
    work = [Work(us=10.0, cube=24), Work(us=10.0, cube=12)]
    assert dispatch(instance([[], []], work), Policy(most_booked=1.34)).streams == [0, 0]
    assert dispatch(instance([[], []], work), Policy(most_booked=1.5)).streams == [0, 1]


def test_the_short_way_to_the_scarcest_resource_comes_first_while_that_lies_idle() -> None:
    """Johnson's two machines: of two vector kernels the shorter one is first, though less is behind it."""
    work = [Work(us=8.0, vector=48), Work(us=2.0, vector=48), Work(us=20.0, cube=24), Work(us=10.0, cube=24)]
    inst = instance([[2], [3], [], []], work)
    assert (inst.scarcest, inst.until_scarcest) == ("cube", [8.0, 2.0, 0.0, 0.0])
    assert dispatch(inst, Policy(), on=[0, 0, 1, 1]).ranked == [0, 2, 1, 3]
    assert dispatch(inst, Policy(feeding=10.0), on=[0, 0, 1, 1]).ranked == [1, 3, 0, 2]


def test_a_stream_goes_on_while_the_link_works_and_whoever_awaits_it_starts_when_it_is_done() -> None:
    work = [Work(us=6.0, link=True), Work(us=4.0), Work(us=0.0, awaits=(0,)), Work(us=1.0)]
    inst = instance([[2], [], [3], []], work, 1)
    found = dispatch(inst, Policy())
    assert (found.ranked, inst.realised(found).makespan) == ([0, 1, 2, 3], 7.0)


def test_streams_that_are_given_stay() -> None:
    then, work = drawn(3)
    on = [index % 2 for index in range(len(then))]
    assert dispatch(instance(then, work), Policy(), on).streams == on


def test_events_are_merged_where_no_kernel_moves() -> None:
    """2 waits for 0 and 3 for 1; 2 starts after the end of 1 anyway, so that one event serves both."""
    times = ([0.0, 5.0, 12.0, 20.0], [5.0, 10.0, 20.0, 25.0])
    events = [(0, 2), (1, 3)]
    assert merged_events([0, 1, 2, 3], [0, 0, 1, 1], events, times, 1.0) == [(1, 2)]
    assert merged_events([0, 1, 2, 3], [0, 0, 1, 1], events, times, 3.0) == events  # 1 is through at 13
    assert merged_events([0, 1, 2, 3], [0, 0, 1, 2], events, times, 1.0) == events  # two streams wait


def test_an_event_that_takes_no_time_after_a_kernel_that_takes_none_is_not_moved() -> None:
    """1 stands before 2 in time only by its place: a wait of 1 for 2 would go in a circle."""
    times = ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    assert merged_events([1, 2, 3, 0], [0, 1, 0, 1], [(1, 2), (2, 3)], times, 0.0) == [(1, 2), (2, 3)]


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(2, 4))
def test_merged_events_keep_every_order_and_every_time(seed: int, streams: int) -> None:
    then, work = drawn(seed, 14)
    inst = instance(then, work, streams, MODEL)
    plan = inst.timed(Assignment(streams=[(seed >> i) % streams for i in range(len(then))], ranked=range(len(then))))
    merged = inst.with_fewer_events(plan)
    assert len(merged.events) <= len(plan.events)
    assert list(merged.simulation.start) == pytest.approx(list(plan.simulation.start))
    place = {index: position for position, index in enumerate(merged.order)}
    edges = [(place[a], place[b]) for a, b in merged.events]
    for stream in set(merged.streams):
        own = [place[index] for index in merged.order if merged.streams[index] == stream]
        edges += pairwise(own)
    reach = dag.descendants(dag.successors(len(then), edges))
    assert all(reach[place[a]] >> place[b] & 1 for a, b in dags.pairs(then))


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4))
def test_no_plan_for_time_is_worse_than_one_that_looks_at_no_cores(seed: int, streams: int) -> None:
    inst = instance(*drawn(seed), streams, MODEL)
    plain, plan = basic(inst), best(inst)
    assert plan.rank <= plain.rank
    assert best(inst, "time").simulation.makespan <= plan.simulation.makespan + 1e-9
    if any(plain.streams):
        assert len(plan.events) <= MORE_EVENTS * len(plain.events)


def test_relocation_puts_a_kernel_where_it_is_better_and_never_makes_a_plan_worse() -> None:
    inst = instance([[], [], []], [Work(us=6.0), Work(us=5.0), Work(us=4.0)])
    worst = inst.timed(Assignment(streams=[0, 0, 0], ranked=[0, 1, 2]))
    assert relocated(inst, [worst], 0).simulation.makespan == 9.0
    then, work = drawn(8)
    inst = instance(then, work, 2, MODEL)
    start = inst.timed(Assignment(streams=[0] * len(then), ranked=range(len(then))))
    assert relocated(inst, [start], 0).events == []


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), share=st.sampled_from([0.5, 0.9, 1.0, 1.1]))
def test_a_plan_that_takes_too_long_is_left_out_and_no_other(seed: int, streams: int, share: float) -> None:
    then, work = drawn(seed, 14)
    inst = instance(then, work, streams, MODEL)
    on = [(seed >> i) % streams for i in range(len(then))]
    plan = inst.timed(Assignment(streams=on, ranked=range(len(then))))
    most = share * plan.makespan
    found = inst.realised_within(Assignment(streams=plan.streams, ranked=range(len(then))), most)
    if plan.makespan > most:
        assert found is None
    else:
        assert found is not None
        assert (found.order, found.events, found.simulation) == (plan.order, plan.events, plan.simulation)


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(2, 4))
def test_relocation_reaches_the_plan_that_it_reaches_with_every_simulation_to_its_end(seed: int, streams: int) -> None:
    then, work = drawn(seed, 12)
    inst = instance(then, work, streams, MODEL)
    start = inst.timed(Assignment(streams=[0] * len(then), ranked=range(len(then))))
    found = relocated(inst, [start], 20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Instance, "realised_within", lambda self, tidied, most: self.realised(tidied))
        slow = relocated(inst, [start], 20)
    assert (found.streams, found.order, found.events) == (slow.streams, slow.order, slow.events)


def test_more_streams_make_no_plan_much_slower() -> None:
    """A decoder's plan on four streams took 3 % longer than the one on two."""
    graph = named.graph("decoder")
    two, four = (best(instance(graph.then, graph.work, streams, MODEL)).makespan for streams in (2, 4))
    assert four <= 1.002 * two


def test_a_search_that_could_look_at_next_to_nothing_is_not_begun() -> None:
    inst = instance([[] for _ in range(700)], [Work(us=1.0)] * 700)
    start = inst.timed(Assignment(streams=[0] * 700, ranked=range(700)))
    assert relocated(inst, [start], 1000) is start


def test_the_effort_bounds_what_is_tried_and_one_strategy_is_always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def strategy(inst: Instance, fewest: TimedPlan) -> Assignment:
        asked.append(len(fewest.events))
        return dispatch(inst, Policy())

    monkeypatch.setattr(assignment, "STRATEGIES", (strategy,) * 4)
    monkeypatch.setattr(assignment, "CLOSE", 0.0)
    inst = instance([[], []] * 2, [Work(us=5.0, cube=24), Work(us=5.0, cube=20)] * 2, 2, MODEL)
    for effort, times in ((0, 1), (8, 2), (100, 4)):
        asked.clear()
        monkeypatch.setattr(assignment, "EFFORT", effort)
        plans("makespan", inst)
        assert len(asked) == times


def test_a_graph_of_very_many_kernels_gets_no_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    inst = instance([[], []], [Work(us=5.0)] * 2)
    assert len(candidates("makespan", inst)) == 2
    monkeypatch.setattr(assignment, "MATCHED", 1)
    assert len(candidates("makespan", inst)) == 1
    assert len(candidates("events", inst)) == 1


@pytest.mark.parametrize(
    ("name", "streams", "gain", "over"), [("two_tower", 4, 0.17, 1.08), ("wide_vec", 2, 0.02, 1.02)]
)
def test_plans_of_a_named_graph_are_as_good_as_was_said(name: str, streams: int, gain: float, over: float) -> None:
    graph = named.graph(name)
    inst = instance(graph.then, graph.work, streams, attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0))
    plan = best(inst)
    assert plan.simulation.makespan <= (1 - gain) * basic(inst).simulation.makespan
    assert plan.simulation.makespan <= over * lower_bound(graph.then, graph.work, streams, inst.model)


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "gain"), [(2, 0.12), (4, 0.10), (8, 0.04)])
def test_wide_families_gain(streams: int, gain: float) -> None:
    """Against the plans that look at no cores, with at most a tenth more events."""
    gains: list[float] = []
    for name in named.WIDE:
        graph = named.graph(name)
        inst = instance(graph.then, graph.work, streams, attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0))
        plain, plan = basic(inst), best(inst)
        assert len(plan.events) <= MORE_EVENTS * len(plain.events)
        gains.append(1 - plan.simulation.makespan / plain.simulation.makespan)
        if streams == 4:
            assert plan.simulation.makespan <= 1.08 * lower_bound(graph.then, graph.work, 4, inst.model)
    assert sum(gains) / len(gains) >= gain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["randwire", "darts", "inception_v3"])
def test_networks_with_little_beside_one_another_stay_near_the_bound(name: str) -> None:
    graph = named.graph(name)
    inst = instance(graph.then, graph.work, 4, attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0))
    assert best(inst).simulation.makespan <= 1.22 * lower_bound(graph.then, graph.work, 4, inst.model)
