"""The simulated device and the list scheduler, on plain numbers."""

from __future__ import annotations

import math
import random
from itertools import permutations, product

import attrs
import pytest

from npucompose.streams import assignment, dag
from npucompose.streams.events import fewest_events, in_runs
from npucompose.streams.simulate import Simulation, Work, simulate
from npucompose.streams.strategies.chains import Shape, fewest_syncs, laid_on
from npucompose.streams.strategies.instance import Instance
from npucompose.streams.strategies.list_schedule import by_urgency
from npucompose.vendor.devices import ATLAS_A2, Calibration, DeviceModel
from tests.streams import dags
from tests.streams.dags import Dag, pairs

FREE = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=0.0, stream_us=0.0)
COSTLY = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=3.0)


def run(then: Dag, streams: list[int], work: list[Work], model: DeviceModel, ranked: list[int] | None = None) -> float:
    """The makespan of an assignment."""
    order = in_runs(streams, then, ranked or range(len(then)))
    return simulate(order, streams, fewest_events(order, streams, pairs(then)), work, model).makespan


def test_two_streams_halve_two_equal_kernels() -> None:
    work = [Work(us=5.0), Work(us=5.0)]
    assert run([[], []], [0, 0], work, FREE) == 10.0
    assert run([[], []], [0, 1], work, FREE) == 5.0


def test_an_event_and_a_side_stream_have_their_price() -> None:
    found = simulate([0, 1, 2], [0, 1, 0], [(1, 2)], [Work(us=5.0)] * 3, COSTLY)
    assert found == Simulation(start=[0.0, 3.0, 9.0], end=[5.0, 8.0, 14.0], makespan=14.0)


def test_kernels_that_want_more_cores_than_there_are_share_them() -> None:
    assert run([[], []], [0, 1], [Work(us=5.0, cube=24)] * 2, FREE) == 10.0
    assert run([[], []], [0, 1], [Work(us=5.0, cube=12)] * 2, FREE) == 5.0
    assert run([[], []], [0, 1], [Work(us=5.0, cube=24), Work(us=5.0, vector=48)], FREE) == 5.0


def test_a_kernel_that_is_left_alone_speeds_up_again() -> None:
    """Each runs at half its speed until 4; 8 µs of the longer one are left then."""
    assert run([[], []], [0, 1], [Work(us=2.0, cube=24), Work(us=10.0, cube=24)], FREE) == 12.0


def test_memory_bandwidth_is_shared_and_only_by_those_who_need_it() -> None:
    assert run([[], []], [0, 1], [Work(us=6.0, bandwidth=0.75)] * 2, FREE) == pytest.approx(9.0)
    assert run([[], []], [0, 1], [Work(us=6.0, bandwidth=1.0), Work(us=6.0)], FREE) == 6.0


def test_a_gang_waits_until_all_its_cores_are_free_and_keeps_them() -> None:
    gang = Work(us=4.0, vector=48, gang=True)
    found = simulate([0, 1], [0, 1], [], [Work(us=3.0, vector=1), gang], FREE)
    assert found.start == [0.0, 3.0]
    assert simulate([0, 1], [0, 1], [], [gang, Work(us=3.0, vector=1)], FREE).start == [0.0, 4.0]


@pytest.mark.parametrize("kind", ["cube", "vector"])
def test_a_gang_may_have_all_cores_and_others_what_it_leaves(kind: str) -> None:
    every = getattr(FREE, kind)
    whole, all_but_one, one = (
        Work(us=4.0, gang=gang, **{kind: n}) for n, gang in ((every, True), (every - 1, True), (1, False))
    )
    assert simulate([0], [0], [], [whole], FREE).start == [0.0]
    assert simulate([0, 1], [0, 1], [], [all_but_one, one], FREE).start == [0.0, 0.0]
    assert simulate([0, 1], [0, 1], [], [whole, one], FREE).start == [0.0, 4.0]


def test_what_can_never_start_is_named() -> None:
    crossed = simulate([0, 1, 2, 3], [0, 0, 1, 1], [(3, 0), (1, 2)], [Work(us=1.0)] * 4, FREE)
    assert crossed.stuck == (0, 1, 2, 3)
    too_big = simulate([0, 1], [0, 1], [], [Work(us=1.0, vector=49, gang=True), Work(us=2.0)], FREE)
    assert too_big.stuck == (0,)
    assert math.isnan(too_big.start[0])
    assert too_big.makespan == 2.0


def test_nothing_is_faster_than_the_critical_path_or_the_sum_over_streams_says() -> None:
    for seed in range(100):
        then = dags.small_dag(seed, most=8)
        chance = random.Random(seed)
        work = [Work(us=chance.uniform(1, 9)) for _ in then]
        times = [item.us for item in work]
        streams = [chance.randrange(3) for _ in then]
        makespan = run(then, streams, work, FREE)
        assert max(dag.longest_paths(times, then)) - 1e-9 <= makespan <= sum(times) + 1e-9
        assert run(then, [0] * len(then), work, COSTLY) == pytest.approx(sum(times))


def best_by_force(then: Dag, us: list[float], streams: int) -> float:
    """The best that any assignment and any order can do, where events and cores cost nothing."""
    before = dag.predecessors(then)
    best = float("inf")
    for order in permutations(range(len(then))):
        place = {index: position for position, index in enumerate(order)}
        if any(place[a] > place[b] for a, b in pairs(then)):
            continue
        for chosen in product(range(streams), repeat=len(then)):
            free, end = [0.0] * streams, [0.0] * len(then)
            for index in order:
                start = max([free[chosen[index]], *(end[source] for source in before[index])])
                end[index] = free[chosen[index]] = start + us[index]
            best = min(best, max(end))
    return best


def test_list_schedules_keep_graham_s_bound() -> None:
    """R. Graham 1969: a list schedule takes at most 2 - 1/m times the best on m machines."""
    for seed in range(60):
        then = dags.small_dag(seed, most=5)
        chance = random.Random(seed)
        work = [Work(us=float(chance.randint(1, 9))) for _ in then]
        streams, ranked = by_urgency(work, then, 2, FREE)
        best = best_by_force(then, [item.us for item in work], 2)
        assert best <= run(then, streams, work, FREE, ranked) <= 1.5 * best


def test_the_schedule_uses_no_stream_that_gains_nothing() -> None:
    chain = dags.of("a b c d e")
    assert set(by_urgency([Work(us=5.0)] * 5, chain, 4, COSTLY)[0]) == {0}
    two = dags.of("a b c", "d e f")
    assert set(by_urgency([Work(us=5.0)] * 6, two, 4, COSTLY)[0]) == {0, 1}


def llm_like(layers: int, seed: int) -> tuple[Dag, list[Work]]:
    """Layers of three projections, attention, six experts beside a shared one; heavy cube and light vector work."""
    chance = random.Random(seed)
    paths: list[str] = []
    for n in range(layers):
        paths += [f"x{n} q{n} rope{n} att{n} o{n} y{n}", f"x{n} k{n} rope_k{n} att{n}", f"x{n} v{n} att{n}"]
        paths += [f"y{n} gate{n} topk{n}", f"y{n} s_up{n} s_act{n} s_down{n} x{n + 1}"]
        paths += [f"topk{n} up{n}.{e} act{n}.{e} down{n}.{e} x{n + 1}" for e in range(6)]
    then = dags.of(*paths)
    return then, _costed(then, chance)


def layered(seed: int) -> tuple[Dag, list[Work]]:
    then = dags.random_dag(200, 400, seed, span=30)
    return then, _costed(then, random.Random(seed))


def _costed(then: Dag, chance: random.Random) -> list[Work]:
    return [
        Work(us=chance.uniform(10, 60), cube=chance.choice([8, 24]))
        if chance.random() < 0.4
        else Work(us=chance.uniform(3, 30), vector=chance.choice([4, 16, 48]))
        for _ in then
    ]


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("family", ["llm", "layered"])
def test_list_scheduling_beats_the_shape_alone_where_costs_differ(family: str, streams: int) -> None:
    for seed in range(5):
        then, work = llm_like(12, seed) if family == "llm" else layered(seed)
        model = attrs.evolve(ATLAS_A2, event_us=1.0, stream_us=1.0)
        shape = Shape.from_work(then, [item.us for item in work])
        listed, ranked = by_urgency(work, then, streams, model)
        assert run(then, listed, work, model, ranked) < run(
            then, laid_on(fewest_syncs(shape), shape, streams), work, model
        )


@pytest.mark.parametrize("name", ["DIAMOND", "MM_ABS_SUB", "INCEPTION_A", "INCEPTION_E", "NASNET_A", "MOE", "MLA"])
def test_the_plan_for_makespan_is_never_worse_than_the_one_for_events(name: str) -> None:
    then: Dag = getattr(dags, name)
    work = _costed(then, random.Random(name))

    def best(objective: str) -> float:
        instance = Instance(then=then, work=work, streams=3, model=COSTLY)
        return min(one.simulation.makespan for one in assignment.plans(objective, instance))  # type: ignore[arg-type]

    assert best("makespan") <= best("events")


def test_a_calibration_replaces_what_it_names_and_says_so() -> None:
    found = Calibration(event_us=0.25, cube=0).onto(ATLAS_A2)
    assert (found.event_us, found.cube, found.vector) == (0.25, 0, 48)
    assert found.name == "Atlas A2, nominal, calibrated"
    assert Calibration().onto(ATLAS_A2) is ATLAS_A2
