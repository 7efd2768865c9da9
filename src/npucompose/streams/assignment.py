"""The plans that may answer an objective: which kernel runs on which stream, and in which order. Loads no torch.

Each strategy is a function in `strategies/`; which of them are asked for an objective is said here, and the simulation
says which answer is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import attrs

from npucompose.schema.streams import DEFAULT_GE_POLICY, Objective
from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.chains import Chains, Shape, fewest_streams, fewest_syncs, laid_on
from npucompose.streams.strategies.dispatch import Policy, dispatch
from npucompose.streams.strategies.ge import cube_and_vector, load_balance, main_stream
from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan
from npucompose.streams.strategies.list_schedule import by_urgency
from npucompose.streams.strategies.relocation import relocated

Strategy = Callable[[Instance, TimedPlan], Assignment]
"""A plan of the kernels; the one with the fewest events that is known is given too."""
STRATEGIES: Sequence[Strategy] = (
    lambda instance, fewest: dispatch(instance, Policy(overbooking=0.5, feeding=10.0)),
    lambda instance, fewest: dispatch(instance, Policy(overbooking=2.0, feeding=10.0), fewest.streams),
    lambda instance, fewest: dispatch(instance, Policy(overbooking=2.0, most_booked=1.34)),
)
"""What is tried for `makespan` and `time` beside the list schedule and the chains, the most promising first: that is
all that a very large graph gets."""
ON_TWO: Strategy = lambda instance, fewest: dispatch(  # noqa: E731
    attrs.evolve(instance, streams=2), Policy(overbooking=0.5, feeding=3.0)
)
"""What is tried then where there are more than two streams: more streams can take longer."""
EFFORT = 20_000
"""So many kernels are dispatched at most, over all strategies."""
MATCHED = 4_000
"""A graph of more kernels gets no chains where time is asked for: reachability takes memory and time by the square, and
its chains lose to a dispatch (50,000 kernels: 11 of 13 seconds for twice the time)."""
CLOSE = 1.002
"""A plan so near to what no plan beats is good enough."""
KEPT = 4
"""So many plans are handed on beside the best one, for whoever has wishes beside time; one has several streams."""
MORE_EVENTS = 1.1
"""`makespan` may take so many times the events of the best plan that looks at no cores; `time` as many as it likes."""


def plans(objective: Objective, instance: Instance, ge_policy: str = DEFAULT_GE_POLICY) -> list[TimedPlan]:
    """Plans that answer the objective; the best one is that of the lowest rank. None for `makespan` or `time` is worse
    than the best of the list schedule and the chains."""
    known = [instance.timed(one) for one in candidates(objective, instance, ge_policy)]
    if objective not in ("makespan", "time"):
        return known
    basic = min(known, key=lambda plan: plan.rank)
    every = [*known, *_tried(known, basic, instance)]
    found = _improved(every, instance, MORE_EVENTS * len(basic.events) if any(basic.streams) else inf)
    return found if objective == "makespan" else [*_improved(every, instance, inf), *found[:1]]


def candidates(objective: Objective, instance: Instance, ge_policy: str = DEFAULT_GE_POLICY) -> list[Assignment]:
    """The plans that look at no cores: for `makespan` and `time` the list schedule and, of a graph that is not too
    large, the chains with the fewest events; for any other objective the plan by shape that it names."""
    then, work, limit = instance.then, instance.work, instance.streams
    if objective == "ge":
        return [Assignment(streams=_as_ge(ge_policy, then, work, limit), ranked=range(len(work)))]
    found: list[Assignment] = []
    if objective in ("makespan", "time"):
        streams, ranked = by_urgency(work, then, limit, instance.model)
        found.append(Assignment(streams=streams, ranked=ranked))
    if not found or len(work) <= MATCHED:
        shape = Shape.from_work(then, instance.us)
        found.append(Assignment(streams=laid_on(_CHAINS[objective](shape), shape, limit), ranked=range(len(work))))
    return found


def _improved(every: Sequence[TimedPlan], instance: Instance, most: float) -> list[TimedPlan]:
    """The best plan of at most so many events, relocated, with as few of them as its times allow, and some others."""
    found = [plan for plan in every if len(plan.events) <= most]
    best = min(found, key=lambda plan: plan.rank)
    if best.simulation.makespan > CLOSE * instance.least and not instance.communicates:
        best = relocated(instance, found, most)
    handed = sorted(found, key=lambda plan: plan.rank)
    several = [plan for plan in handed if any(plan.streams)]
    return [instance.with_fewer_events(best), *dict.fromkeys((*handed[:KEPT], *several[:1]))]


def _tried(known: Sequence[TimedPlan], basic: TimedPlan, instance: Instance) -> list[TimedPlan]:
    """Strategy by strategy until the effort is spent, or a plan cannot be much better."""
    fewest = min(known, key=lambda plan: len(plan.events))
    found: list[TimedPlan] = []
    enough, count = CLOSE * instance.least, len(instance.work)
    for number, strategy in enumerate((*STRATEGIES, *((ON_TWO,) if instance.streams > 2 else ())), 1):
        done = min([plan.simulation.makespan for plan in (basic, *found)]) <= enough
        if done or (number > 1 and number * count > EFFORT):
            break
        found.append(instance.timed(strategy(instance, fewest)))
    return found


_CHAINS: Mapping[Objective, Callable[[Shape], Chains]] = {
    "makespan": fewest_syncs,
    "time": fewest_syncs,
    "events": fewest_syncs,
    "streams": fewest_streams,
}


def _as_ge(policy: str, then: dag.Successors, work: Sequence[Work], limit: int) -> list[int]:
    """What GE's policy of that name (`Streams.ge_policy`) does with at most `limit` streams."""
    strategy, _, streams = policy.partition(":")
    if strategy == "cv":
        return cube_and_vector(then, work) if limit > 1 else [0] * len(work)
    return (load_balance if strategy == "LoadBalance" else main_stream)(then, min(limit, int(streams)))
