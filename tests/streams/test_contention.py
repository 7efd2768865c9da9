"""Kernels that want the same cores at one time: they take turns or divide the cores, whichever is simulated to pay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose.graphs.effects import core_limits
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Cores, Streams
from npucompose.streams import apply, decision_of, planning, validate
from npucompose.streams.limits import contended, settled
from npucompose.streams.problem import Problem, ScheduledPlan, schedule
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import ATLAS_A2
from tests.sample_graphs import CAN, traced
from tests.searches import examples

FREE = attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=0.0, stream_us=0.0)
ON = attrs.evolve(CAN, device_model=FREE, core_limits=True)
X = torch.randn(4, 4)


def problem_of(function: Callable[..., torch.Tensor], work: list[Work], **wanted: object) -> Problem:
    """The graph of a function whose kernels are given their work, in their order."""
    asked = Streams(min_gain=0, **wanted)  # type: ignore[arg-type]
    problem = Problem.from_graph(traced(function, X).graph, asked, ON)
    problem.__dict__["work"] = work
    assert len(work) == len(problem.kernels)
    return problem


def two_chains(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.abs().mm(x).neg(), x.exp().mm(x).sin()])[0]


def cube(us: float) -> Work:
    return Work(us=us, cube=24)


def vector(us: float) -> Work:
    return Work(us=us, vector=48)


CHAINS = [vector(20), cube(40), vector(20), vector(30), cube(20), vector(20), Work(us=0.0)]
"""V20-C40-V20, V30-C20-V20 and what joins them."""


def test_cube_and_vector_beside_each_other_are_found_the_order_of_the_faster_of_the_published_schedules() -> None:
    """cann-recipes-infer, multi_stream_principles.md, 2.1.3: 110 µs as it comes, 100 µs with an order added."""
    problem = problem_of(two_chains, CHAINS)
    found = planning.choose(problem, ON).scheduled
    assert found.simulation.makespan == pytest.approx(100.0)
    assert problem.serial_us == 150.0
    as_it_comes = schedule(problem, [0, 0, 0, 1, 1, 1, 0], range(7), ((3, 0), (4, 1)))
    assert as_it_comes.simulation.makespan == pytest.approx(110.0)
    better = settled(as_it_comes, order=True, divide=False)
    assert better.simulation.makespan <= 110.0
    side_by_side = schedule(problem, [0, 0, 0, 1, 1, 1, 0], range(7))
    assert settled(side_by_side, order=True, divide=False).simulation.makespan == pytest.approx(100.0)


def pair(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.abs(), x.exp()])[0]


T = 40.0
HALF = Work(us=T, fixed_us=T / 2, vector=48)
"""On half of the cores it takes 1.5 T."""


def test_two_kernels_that_fill_the_device_are_given_half_of_it_each_where_that_was_asked_for() -> None:
    """cann-recipes-infer, multi_stream_principles.md, 2.2.2: 2 T one after the other, 1.5 T on half the cores each."""
    asked = problem_of(pair, [HALF, HALF, Work(us=0.0)], split_cores=True)
    found = planning.choose(asked, ON)
    assert found.scheduled.simulation.makespan == pytest.approx(1.5 * T)
    assert found.plan.cores == {name: Cores(aicore=12, vectorcore=24) for name in ("abs_1", "exp")}
    without = planning.choose(problem_of(pair, [HALF, HALF, Work(us=0.0)]), ON)
    assert without.scheduled.simulation.makespan == pytest.approx(2 * T)
    assert without.plan.cores == {}
    unable = planning.choose(asked, attrs.evolve(ON, core_limits=False))
    assert (unable.scheduled.simulation.makespan, unable.plan.cores) == (pytest.approx(2 * T), {})


def test_cores_are_not_divided_where_they_are_all_that_takes_time() -> None:
    """Half of the cores take twice as long: 2 T as before, and no limit."""
    asked = problem_of(pair, [vector(T), vector(T), Work(us=0.0)], split_cores=True)
    found = planning.choose(asked, ON)
    assert (found.scheduled.simulation.makespan, found.plan.cores) == (pytest.approx(2 * T), {})


def test_the_longer_of_two_is_given_more_cores() -> None:
    long, short = Work(us=90.0, fixed_us=40.0, vector=48), Work(us=30.0, fixed_us=15.0, vector=48)
    found = planning.choose(problem_of(pair, [long, short, Work(us=0.0)], split_cores=True), ON)
    assert found.plan.cores["abs_1"] == Cores(aicore=18, vectorcore=36)
    assert found.plan.cores["exp"] == Cores(aicore=6, vectorcore=12)
    assert found.scheduled.simulation.makespan == pytest.approx(40 + 50 / 0.75)


def test_a_mixed_kernel_leaves_vector_cores_to_its_neighbour() -> None:
    mixed = Work(us=40.0, fixed_us=30.0, cube=24, vector=48)
    found = planning.choose(problem_of(pair, [mixed, HALF, Work(us=0.0)], split_cores=True), ON)
    assert found.scheduled.simulation.makespan < mixed.us + HALF.us - 10
    assert set(found.plan.cores) == {"abs_1", "exp"}


def test_a_gang_is_given_no_part_of_the_cores() -> None:
    gang = Work(us=T, vector=48, gang=True)
    found = planning.choose(problem_of(pair, [gang, HALF, Work(us=0.0)], split_cores=True), ON)
    assert found.plan.cores == {}


def test_the_event_that_a_turn_takes_must_be_there() -> None:
    plan = schedule(problem_of(two_chains, CHAINS), [0, 0, 0, 1, 1, 1, 0], range(7))
    most = len(plan.events)
    kept = settled(plan, order=True, divide=False, max_events=most)
    assert len(kept.events) == most


def test_a_plan_without_contention_and_one_that_may_not_be_changed_stay_as_they_are() -> None:
    problem = problem_of(pair, [vector(5), cube(5), Work(us=0.0)])
    plan = schedule(problem, [0, 1, 0], range(3))
    assert settled(plan, order=True, divide=True) is plan
    busy = schedule(problem_of(two_chains, CHAINS), [0, 0, 0, 1, 1, 1, 0], range(7))
    assert contended(busy)
    assert settled(busy, order=False, divide=False) is busy


def test_to_a_large_plan_no_order_is_added_and_its_cores_are_divided_everywhere_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = schedule(problem_of(two_chains, CHAINS), [0, 0, 0, 1, 1, 1, 0], range(7))
    monkeypatch.setattr("npucompose.streams.limits.ORDERED", 7 * 20 - 1)
    assert settled(busy, order=True, divide=False) is busy
    monkeypatch.setattr("npucompose.streams.limits.ORDERED", 7 * 20)
    assert settled(busy, order=True, divide=False).added
    monkeypatch.setattr("npucompose.streams.limits.DIVIDED", 0)
    both = schedule(problem_of(pair, [HALF, HALF, Work(us=0.0)]), [0, 1, 0], range(3))
    assert len(settled(both, order=True, divide=True).limits) == 2


def test_those_who_fit_beside_each_other_are_not_in_each_other_s_way() -> None:
    three = [Work(us=10.0, vector=16), Work(us=10.0, vector=16), Work(us=10.0, vector=17)]

    def thrice(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.abs(), x.exp(), x.sin()])[0]

    def pairs(work: list[Work]) -> list[tuple[int, int]]:
        return contended(schedule(problem_of(thrice, [*work, Work(us=0.0)]), [0, 1, 2, 0], range(4)))

    assert pairs(three) == [(0, 2), (1, 2)]
    assert pairs([*three[:2], Work(us=10.0, vector=16)]) == []
    assert pairs([*three[:2], Work(us=10.0, cube=24)]) == []
    assert pairs([*three[:2], Work(us=10.0, vector=17, gang=True)]) == []


def wide(seed: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Work]]:
    """Chains of random work that meet here and there."""
    chance = random.Random(seed)
    width, depth = chance.randint(2, 4), chance.randint(1, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        chains = [x] * width
        for step in range(depth):
            for at in range(width):
                chains[at] = chains[at] + chains[(at + step) % width]
        return torch.stack(chains)[0]

    def work() -> Work:
        us = chance.uniform(5, 50)
        cores = {"cube": chance.choice([8, 24])} if chance.random() < 0.5 else {"vector": chance.choice([4, 16, 48])}
        return Work(us=us, fixed_us=us * chance.random(), **cores)

    return function, [*(work() for _ in range(width * depth)), Work(us=0.0)]


def before(plan: ScheduledPlan) -> set[tuple[int, int]]:
    return {
        (one, other) for one, other in plan.problem.edges if plan.simulation.end[one] > plan.simulation.start[other]
    }


@pytest.fixture(scope="module")
def briefly() -> Iterator[None]:
    """As few attempts as show what they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npucompose.streams.limits.ORDERED", 400)
        patch.setattr("npucompose.streams.limits.DIVIDED", 600)
        yield


@pytest.mark.usefixtures("briefly")
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_what_is_changed_is_never_slower_keeps_every_order_and_asks_for_no_core_that_is_not_there(
    seed: int, divide: bool
) -> None:
    function, work = wide(seed)
    problem = problem_of(function, work)
    chance = random.Random(seed)
    plan = schedule(problem, [chance.randrange(3) for _ in work], range(len(work)))
    found = settled(plan, order=True, divide=divide)
    assert found.simulation.makespan <= plan.simulation.makespan
    assert found.streams == plan.streams
    assert not before(found)
    assert not found.simulation.stuck
    assert not any(FREE.lacks(limit.aicore, limit.vectorcore) for limit in found.limits.values())
    assert divide or not found.limits


def written(can: Capabilities, **wanted: object) -> tuple[torch.fx.GraphModule, object]:
    """Two matrix products of 36 tiles each, which go round 24 cores twice and round 12 three times."""

    def products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x.mm(y) + x.mm(z)

    x = torch.empty(768, 1024, device="meta")
    module = traced(products, x, x.t(), x.t())
    apply(module.graph, Streams(**wanted), can)  # type: ignore[arg-type]
    return module, decision_of(module)


def test_the_limits_of_divided_cores_are_written_around_both_streams_and_proven() -> None:
    able = attrs.evolve(CAN, core_limits=True)
    module, decision = written(able, split_cores=True)
    limits = {node.name: cores for node, cores in core_limits(module.graph).items() if node.name.startswith("mm")}
    assert limits == {"mm": Cores(aicore=12, vectorcore=24), "mm_1": Cores(aicore=12, vectorcore=24)}
    assert decision.applied  # type: ignore[attr-defined]
    assert decision.prediction.gain == pytest.approx(1 / 6, rel=0.05)  # type: ignore[attr-defined]
    validate(module.graph, can=able)
    without, decision = written(able)
    assert core_limits(without.graph) == {}
    assert not decision.applied  # type: ignore[attr-defined]
