"""Plans that keep to `streams.max_memory`: a plan that needs more is repaired, and the fastest that fits is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from npucompose.errors import PlanError
from npucompose.schema.sizes import as_bytes
from npucompose.streams.memory import least_memory, placed, serialised
from npucompose.streams.problem import Problem, ScheduledPlan, schedule

ATTEMPTS = 6
"""A pool has gaps between its blocks: so often the kernels are asked to do with less."""


def bounded(problem: Problem, plans: Sequence[ScheduledPlan], *, may_move: bool = True) -> list[ScheduledPlan]:
    """Of each of `plans` the forms that keep to the bound, and one stream where kernels `may_move` to it.

    A plan that needs too much keeps its streams and gets order beside that of its data: a kernel waits until the
    readers of older results are done. It is tried with its kernels in its own order, in the graph's, and in the order
    that keeps the fewest bytes alive. Without a bound the plans are as they were. PlanError("memory", …) where nothing
    fits.
    """
    budget = budget_of(problem)
    if budget is None:
        return list(plans)
    found = [fitting for plan in plans for fitting in _forms(plan, budget)]
    if may_move:
        found += _one_stream(problem, budget)
    if not found:
        raise PlanError("memory", _refusal(problem, plans, budget, may_move))
    return found


def budget_of(problem: Problem) -> int | None:
    """The bound in bytes; None where there is none."""
    bound = problem.wanted.memory_bound
    return None if bound is None else bound.nbytes(problem.one_stream.nbytes)


def is_over(problem: Problem) -> bool:
    """Whether the graph as it stands, on one stream, needs more than the bound."""
    budget = budget_of(problem)
    as_it_is = schedule(problem, [0] * len(problem.kernels), range(len(problem.kernels)))
    return budget is not None and _pool(as_it_is) > budget


def check_bound(plan: ScheduledPlan) -> None:
    """Raise PlanError("memory", …) where streams that stand in the graph need more than the bound."""
    budget = budget_of(plan.problem)
    if budget is not None and _pool(plan) > budget:
        raise PlanError(
            "memory",
            f"The streams in the graph take {as_bytes(_pool(plan))} of intermediate results, more than "
            f"streams.max_memory={plan.problem.wanted.max_memory}. Raise it, or say streams.override=true: streams are "
            "then found that keep to it.",
        )


def _forms(plan: ScheduledPlan, budget: int) -> Iterator[ScheduledPlan]:
    """The plan where it fits; else what is made of it so that it does."""
    if _pool(plan) <= budget:
        yield plan
        return
    problem = plan.problem
    for ranked in (plan.order, *_orders(problem)):
        fitting = _repaired(schedule(problem, plan.streams, ranked), ranked, budget)
        if fitting is not None:
            yield fitting


def _orders(problem: Problem) -> tuple[Sequence[int], Sequence[int]]:
    return range(len(problem.kernels)), least_memory(problem.then, problem.lives)


def _one_stream(problem: Problem, budget: int) -> Iterator[ScheduledPlan]:
    ways = (schedule(problem, [0] * len(problem.kernels), ranked) for ranked in _orders(problem))
    return islice((way for way in ways if _pool(way) <= budget), 1)


def _repaired(plan: ScheduledPlan, ranked: Sequence[int], budget: int) -> ScheduledPlan | None:
    """The plan with as much order added as keeps it within the budget; None where its list is over it in a row."""
    problem, target = plan.problem, budget
    for _ in range(ATTEMPTS):
        found = serialised(
            plan.order, plan.streams, plan.events, problem.lives, apart=problem.pools_apart, budget=target
        )
        if found is None:
            return None
        tried = schedule(problem, plan.streams, ranked, found.added)
        over = _pool(tried) - budget
        if over <= 0:
            return tried
        target -= over
    return None


def _pool(plan: ScheduledPlan) -> int:
    """The bytes that the results are predicted to take; where one pool serves all streams, with the gaps in it."""
    problem, found = plan.problem, plan.footprint
    if problem.pools_apart:
        return found.nbytes
    return max(found.nbytes, placed(plan.order, plan.streams, problem.lives, found))


def _refusal(problem: Problem, plans: Sequence[ScheduledPlan], budget: int, may_move: bool) -> str:
    asked = f"streams.max_memory={problem.wanted.max_memory}"
    if problem.wanted.max_memory != as_bytes(budget).replace(" ", ""):
        asked += f" ({as_bytes(budget)})"
    if not may_move:
        least = min(_pool(plan) for plan in plans)
        return (
            f"{asked} is less than the plan needs: its intermediate results take {as_bytes(least)}, and on its streams "
            "no order that was tried needs less than the bound. Raise it, or leave streams.plan to the planner."
        )
    own, best = (_pool(schedule(problem, [0] * len(problem.kernels), ranked)) for ranked in _orders(problem))
    return (
        f"{asked} is less than the graph needs even on one stream: its intermediate results take {as_bytes(own)} in "
        f"its own order and {as_bytes(best)} in the one that keeps the fewest bytes alive of those that were tried. "
        "Raise the bound or make the inputs smaller."
    )
