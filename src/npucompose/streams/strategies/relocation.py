"""Local search: a kernel is put on another stream or to another place, and stays there if the plan gets better.

Kernel by kernel, each to its best place: reinsertion as in S. Dauzère-Pérès, J. Paulli, "An integrated approach for
modeling and solving the general multiprocessor job-shop scheduling problem", 1997, with a simulation for each place,
which ends as soon as the place is certain to be no better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan, tidy

EFFORT = 6_000
"""So many kernels are simulated at most, whatever the clock says: the same graph gets the same plan."""


LEAST = 10
"""Simulations without which the search is not begun: on more than 600 kernels."""


def relocated(instance: Instance, starts: Sequence[TimedPlan], most_events: float) -> TimedPlan:
    """The best plan that is reached from any of `starts`, the best of them first, until the effort is spent.

    From each on to the plan where no single move is an improvement any more.
    """
    found: list[TimedPlan] = []
    left = EFFORT // max(1, len(instance.work))
    if left < LEAST:
        return min(starts, key=lambda plan: plan.rank)
    for start in sorted(starts, key=lambda plan: plan.rank):
        better, left = _climbed(instance, start, most_events, left)
        found.append(better)
        if not left:
            break
    return min(found, key=lambda plan: plan.rank)


def _climbed(instance: Instance, start: TimedPlan, most_events: float, left: int) -> tuple[TimedPlan, int]:
    """(the best plan reached, how many simulations are left): kernel by kernel, each to its best place."""
    best, unchanged = start, 0
    # What was no better than the best plan of then is no better now.
    seen = set[tuple[tuple[int, ...], ...]]()
    kernels = deque(sorted(range(len(instance.work)), key=lambda index: (-instance.urgency[index], index)))
    while unchanged < len(kernels):
        found = best
        for neighbour in _neighbours(instance, best, kernels[0]):
            if not left:
                return found, 0
            left -= 1
            tidied = tidy(neighbour, instance)
            queues = _queues(tidied)
            if queues in seen:
                continue
            seen.add(queues)
            plan = instance.realised_within(tidied, found.makespan)
            if plan is not None and len(plan.events) <= most_events and plan.rank < found.rank:
                found = plan
        unchanged = unchanged + 1 if found is best else 0
        best = found
        kernels.rotate(-1)
    return best, left


def _queues(found: Assignment) -> tuple[tuple[int, ...], ...]:
    """The kernels of each stream, which are all that tells two plans apart."""
    queues: dict[int, list[int]] = {}
    for index in found.ranked:
        queues.setdefault(found.streams[index], []).append(index)
    return tuple(tuple(queues[stream]) for stream in sorted(queues))


def _neighbours(instance: Instance, plan: TimedPlan, index: int) -> Iterator[Assignment]:
    """The plan with one kernel elsewhere: on each stream at each place that its predecessors and successors allow."""
    start = plan.simulation.start
    order = sorted(plan.order, key=start.__getitem__)
    rest = [other for other in order if other != index]
    place = {other: position for position, other in enumerate(rest)}
    first = max([place[source] + 1 for source in instance.before[index]], default=0)
    last = min([place[target] for target in instance.then[index]], default=len(rest))
    used = max(plan.streams)
    own = [other for other in order if plan.streams[other] == plan.streams[index]]
    for stream in range(min(instance.streams, used + 2)):
        streams = [*plan.streams[:index], stream, *plan.streams[index + 1 :]]
        # Only the kernels of the stream tell places apart.
        for position in range(first, last + 1):
            if position > first and plan.streams[rest[position - 1]] != stream:
                continue
            ranked = [*rest[:position], index, *rest[position:]]
            if stream == plan.streams[index] and own == [o for o in ranked if plan.streams[o] == stream]:
                continue
            yield Assignment(streams=streams, ranked=ranked)
