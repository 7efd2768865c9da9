"""The plan as it was before plans knew of cores (commit 39f0dc0), re-stated to compare with.

A list schedule by urgency, or the plan with the fewest events laid on the streams heaviest chain first, whichever the
simulation prefers. Nothing here follows what the product does since.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from attrs import define, field, frozen

from npucompose.streams import dag
from npucompose.streams.dag import NONE, by_bits, hopcroft_karp
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

Chains = list[list[int]]
Ranked = tuple[Sequence[int], Sequence[int]]
"""(stream of each kernel, the kernels in the order in which each stream takes its own)."""
EVENT_LOCAL, CONFLICT, LOAD, NEW_STREAM = 3, 4, 2, 2


def alternatives(then: dag.Successors, work: Sequence[Work], streams: int, model: DeviceModel) -> list[Ranked]:
    shape = Shape.from_work(then, [item.us for item in work])
    laid = laid_on(fewest_syncs(shape), shape, streams), range(len(work))
    return [_tidy(*found, work) for found in (by_urgency(work, then, streams, model), laid)]


@frozen
class Shape:
    """A graph with what the chains ask of it; `then` goes forward."""

    then: dag.Successors
    behind: Sequence[int]
    ahead: Sequence[int]
    needed: Sequence[Sequence[int]]
    weights: Sequence[float]

    @classmethod
    def from_work(cls, then: dag.Successors, weights: Sequence[float]) -> Shape:
        behind = dag.descendants(then)
        urgency = dag.longest_paths(weights, then)
        needed = [sorted(own, key=lambda t: (-urgency[t], t)) for own in dag.minimum_equivalent(then, behind)]
        return cls(then, behind, dag.ancestors(then), needed, weights)


def fewest_syncs(shape: Shape) -> Chains:
    """Nimble's chains, joined end to beginning by its second matching."""
    chains = _follow(hopcroft_karp(shape.needed))
    number = {chain[0]: index for index, chain in enumerate(chains)}
    heads = dag.bit_set(number)
    behind = [shape.behind[chain[-1]] & ~(1 << chain[-1]) & heads for chain in chains]
    reached = [dag.bit_set(number[head] for head in dag.bits(mask)) for mask in behind]
    return [[index for member in group for index in chains[member]] for group in _follow(by_bits(reached))]


def _follow(partner: Sequence[int]) -> Chains:
    follows = set(partner)
    chains: Chains = []
    for index in range(len(partner)):
        if index in follows:
            continue
        chain = [index]
        while partner[chain[-1]] != NONE:
            chain.append(partner[chain[-1]])
        chains.append(chain)
    return chains


@define
class _Lane:
    members: int = 0
    load: float = 0.0
    nodes: list[int] = field(factory=list)


def laid_on(chains: Chains, shape: Shape, streams: int) -> list[int]:
    """Heaviest chain first: where it conflicts least, saves most events, finds least load."""
    if len(chains) <= streams:
        return _numbered(chains)
    before = dag.predecessors(shape.needed)
    lanes = [_Lane() for _ in range(streams)]
    loads = [sum(shape.weights[index] for index in chain) for chain in chains]
    share = sum(loads) / streams or 1.0
    for place in sorted(range(len(chains)), key=lambda i: (-loads[i], chains[i][0])):
        chain = chains[place]
        ordered = shape.ahead[chain[0]] | shape.behind[chain[-1]]
        near = dag.bit_set(other for index in chain for other in (*shape.needed[index], *before[index]))
        lane = min(lanes, key=lambda lane: _score(lane, chain, ordered, near, share))
        lane.members |= dag.bit_set(chain)
        lane.load += loads[place]
        lane.nodes += chain
    return _numbered([lane.nodes for lane in lanes])


def _numbered(groups: Sequence[Sequence[int]]) -> list[int]:
    number = {index: place for place, group in enumerate(groups) for index in group}
    return [number[index] for index in range(len(number))]


def _score(lane: _Lane, chain: Sequence[int], ordered: int, near: int, share: float) -> float:
    conflict = min((lane.members & ~ordered).bit_count(), len(chain))
    saved = (lane.members & near).bit_count()
    new = 0 if lane.members else NEW_STREAM
    return CONFLICT * conflict - EVENT_LOCAL * saved + LOAD * len(chain) * lane.load / share + new


def by_urgency(
    work: Sequence[Work], then: dag.Successors, streams: int, model: DeviceModel
) -> tuple[list[int], list[int]]:
    """The kernel with the heaviest path to the end goes where it can start first; cores are not looked at."""
    urgency = dag.longest_paths([item.us for item in work], then)
    before = dag.predecessors(then)
    missing = [len(sources) for sources in before]
    ready = [(-urgency[index], index) for index in range(len(work)) if not missing[index]]
    heapq.heapify(ready)
    free = [0.0, *[model.stream_us] * (streams - 1)]
    tail: list[int | None] = [None] * streams
    end, result, order = [0.0] * len(work), [0] * len(work), list[int]()
    while ready:
        index = heapq.heappop(ready)[1]
        stream, start = _place(before[index], result, end, free, tail, model.event_us)
        result[index], end[index] = stream, start + work[index].us
        free[stream], tail[stream] = end[index], index
        order.append(index)
        for target in then[index]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, (-urgency[target], target))
    return result, order


def _place(
    sources: Sequence[int],
    result: Sequence[int],
    end: Sequence[float],
    free: Sequence[float],
    tail: Sequence[int | None],
    event_us: float,
) -> tuple[int, float]:
    ranks: list[tuple[float, bool, int]] = []
    for stream, at in enumerate(free):
        there = [end[source] if result[source] == stream else end[source] + event_us for source in sources]
        ranks.append((max([at, *there]), tail[stream] not in sources, stream))
        if tail[stream] is None and stream:
            break  # all further streams are as empty as this one
    start, _, chosen = min(ranks)
    return chosen, start


def _tidy(streams: Sequence[int], ranked: Sequence[int], work: Sequence[Work]) -> Ranked:
    """Stream 0 is the one with the most work, the others are numbered as the kernels need them."""
    load: dict[int, float] = dict.fromkeys((streams[index] for index in ranked), 0.0)
    for index in ranked:
        load[streams[index]] += work[index].us
    first = max(load, key=lambda stream: load[stream], default=0)
    number = {stream: place for place, stream in enumerate(dict.fromkeys((first, *load)))}
    return [number[stream] for stream in streams], ranked
