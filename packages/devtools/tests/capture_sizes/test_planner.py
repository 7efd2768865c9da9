"""Planned sizes pad least: against every choice there is, and within what the budget says."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucompose_devtools.capture_sizes import planner
from npucompose_devtools.capture_sizes.command import vllm_sizes
from npucompose_devtools.capture_sizes.planner import NoPlan, SizeBudget, least_padding, plan
from npucompose_devtools.capture_sizes.trace import Trace
from tests.searches import examples


def least_by_trying_all(trace: Trace, budget: SizeBudget) -> int | None:
    """Over every set of sizes of the trace that holds its largest step."""
    *smaller, largest = trace.steps
    paddings = [
        trace.padding((*chosen, largest))
        for count in range(min(budget.recordings, len(trace.steps)))
        for chosen in itertools.combinations(smaller, count)
        if math.fsum(map(budget.nbytes_of, (*chosen, largest))) <= budget.nbytes
    ]
    return min(paddings, default=None)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Trace, SizeBudget]:
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=9, unique=True))
    trace = Trace({size: draw(st.integers(1, 30)) for size in sorted(sizes)})
    fixed, each = draw(st.sampled_from([(0, 1), (1, 0), (5, 1), (1, 3), (0.5, 0.37)]))
    most = draw(st.sampled_from([math.inf, 0.9, 1.0, 1.3, 1.9, 2.6, 4.0])) * (fixed + each * max(sizes))
    recordings = draw(st.integers(1, 6))
    return trace, SizeBudget(recordings=recordings, nbytes=most, nbytes_of=lambda size: fixed + each * size)


@given(problems())
@settings(max_examples=examples(200), deadline=None)
def test_no_choice_pads_less_than_the_plan(problem: tuple[Trace, SizeBudget]) -> None:
    trace, budget = problem
    least = least_by_trying_all(trace, budget)
    if least is None:
        with pytest.raises(NoPlan, match=f"the recording of size {max(trace.steps)} alone is beyond the budget"):
            plan(trace, budget)
        return
    found = plan(trace, budget)
    assert (found.padding, found.beyond) == (least, 0)
    assert found.padding == trace.padding(found.sizes)
    assert found.nbytes == math.fsum(map(budget.nbytes_of, found.sizes)) <= budget.nbytes
    assert len(found.sizes) <= budget.recordings
    assert set(found.sizes) <= set(trace.steps)


@given(problems())
@settings(max_examples=examples(50), deadline=None)
def test_the_curve_has_the_least_padding_of_each_number_of_recordings(problem: tuple[Trace, SizeBudget]) -> None:
    trace, _ = problem
    curve = list(least_padding(trace, 99))
    assert curve == [
        (number, least_by_trying_all(trace, SizeBudget(recordings=number))) for number in range(1, len(curve) + 1)
    ]
    assert curve[-1] == (len(trace.steps), 0)


def test_what_is_left_up_to_a_size_has_the_steps_of_that_size() -> None:
    trace = Trace({1: 3, 8: 2, 9: 1})
    assert [dict(trace.up_to(largest).steps) for largest in (9, 8, 7)] == [trace.steps, {1: 3, 8: 2}, {1: 3}]


def lognormal(steps: int, largest: int) -> Trace:
    """A trace of a server whose load swings: many small steps, few large ones."""
    chance = random.Random(7)
    return Trace.of(min(largest, max(1, int(chance.lognormvariate(3.0, 1.0)))) for _ in range(steps))


def test_a_hundred_thousand_steps_are_padded_less_than_by_vllms_list() -> None:
    trace = lognormal(100_000, 512)
    theirs = vllm_sizes(max(trace.steps))
    found = plan(trace, SizeBudget(recordings=len(theirs)))
    assert len(found.sizes) <= len(theirs)
    assert found.padding <= 0.8 * trace.padding(theirs)


def test_a_plan_with_no_more_than_it_needs_takes_no_more() -> None:
    assert plan(Trace({4: 10, 9: 1}), SizeBudget(recordings=5)).sizes == (4, 9)


def test_a_bound_of_memory_that_binds_is_kept_and_costs_padding() -> None:
    trace = lognormal(20_000, 256)
    free = plan(trace, SizeBudget(recordings=24))
    bound = SizeBudget(recordings=24, nbytes=0.6 * sum(free.sizes), nbytes_of=float)
    held = plan(trace, bound)
    assert held.nbytes <= bound.nbytes
    assert held.padding > free.padding
    assert held.beyond == 0


def test_a_search_that_is_ended_says_how_much_it_may_have_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = lognormal(20_000, 256)
    free = plan(trace, SizeBudget(recordings=24))
    bound = SizeBudget(recordings=24, nbytes=0.4 * sum(free.sizes), nbytes_of=float)
    optimum = plan(trace, bound)
    monkeypatch.setattr(planner, "MOST_WAYS", 1)
    ended = plan(trace, bound)
    assert ended.beyond > 0
    assert ended.padding - ended.beyond <= optimum.padding <= ended.padding


def test_vllms_list_ends_with_the_first_size_that_holds_the_largest_step() -> None:
    assert vllm_sizes(20) == (1, 2, 4, 8, 16, 24)
    assert vllm_sizes(260)[-3:] == (248, 256, 272)
    assert len(vllm_sizes(512)) == 51  # what vLLM captures on a GPU up to 512
