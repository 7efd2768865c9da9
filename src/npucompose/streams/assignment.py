"""The plans that may answer an objective: which kernel runs on which stream, and in which order. Loads no torch.

Each strategy is a function in `strategies/`; which of them are asked for an objective is said here, and the simulation
says which answer is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from npucompose.schema.streams import DEFAULT_GE_POLICY, Objective
from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.chains import Chains, Shape, fewest_streams, fewest_syncs, laid_on
from npucompose.streams.strategies.ge import cube_and_vector, load_balance, main_stream
from npucompose.streams.strategies.list_schedule import by_urgency
from npucompose.vendor.devices import DeviceModel


@frozen(kw_only=True)
class Assignment:
    """A stream for each kernel, and the order in which each stream takes its kernels."""

    streams: Sequence[int]
    ranked: Sequence[int]


def candidates(
    objective: Objective,
    then: dag.Successors,
    work: Sequence[Work],
    limit: int,
    model: DeviceModel,
    factories: Sequence[int] = (),
    ge_policy: str = DEFAULT_GE_POLICY,
) -> list[Assignment]:
    """The plans that may answer the objective; edges go forward, at most `limit` streams.

    For `makespan` both the list schedule and the plan with the fewest events: the simulation decides. `factories` are
    kernels that read nothing (`zeros`, `arange`): each goes where its first reader is, so that it needs no event.
    """
    if objective == "ge":
        return [_tidy(_as_ge(ge_policy, then, work, limit), range(len(work)), then, work, factories)]
    shape = Shape.from_work(then, [item.us for item in work])
    streams = laid_on(_CHAINS[objective](shape), shape, limit)
    found = [by_urgency(work, then, limit, model)] if objective == "makespan" else []
    return [_tidy(*one, then, work, factories) for one in (*found, (streams, range(len(work))))]


_CHAINS: Mapping[Objective, Callable[[Shape], Chains]] = {
    "makespan": fewest_syncs,
    "events": fewest_syncs,
    "streams": fewest_streams,
}


def _as_ge(policy: str, then: dag.Successors, work: Sequence[Work], limit: int) -> list[int]:
    """What GE's policy of that name (`Streams.ge_policy`) does with at most `limit` streams."""
    strategy, _, streams = policy.partition(":")
    if strategy == "cv":
        return cube_and_vector(then, work) if limit > 1 else [0] * len(work)
    return (load_balance if strategy == "LoadBalance" else main_stream)(then, min(limit, int(streams)))


def _tidy(
    found: Sequence[int], ranked: Sequence[int], then: dag.Successors, work: Sequence[Work], factories: Sequence[int]
) -> Assignment:
    """Stream 0 is the one with the most work, the others are numbered as the kernels need them.

    Stream 0 becomes the default stream, which needs no waking and carries the graph's outputs.
    """
    streams = list(found)
    for index in reversed(factories):
        if then[index]:
            streams[index] = streams[min(then[index])]
    load: dict[int, float] = dict.fromkeys((streams[index] for index in ranked), 0.0)
    for index in ranked:
        load[streams[index]] += work[index].us
    first = max(load, key=lambda stream: load[stream], default=0)
    number = {stream: place for place, stream in enumerate(dict.fromkeys((first, *load)))}
    return Assignment(streams=[number[stream] for stream in streams], ranked=ranked)
