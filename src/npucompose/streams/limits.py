"""What a plan may take: cores that kernels of two streams want at one time, and memory within `streams.max_memory`.

Side by side two kernels only share cores: both are late, and what is behind either of them is. A simulation of the
whole plan says what is better: an order that no data asks for (two events of it take the textbook's V20-C40-V20 and
V30-C20-V20 to 100 µs), or a part of the cores for each (two kernels that fill a device of T µs each take 1.5 T instead
of 2 T where half the cores cost half as much again). Both cases: cann-recipes-infer, multi_stream_principles.md, 2.1.3
and 2.2.2. A plan that needs more memory than it may is repaired, and the fastest that fits is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from attrs import frozen

from npucompose.errors import PlanError
from npucompose.schema.sizes import as_bytes
from npucompose.schema.streams import Cores
from npucompose.streams import dag
from npucompose.streams.memory import least_memory, placed, serialised
from npucompose.streams.problem import Pairs, Problem, ScheduledPlan, schedule
from npucompose.streams.simulate import Load
from npucompose.vendor.devices import DeviceModel

ORDERED, DIVIDED = 10_000, 100_000
"""Kernels that may be simulated while one plan is improved, by order alone and by divided cores: some 0.1 and 1 s."""
LEAST = 20
"""Attempts without which adding order is not begun: on more than 500 kernels."""
WORTH = 1e-3
"""Share of the plan's time that a change has to save: below it a prediction says nothing."""
PARTS = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1))
"""Proportions in which two streams divide the cores."""


@frozen
class _Change:
    """What one attempt adds to a plan."""

    limits: Mapping[int, Cores]
    added: Pairs


def settled(plan: ScheduledPlan, *, order: bool, divide: bool, max_events: int | None = None) -> ScheduledPlan:
    """The same streams with the added order, or with `divide` the limits of cores, that the simulation likes best.

    The same plan where nothing helps, where it would need more events, and where a large graph leaves no time to try.
    """
    count = len(plan.streams)
    if plan.simulation.stuck or not count or not (order or divide):
        return plan
    tries = max(1, DIVIDED // count) if divide else ORDERED // count
    if tries < LEAST and not divide:
        return plan
    urgency = dag.longest_paths([item.us for item in plan.work], plan.problem.then)
    seen: set[tuple[int, int]] = set()
    while tries > 0:
        pairs = [pair for pair in contended(plan) if pair not in seen]
        if not pairs:
            break
        everywhere = sorted({index for pair in pairs for index in pair})
        changes = list(_divisions(plan, everywhere)) if divide and not seen else []
        first, second = sorted(pairs[0], key=lambda index: (-urgency[index], index))
        changes += _turns(first, second) if order else ()
        changes += _nearby(plan, first, pairs) if divide else ()
        tries -= len(changes)
        seen.add(pairs[0])
        plan = _best(plan, changes, max_events)
    return plan


def _best(plan: ScheduledPlan, changes: Sequence[_Change], max_events: int | None) -> ScheduledPlan:
    """The plan after the best of the changes; the plan itself where none is worth it."""
    found = plan
    for change in changes:
        added = (*plan.added, *change.added)
        other = schedule(plan.problem, plan.streams, plan.order, added, {**plan.limits, **change.limits})
        fits = max_events is None or len(other.events) <= max_events
        least = plan.simulation.makespan * (1 - WORTH)
        if fits and other.simulation.makespan < least and other.rank < found.rank:
            found = other
    return found


def contended(plan: ScheduledPlan) -> list[tuple[int, int]]:
    """Kernels that run at one time, the earlier one first, and want cores that the device has not for both."""
    work, start, end = plan.work, plan.simulation.start, plan.simulation.end
    load, running, found = Load(plan.problem.model), list[int](), list[tuple[int, int]]()
    for index in sorted(range(len(work)), key=lambda index: (start[index], index)):
        for other in [other for other in running if end[other] <= start[index]]:
            running.remove(other)
            load.add(work[other], -1)
        load.add(work[index])
        cube, vector, _ = load.shares()
        mine = work[index]
        found += [
            (other, index)
            for other in running
            if (cube < 1 and mine.cube and work[other].cube) or (vector < 1 and mine.vector and work[other].vector)
        ]
        running.append(index)
    return [(one, other) for one, other in found if not (work[one].gang or work[other].gang)]


def _turns(urgent: int, other: int) -> list[_Change]:
    """One waits for the other, the more urgent one goes first where it makes no difference."""
    return [_Change({}, ((urgent, other),)), _Change({}, ((other, urgent),))]


def _nearby(plan: ScheduledPlan, kernel: int, pairs: Pairs) -> Iterator[_Change]:
    """A kernel and those in its way divide the cores, or all that are in each other's way from there on."""
    direct = sorted({index for pair in pairs if kernel in pair for index in pair})
    yield from _divisions(plan, direct)
    if (near := _connected(kernel, pairs)) != direct:
        yield from _divisions(plan, near)


def _divisions(plan: ScheduledPlan, kernels: Sequence[int]) -> Iterator[_Change]:
    """The cores divided among the streams of these kernels: in even parts, two streams also in others."""
    streams = sorted({plan.streams[index] for index in kernels})
    for parts in PARTS if len(streams) == 2 else [(1,) * len(streams)]:
        limit = dict(zip(streams, _shares(plan.problem.model, parts), strict=True))
        yield _Change({index: limit[plan.streams[index]] for index in kernels}, ())


def _shares(model: DeviceModel, parts: Sequence[int]) -> list[Cores]:
    whole = sum(parts)
    return [
        Cores(aicore=max(1, model.cube * part // whole), vectorcore=max(1, model.vector * part // whole))
        for part in parts
    ]


def _connected(kernel: int, pairs: Pairs) -> list[int]:
    """The kernels that are in each other's way, beginning with this one."""
    beside: dict[int, list[int]] = {}
    for one, other in pairs:
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    found, todo = {kernel}, [kernel]
    while todo:
        fresh = [other for other in beside[todo.pop()] if other not in found]
        found.update(fresh)
        todo += fresh
    return sorted(found)


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
        fitting = _repaired(schedule(problem, plan.streams, ranked, limits=plan.limits), ranked, budget)
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
        tried = schedule(problem, plan.streams, ranked, found.added, plan.limits)
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
