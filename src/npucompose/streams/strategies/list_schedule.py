"""List scheduling by time alone: the most urgent kernel goes where it can start first. Knows only numbers.

The most urgent kernel (the heaviest path to the end begins with it) is placed first, on streams that work through their
kernels in order, with a price for every event and for waking a side stream. R. Graham, "Bounds on multiprocessing
timing anomalies", 1969. It takes cores for endless; `dispatch` does not.

A collective goes to the link, and the stream that issues it goes on. What waits for it is placed when it arrived, or
when there is nothing else to do: issued as early and awaited as late as other work allows, as Inductor's passes
`raise_comms` and `sink_waits` have it (torch/_inductor/comms.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel


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
    link_free = 0.0
    arriving: list[tuple[float, int]] = []  # (when what it waits for has arrived, kernel)
    while ready or arriving:
        has_arrived = bool(arriving) and (not ready or arriving[0][0] <= min(free))
        index = heapq.heappop(arriving if has_arrived else ready)[1]
        stream, start = _place(before[index], result, end, free, tail, model.event_us)
        result[index], tail[stream] = stream, index
        if work[index].link:
            end[index] = link_free = max(start, link_free) + work[index].us
        else:
            end[index] = free[stream] = start + work[index].us
        order.append(index)
        for target in then[index]:
            missing[target] -= 1
            if missing[target]:
                continue
            if work[target].awaits:
                heapq.heappush(arriving, (max(end[source] for source in before[target]), target))
            else:
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
