"""The bytes that a plan needs, `streams.max_memory`, and the pool that the native replayer really takes."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose.api import checked
from npucompose.bits import same_bytes
from npucompose.compose.session import Session
from npucompose.errors import CaptureError, PlanError
from npucompose.placement import interference
from npucompose.schema.sizes import MemoryBound, as_bytes
from npucompose.schema.streams import Match, PlanEntry, Streams
from npucompose.streams import apply, decision_of, plan_of, validate
from npucompose.streams.assignment import candidates
from npucompose.streams.events import fewest_events
from npucompose.streams.limits import _pool, bounded, budget_of
from npucompose.streams.memory import Life, _MemoryWalk, footprint, least_memory, placed, serialised
from npucompose.streams.problem import Problem, ScheduledPlan, schedule
from npucompose.vendor.devices import cpu
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.plan import Workers
from tests.graph_helpers import one_thread
from tests.sample_graphs import CAN, run, some_inputs, traced
from tests.searches import examples
from tests.streams import dags
from tests.streams.random_in_place import in_place_program

TWO_CORES = attrs.evolve(CAN, device_model=cpu(2))
X = torch.randn(16, 16)
KIB = 1024


def two_branches(x: torch.Tensor) -> torch.Tensor:
    """Each branch makes and drops 1 KiB blocks; side by side they need both's at once."""
    return x.mm(x).exp().mm(x).neg() + x.abs().mm(x).exp().mm(x)


def planned(module: fx.GraphModule, **wanted: Any) -> fx.GraphModule:
    apply(module.graph, Streams(**{"min_gain": 0, "cost": "none", **wanted}), TWO_CORES)
    module.recompile()
    return module


# What a plan needs.


def test_kernels_in_a_row_need_two_results_and_kernels_side_by_side_all_that_may_be_alive() -> None:
    row = [Life(0, 64, [1]), Life(1, 64, [2]), Life(2, 64, [])]
    assert footprint([0, 1, 2], [0, 0, 0], [], row, apart=False).nbytes == 128
    assert footprint([0, 1, 2], [0, 1, 0], [(0, 1), (1, 2)], row, apart=False).nbytes == 128
    # Two streams that know nothing of each other: each has a result that dies and one that comes after.
    beside = [Life(0, 64, [1]), Life(1, 64, []), Life(2, 64, [3]), Life(3, 64, [])]
    assert footprint([0, 1, 2, 3], [0, 0, 1, 1], [], beside, apart=False).nbytes == 256
    assert footprint([0, 1, 2, 3], [0, 0, 1, 1], [(1, 2)], beside, apart=False).nbytes == 128
    assert footprint([0, 1, 2, 3], [0, 0, 1, 1], [(1, 2)], beside, apart=True).nbytes == 256, "two pools of 128"
    assert footprint([], [], [], [], apart=False).nbytes == 0


def test_what_is_returned_is_not_counted_and_sizes_are_those_of_aligned_blocks() -> None:
    assert footprint([0], [0], [], [Life(0, 64, None)], apart=False).nbytes == 0
    assert footprint([0], [0], [], [Life(0, 65, [])], apart=False).nbytes == 128


def test_of_a_result_that_the_graph_returns_no_maker_is_known_to_begin() -> None:
    assert footprint([0], [0], [], [Life(0, 64.0, None)], apart=False).begins == [[-1]]


def test_a_kernel_waits_for_readers_of_older_results_until_it_fits() -> None:
    beside = [Life(0, 64, [1]), Life(1, 64, []), Life(2, 64, [3]), Life(3, 64, [])]
    order, streams = [0, 1, 2, 3], [0, 0, 1, 1]
    found = serialised(order, streams, [], beside, apart=False, budget=128)
    assert found is not None
    assert (found.nbytes, list(found.added)) == (128, [(1, 2)])
    assert serialised(order, streams, [], beside, apart=False, budget=127) is None
    free = serialised(order, streams, [], beside, apart=False, budget=256)
    assert free is not None
    assert list(free.added) == []


@pytest.mark.parametrize("apart", [False, True])
def test_what_takes_nothing_is_within_any_bound(apart: bool) -> None:
    found = serialised([0], [0], [], [Life(0, 64, None)], apart=apart, budget=1)
    assert found is not None
    assert (found.nbytes, list(found.added)) == (0, [])


def test_where_each_stream_has_a_pool_a_kernel_waits_for_readers_of_its_own_pool_alone() -> None:
    """Kernel 4 needs the memory of 2, which 3 reads on the other stream; 1 reads what lies in the other pool."""
    lives = [Life(0, 64, [1]), Life(2, 64, [3]), Life(4, 64, [])]
    found = _MemoryWalk([0, 1, 2, 3, 4], [0, 0, 1, 0, 1], [(2, 3)], lives, True, [64, 64]).run()
    assert found is not None
    assert (found.nbytes, found.added) == (128, [(3, 4)])


def test_what_is_returned_does_not_count_when_an_order_of_least_memory_is_looked_for() -> None:
    lives = [Life(0, 64, [2]), Life(1, 640, None), Life(2, 64, None)]
    assert least_memory([[2], [], []], lives) == [1, 0, 2]
    assert least_memory([[1], [], [3], []], [Life(n, 64, [n + 1] if n % 2 == 0 else None) for n in range(4)]) == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_the_order_of_least_memory_ends_what_it_began() -> None:
    """Breadth first all four results live at once; one branch after the other two do."""
    then = [[2], [3], [4], [4], []]
    lives = [Life(0, 640, [2]), Life(1, 640, [3]), Life(2, 64, [4]), Life(3, 64, [4])]
    order = least_memory(then, lives)
    assert order == [0, 2, 1, 3, 4]
    zeros = [0] * 5
    depth, breadth = (footprint(one, zeros, [], lives, apart=False).nbytes for one in (order, range(5)))
    assert depth < breadth


@st.composite
def plans(draw: Any) -> tuple[list[list[int]], list[int], list[Life]]:
    """(successors, streams, lives) of a random graph."""
    count = draw(st.integers(1, 14))
    chance = random.Random(draw(st.integers(0, 10**6)))
    density = chance.choice([0.1, 0.3, 0.6])
    then = [[t for t in range(index + 1, count) if chance.random() < density] for index in range(count)]
    streams = [chance.randrange(3) for _ in range(count)]
    lives = [
        Life(index, chance.randrange(1, 5) * 64, None if chance.random() < 0.1 else targets)
        for index, targets in enumerate(then)
    ]
    return then, streams, lives


@settings(max_examples=examples(150), deadline=None)
@given(plan=plans(), seed=st.integers(0, 99))
def test_no_run_that_streams_and_events_allow_has_more_alive(plan: Any, seed: int) -> None:
    then, streams, lives = plan
    order = list(range(len(then)))
    edges = sorted(dags.pairs(then))
    events = fewest_events(order, streams, edges)
    free = footprint(order, streams, events, lives, apart=False).nbytes
    assert most_alive(order, streams, events, lives, seed) <= free
    row = footprint(order, [0] * len(order), [], lives, apart=False)
    assert row.nbytes == most_alive(order, [0] * len(order), [], lives, seed)
    found = serialised(order, streams, events, lives, apart=False, budget=row.nbytes)
    assert found is not None, "one kernel after the other fits into what one stream takes"
    assert found.nbytes <= row.nbytes
    assert all(first < waiter and streams[first] != streams[waiter] for first, waiter in found.added)
    kept = fewest_events(order, streams, [*edges, *found.added])
    assert most_alive(order, streams, kept, lives, seed) <= row.nbytes
    assert placed(order, streams, lives, found) >= most_alive(order, streams, kept, lives, seed)
    pools = serialised(order, streams, events, lives, apart=True, budget=10**9)
    assert pools is not None
    assert pools.nbytes >= most_alive(order, streams, events, lives, seed)


def most_alive(
    order: Sequence[int], streams: Sequence[int], events: Sequence[tuple[int, int]], lives: Sequence[Life], seed: int
) -> int:
    """Of a random run that keeps stream order and events, one kernel at a time."""
    chance = random.Random(seed)
    before: dict[int, set[int]] = {index: {first for first, waiter in events if waiter == index} for index in order}
    last: dict[int, int] = {}
    for index in order:
        if streams[index] in last:
            before[index].add(last[streams[index]])
        last[streams[index]] = index
    done: set[int] = set()
    most = 0
    while len(done) < len(order):
        index = chance.choice([i for i in order if i not in done and before[i] <= done])
        known = done | {index}
        alive = [
            life.nbytes
            for life in lives
            if life.readers is not None and life.made_by in known and not {life.made_by, *life.readers} <= done
        ]
        most = max(most, int(sum(alive)))
        done.add(index)
    return most


# A bound.


def of_random_graph(seed: int, bound: str | None, apart: bool = False) -> tuple[Problem, list[ScheduledPlan]]:
    can = attrs.evolve(TWO_CORES, frees_early=apart)
    wanted = Streams(min_gain=0, max_streams=3, cost="none", max_memory=bound)
    problem = Problem.from_graph(in_place_program(seed, size=24).graph, wanted, can)
    chosen = candidates("makespan", problem.instance(3))
    return problem, [schedule(problem, one.streams, one.ranked) for one in chosen]


@pytest.mark.parametrize("apart", [False, True], ids=["one pool", "a pool for each stream"])
@pytest.mark.parametrize("graphs", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_no_plan_of_random_graphs_is_above_its_bound(graphs: int, apart: bool) -> None:
    over = slower = 0
    for seed in range(graphs):
        problem, free = of_random_graph(seed, "1.25x", apart)
        budget = budget_of(problem)
        assert budget is not None
        over += min(free, key=lambda plan: plan.rank).footprint.nbytes > budget
        found = bounded(problem, free)
        assert found
        assert all(plan.footprint.nbytes <= budget for plan in found)
        slower += min(plan.rank for plan in found) > min(plan.rank for plan in free)
    assert over > graphs / 2, "without the bound they are above it: the bound is what holds them"
    assert slower > graphs / 4, "and it costs time"


def test_without_a_bound_plans_are_as_they_were() -> None:
    problem, free = of_random_graph(1, None)
    assert bounded(problem, free) == free


def test_a_bound_that_nothing_keeps_is_refused_with_what_one_stream_takes() -> None:
    problem, free = of_random_graph(3, "100B")
    count = len(problem.kernels)
    orders = (range(count), least_memory(problem.then, problem.lives))
    own, best = (as_bytes(_pool(schedule(problem, [0] * count, ranked))) for ranked in orders)
    assert own != best
    words = rf"max_memory=100B is less .* on one stream: .* take {own} in its own order and {best} in .*memory\]"
    with pytest.raises(PlanError, match=words):
        bounded(problem, free)


def test_the_plan_says_what_it_needs_and_what_the_bound_costs() -> None:
    free = decision_of(planned(traced(two_branches, X)))
    assert free is not None
    assert free.prediction is not None
    assert (free.prediction.peak_bytes, free.prediction.serial_peak_bytes) == (6 * KIB, 3 * KIB)
    module = planned(traced(two_branches, X), max_memory="3KiB")
    decision = decision_of(module)
    assert decision is not None
    assert decision.prediction is not None
    assert decision.prediction.peak_bytes == 3 * KIB
    assert "3.0 KiB of intermediate results against 3.0 KiB on one stream, kept within" in decision.why
    assert "which costs" in decision.why
    validate(module.graph)
    assert run(module) == run(traced(two_branches, X))


def test_a_graph_that_is_over_the_bound_is_put_in_another_order_though_no_stream_pays() -> None:
    def breadth_first(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.mm(x), x.abs().mm(x), x.neg().mm(x)
        return torch.stack([a.sum(0) + b.sum(0) + c.sum(0)])

    wanted: dict[str, Any] = {"min_gain": 1.0, "cost": "roofline"}
    left = decision_of(planned(traced(breadth_first, X), **wanted))
    assert left is not None
    assert not left.applied
    module = planned(traced(breadth_first, X), **wanted, max_memory="3KiB")
    decision = decision_of(module)
    assert decision is not None
    assert decision.applied
    assert decision.prediction is not None
    assert decision.prediction.peak_bytes <= 3 * KIB < left.prediction.serial_peak_bytes  # type: ignore[union-attr]
    assert run(module) == run(traced(breadth_first, X))


def test_streams_that_a_person_wrote_stay_and_wait_more() -> None:
    aside = PlanEntry(stream="s", match=Match(name="re:abs.*|mm_2|mm_3|exp_1"))
    free, held = (planned(traced(two_branches, X), plan=(aside,), max_memory=bound) for bound in (None, "3KiB"))
    assert plan_of(free.graph).nodes == {**plan_of(held.graph).nodes}
    assert len(plan_of(held.graph).events) > len(plan_of(free.graph).events)
    with pytest.raises(PlanError, match=r"less than the plan needs: .* leave streams.plan to the planner. \[memory\]"):
        planned(traced(two_branches, X), plan=(aside,), max_memory="2KiB")


def test_streams_in_the_graph_that_are_over_the_bound_are_refused_or_replaced() -> None:
    module = planned(traced(two_branches, X))
    with pytest.raises(PlanError, match=r"The streams in the graph take 6.0 KiB .* streams.override=true"):
        planned(module, max_memory="3KiB")
    again = decision_of(planned(module, max_memory="3KiB", override=True))
    assert again is not None
    assert again.prediction is not None
    assert again.prediction.peak_bytes <= 3 * KIB


# The pool that is really placed.


@pytest.mark.parametrize("graphs", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_the_pool_of_the_native_replayer_is_never_above_the_bound(graphs: int) -> None:
    free_over = on_threads = 0
    with one_thread():
        for seed in range(graphs):
            module = in_place_program(seed, size=30)
            free = planned(copy.deepcopy(module), max_streams=3)
            planned(module, max_streams=3, max_memory="1.2x")
            decision = decision_of(module)
            assert decision is not None
            assert decision.prediction is not None
            most = int(1.2 * decision.prediction.serial_peak_bytes)
            inputs = some_inputs(module)
            recording = CapturedGraph.capture(
                module, inputs, workers=Workers(count=3), max_memory=MemoryBound.from_text(f"{most}B")
            )
            assert recording.facts()["pool_bytes"] <= most
            on_threads += recording.facts()["threads"] > 1
            unbounded = CapturedGraph.capture(free, some_inputs(free), workers=Workers(count=3))
            free_over += unbounded.facts()["pool_bytes"] > most
            assert all(map(same_bytes, recording.replay(*some_inputs(module)), free(*some_inputs(free))))
    assert free_over > graphs / 2, "without the bound they are above it"
    assert on_threads > graphs / 2, "and not because all fell back to one stream"


def test_a_recording_whose_streams_take_too_much_runs_on_one_and_says_why() -> None:
    module = planned(traced(two_branches, X))
    with one_thread():
        free = CapturedGraph.capture(module, [X], workers=Workers(count=2)).facts()
        assert (free["threads"], free["pool_bytes"] > free["one_stream_pool_bytes"]) == (2, True)
        most = free["one_stream_pool_bytes"]
        held = CapturedGraph.capture(
            module, [X], workers=Workers(count=2), max_memory=MemoryBound.from_text(f"{most}B")
        ).facts()
        assert (held["threads"], held["pool_bytes"]) == (1, most)
        assert held["why_threads"].endswith(f"more than streams.max_memory={most}B")
        again = CapturedGraph.capture(module, [X], workers=Workers(count=2), max_memory=MemoryBound.from_text("1x"))
        assert again.facts()["threads"] == 1
        with pytest.raises(CaptureError, match=r"take .* one after the other, more than streams.max_memory=64B"):
            CapturedGraph.capture(module, [X], workers=Workers(count=2), max_memory=MemoryBound.from_text("64B"))


def test_who_lives_beside_whom_is_known_while_torch_traces_with_fake_tensors() -> None:
    with FakeTensorMode():
        beside = interference([[1, -1], [-1, 1]], [[-1, -1], [1, -1]])
        assert [beside(block) for block in range(2)] == [[True, False], [False, True]]


def test_a_bound_acts_in_a_compiled_model() -> None:
    chosen = ["model=mla_prolog", "mode=reduce-overhead", "passes=stream_plan", "streams.min_gain=0"]
    (compilation,) = Session(checked([*chosen, "streams.max_memory=1.2x"])).compilations
    assert compilation.decision is not None
    assert compilation.decision.applied
