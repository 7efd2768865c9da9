"""The order in which a plan lists its kernels, and the events that streams in that order need. Knows only numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from npucompose.streams import dag


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


def merged_events(
    order: Sequence[int],
    streams: Sequence[int],
    events: Sequence[tuple[int, int]],
    times: tuple[Sequence[float], Sequence[float]],
    event_us: float,
) -> list[tuple[int, int]]:
    """Fewer events that keep all of `events`, by order that no data asks for and that moves no kernel in time.

    `times` are start and end of each kernel. Between two streams an event may stand before any kernel of the waiting
    one that starts late enough anyway; the fewest places that serve all events between them are found from the first
    that must be served on (the stabbing of intervals: J. Kleinberg, E. Tardos, "Algorithm Design", 2005). Streams
    [0, 0, 1, 1] with the events (0, 2) and (1, 3), where 2 starts after the end of 1: [(1, 2)].
    """
    start, end = times
    queues: dict[int, list[int]] = {}
    place: dict[int, int] = {}
    for index in order:
        queue = queues.setdefault(streams[index], [])
        place[index] = len(queue)
        queue.append(index)
    starts = {stream: [start[index] for index in queue] for stream, queue in queues.items()}
    between: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for recorder, waiter in events:
        through = end[recorder] + event_us
        # Where recorder and event take no time, a kernel that it needs itself may start at that time too.
        first = bisect_left(starts[streams[waiter]], through) if through > start[recorder] else place[waiter]
        between.setdefault((streams[recorder], streams[waiter]), []).append((place[waiter], first, place[recorder]))
    return [
        (queues[source][recorder], queues[target][waiter])
        for (source, target), spans in between.items()
        for recorder, waiter in _stabbed(spans)
    ]


def _stabbed(spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """[(last recorder, place)]: the fewest places for spans (last place, first place, recorder)."""
    found: list[tuple[int, int]] = []
    for last, first, recorder in sorted(spans):
        if found and found[-1][1] >= first:
            found[-1] = max(found[-1][0], recorder), found[-1][1]
        else:
            found.append((recorder, last))
    return found
