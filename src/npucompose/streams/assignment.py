"""Which kernel runs on which stream, in which order, with which events. Knows only numbers; loads no torch.

By the shape of a graph: chains by matching, merged where nothing is lost, laid on a few streams. The algorithms:
W. Kwon et al., "Nimble", NeurIPS 2020 (matching on the minimum equivalent graph gives the fewest synchronisations among
all plans that keep every two independent kernels apart); R. Dilworth 1950 by matching on the closure (the fewest
streams among those plans); and GE's own allocator as it is documented (matching on the edges as they are, a greedy
merge by score), to compare with.

By time, where it is known how long each kernel takes: list scheduling. The most urgent kernel (the heaviest path to the
end begins with it) goes where it can start first, on streams that work through their kernels in order, with a price for
every event and for waking a side stream. Cores are left to the simulation: kernels share them, so keeping two that want
all of them apart only leaves the others' streams idle (tried: 2 to 7 % slower in the simulation).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field, frozen

from npucompose.schema.streams import Objective
from npucompose.streams import dag
from npucompose.streams.dag import NONE, by_bits, hopcroft_karp
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

Chains = list[list[int]]


@frozen
class Shape:
    """A graph with what every algorithm asks of it, worked out once; `then` goes forward."""

    then: dag.Successors
    behind: Sequence[int]
    """Bit set of each node's descendants, itself included."""
    ahead: Sequence[int]
    """Bit set of each node's ancestors, itself included."""
    needed: Sequence[Sequence[int]]
    """The minimum equivalent graph, the successor with the most work behind it first."""
    weights: Sequence[float]

    @classmethod
    def from_work(cls, then: dag.Successors, weights: Sequence[float]) -> Shape:
        behind = dag.descendants(then)
        urgency = dag.longest_paths(weights, then)
        needed = [sorted(own, key=lambda t: (-urgency[t], t)) for own in dag.minimum_equivalent(then, behind)]
        return cls(then, behind, dag.ancestors(then), needed, weights)


def fewest_syncs(shape: Shape) -> Chains:
    """Chains with the fewest synchronisations among all plans that keep every two independent kernels apart.

    There are (edges of the minimum equivalent graph) - (pairs matched) of them; a chain continues in another one where
    everything of the one is done before everything of the other begins, which adds none.
    """
    return _merged(_follow(hopcroft_karp(shape.needed)), shape)


def fewest_streams(shape: Shape) -> Chains:
    """As few chains as there are kernels that can all run at once (the width), at more synchronisations."""
    closure = [reach & ~(1 << index) for index, reach in enumerate(shape.behind)]
    return _follow(by_bits(closure, hopcroft_karp(shape.needed)))


def paths_as_ge(shape: Shape) -> Chains:
    """GE's chains: a matching on the direct edges, without reduction and without closure."""
    return _follow(hopcroft_karp([list(dict.fromkeys(targets)) for targets in shape.then]))


def _follow(partner: Sequence[int]) -> Chains:
    """Chains in the order of their first nodes."""
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


def _merged(chains: Chains, shape: Shape) -> Chains:
    """Join chains end to beginning where the end reaches the beginning: a second matching, on the chains."""
    number = {chain[0]: index for index, chain in enumerate(chains)}
    heads = dag.bit_set(number)
    behind = [shape.behind[chain[-1]] & ~(1 << chain[-1]) & heads for chain in chains]
    reached = [dag.bit_set(number[head] for head in dag.bits(mask)) for mask in behind]
    return [[index for member in group for index in chains[member]] for group in _follow(by_bits(reached))]


@define
class _Lane:
    """A stream while chains are laid on it."""

    members: int = 0
    """Bit set of its nodes."""
    load: float = 0.0
    nodes: list[int] = field(factory=list)

    def take(self, chain: Sequence[int], load: float) -> None:
        self.members |= dag.bit_set(chain)
        self.load += load
        self.nodes += chain


EVENT_LOCAL, CONFLICT, LOAD, NEW_STREAM = 3, 4, 2, 2
"""What GE's score weighs too (compiler/graph/build/dag of GE), in its proportions: an event that falls away, a kernel
that could have overlapped, the load of a stream in even shares, the price of one more stream."""


def laid_on(chains: Chains, shape: Shape, streams: int) -> list[int]:
    """The stream of each node when at most `streams` may be used: chains are placed heaviest first.

    A chain goes where the fewest of its kernels lose a partner that they could run beside; then where most of its
    synchronisations fall away; then where the load is least. As many chains as streams keep a stream each.
    """
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
        lane.take(chain, loads[place])
    return _numbered([lane.nodes for lane in lanes])


def _numbered(groups: Sequence[Sequence[int]]) -> list[int]:
    """The number of each node's group."""
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
    """(stream of each kernel, the kernels in the order in which they were scheduled, a legal one); edges go forward.

    Two kernels of 5 µs and their sum, an event of 1 µs: ([0, 1, 0], [0, 1, 2]).
    """
    count = len(work)
    urgency = dag.longest_paths([item.us for item in work], then)
    before = dag.predecessors(then)
    missing = [len(sources) for sources in before]
    ready = [(-urgency[index], index) for index in range(count) if not missing[index]]
    heapq.heapify(ready)
    free = [0.0, *[model.stream_us] * (streams - 1)]
    tail: list[int | None] = [None] * streams
    end = [0.0] * count
    result = [0] * count
    order: list[int] = []
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
    """(stream, start): the earliest start; among equals the stream that ends with what is needed, then the first."""
    ranks: list[tuple[float, bool, int]] = []
    for stream, at in enumerate(free):
        there = [end[source] if result[source] == stream else end[source] + event_us for source in sources]
        ranks.append((max([at, *there]), tail[stream] not in sources, stream))
        if tail[stream] is None and stream:
            break  # all further streams are as empty as this one
    start, _, chosen = min(ranks)
    return chosen, start


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
    shape = Shape.from_work(then, [item.us for item in work])
    streams = laid_on(_CHAINS[objective](shape), shape, limit)
    found = [by_urgency(work, then, limit, model)] if objective == "makespan" else []
    return [_tidy(*one, then, work, factories) for one in (*found, (streams, range(len(work))))]


_CHAINS: Mapping[Objective, Callable[[Shape], Chains]] = {
    "makespan": fewest_syncs,
    "events": fewest_syncs,
    "streams": fewest_streams,
    "ge": paths_as_ge,
}


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


def in_runs(streams: Sequence[int], then: dag.Successors, ranked: Sequence[int]) -> list[int]:
    """One list in which each stream's kernels stand as in `ranked` (a legal order), in long runs of one stream.

    It stays on a stream while that one's next kernel may start, then takes the stream whose next kernel ranks first.
    `in_runs([0, 1, 0], [[], [], []], [0, 1, 2])` gives [0, 2, 1].
    """
    missing = dag.missing_predecessors(then)
    rank = {index: place for place, index in enumerate(ranked)}
    queues: dict[int, deque[int]] = {}
    for index in ranked:
        queues.setdefault(streams[index], deque()).append(index)
    order: list[int] = []
    while queues:
        heads = [(rank[queue[0]], stream) for stream, queue in queues.items() if not missing[queue[0]]]
        stream = min(heads)[1]
        queue = queues[stream]
        while queue and not missing[queue[0]]:
            index = queue.popleft()
            order.append(index)
            for target in then[index]:
                missing[target] -= 1
        if not queue:
            del queues[stream]
    return order


def fewest_events(order: Sequence[int], streams: Sequence[int], edges: dag.Edges) -> list[tuple[int, int]]:
    """(recorder, waiter) pairs, the fewest that make `order` on `streams` respect `edges`.

    These are the edges between streams of the transitive reduction of edges and stream order, which is unique. A clock
    for each stream says how far every other stream is known to be; a wait that a later one implies is left out.
    `order=[0, 1, 2], streams=[0, 1, 0], edges=[(0, 2), (1, 2)]` gives [(1, 2)].
    """
    place = {index: position for position, index in enumerate(order)}
    needs: dict[int, list[int]] = {}
    recorders: set[int] = set()
    for first, second in edges:
        if streams[first] != streams[second]:
            needs.setdefault(second, []).append(first)
            recorders.add(first)
    width = max(streams, default=0) + 1
    clocks = [[-1] * width for _ in range(width)]
    then_known: dict[int, list[int]] = {}
    events: list[tuple[int, int]] = []
    for index in order:
        own = streams[index]
        clock = clocks[own]
        latest: dict[int, int] = {}
        for first in needs.get(index, ()):
            stream, position = streams[first], place[first]
            if position > clock[stream] and position > latest.get(stream, -1):
                latest[stream] = position
        for stream, position in latest.items():
            others = (then_known[order[p]] for s, p in latest.items() if s != stream)
            if not any(other[stream] >= position for other in others):
                events.append((order[position], index))
        for position in latest.values():
            clock = [max(mine, theirs) for mine, theirs in zip(clock, then_known[order[position]], strict=True)]
        clock[own] = place[index]
        clocks[own] = clock
        if index in recorders:
            then_known[index] = list(clock)
    return events
