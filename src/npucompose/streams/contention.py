"""Kernels of two streams that want the same cores at one time: one waits for the other, or they divide the cores.

Side by side they only share: both are late, and what is behind either of them is. A simulation of the whole plan says
what is better: an order that no data asks for (two events of it take the textbook's V20-C40-V20 and V30-C20-V20 to
100 µs), or a part of the cores for each (two kernels that fill a device of T µs each take 1.5 T instead of 2 T where
half the cores cost half as much again). Both cases: cann-recipes-infer, multi_stream_principles.md, 2.1.3 and 2.2.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from npucompose.schema.streams import Cores
from npucompose.streams import dag
from npucompose.streams.problem import Pairs, ScheduledPlan, schedule
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
