"""Automatic plans: which algorithm answers which objective. Knows only numbers; loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from npucompose.schema.streams import Objective
from npucompose.streams import chains, dag
from npucompose.streams.schedule import by_urgency
from npucompose.streams.work import Work
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
) -> list[Assignment]:
    """The plans that may answer the objective; edges go forward, at most `limit` streams.

    For `makespan` both the list schedule and the plan with the fewest events: the simulation decides. `factories` are
    kernels that read nothing (`zeros`, `arange`): each goes where its first reader is, so that it needs no event.
    """
    found: list[Assignment] = []
    if objective == "makespan":
        streams, ranked = by_urgency(work, then, limit, model)
        found.append(Assignment(streams=streams, ranked=ranked))
    shape = chains.Shape.of(then, [item.us for item in work])
    streams = chains.laid_on(_CHAINS[objective](shape), shape, limit)
    found.append(Assignment(streams=streams, ranked=range(len(work))))
    return [_tidy(one, then, work, factories) for one in found]


_CHAINS: Mapping[Objective, Callable[[chains.Shape], chains.Chains]] = {
    "makespan": chains.fewest_syncs,
    "events": chains.fewest_syncs,
    "streams": chains.fewest_streams,
    "ge": chains.paths_as_ge,
}


def _tidy(found: Assignment, then: dag.Successors, work: Sequence[Work], factories: Sequence[int]) -> Assignment:
    """Stream 0 is the one with the most work, the others are numbered as the kernels need them.

    Stream 0 becomes the default stream, which needs no waking and carries the graph's outputs.
    """
    streams = list(found.streams)
    for index in reversed(factories):
        if then[index]:
            streams[index] = streams[min(then[index])]
    load: dict[int, float] = {}
    for index in found.ranked:
        load[streams[index]] = load.get(streams[index], 0.0) + work[index].us
    first = max(load, key=lambda stream: load[stream], default=0)
    number = {first: 0}
    for index in found.ranked:
        number.setdefault(streams[index], len(number))
    return Assignment(streams=[number[stream] for stream in streams], ranked=found.ranked)
