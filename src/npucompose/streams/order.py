"""The kernels of a graph as numbers: legal orders, who is behind whom, and the fewest events an order needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from npucompose.errors import PlanError

Edges = Iterable[tuple[int, int]]


def successors(count: int, edges: Edges) -> list[list[int]]:
    then: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges:
        then[first].append(second)
    return then


def in_runs(streams: Sequence[str], edges: Edges, names: Sequence[str]) -> list[int]:
    """A legal order in long runs of one stream: stay on a stream while it has something to do, then take the stream
    whose next kernel stood first. `streams=["default", "s", "default"]` without edges gives [0, 2, 1].

    Raises PlanError("cycle", …) with the path when the edges contradict one another.
    """
    then = successors(len(streams), edges)
    missing = [0] * len(streams)
    for targets in then:
        for target in targets:
            missing[target] += 1
    ready: dict[str, list[int]] = {}
    for index, count in enumerate(missing):
        if not count:
            ready.setdefault(streams[index], []).append(index)
    order: list[int] = []
    current = ""
    while True:
        if not ready.get(current):
            waiting = [(heap[0], stream) for stream, heap in ready.items() if heap]
            if not waiting:
                break
            current = min(waiting)[1]
        index = heapq.heappop(ready[current])
        order.append(index)
        for target in then[index]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready.setdefault(streams[target], []), target)
    if len(order) < len(streams):
        path = _cycle(then, set(range(len(streams))) - set(order))
        raise PlanError("cycle", f"The order asked for goes in a circle: {' -> '.join(names[i] for i in path)}.")
    return order


def _cycle(then: Sequence[Sequence[int]], stuck: set[int]) -> list[int]:
    """A circle among nodes that could never start: walk backwards, each has a predecessor that is stuck too."""
    before = {target: index for index in stuck for target in then[index] if target in stuck}
    at = min(before)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = before[at]
    circle = walk[seen[at] :][::-1]
    turn = circle.index(min(circle))
    circle = circle[turn:] + circle[:turn]
    return [*circle, circle[0]]


def descendants(then: Sequence[Sequence[int]]) -> list[int]:
    """For each node a bit set of everything behind it, itself included; every edge goes from a low to a high number."""
    reach = [0] * len(then)
    for index in range(len(then) - 1, -1, -1):
        bits = 1 << index
        for target in then[index]:
            bits |= reach[target]
        reach[index] = bits
    return reach


def fewest_events(order: Sequence[int], streams: Sequence[str], edges: Edges) -> list[tuple[int, int]]:
    """(recorder, waiter) pairs, the fewest that make `order` on `streams` respect `edges`.

    These are the edges between streams of the transitive reduction of edges and stream order, which is unique. A clock
    for each kernel says how far every other stream is known to be; a wait that a later one implies is left out.
    `order=[0, 1, 2], streams=["default", "s", "default"], edges=[(0, 2), (1, 2)]` gives [(1, 2)].
    """
    place = {index: position for position, index in enumerate(order)}
    needs: dict[int, list[int]] = {}
    for first, second in edges:
        if streams[first] != streams[second]:
            needs.setdefault(second, []).append(first)
    known: dict[str, dict[str, int]] = {stream: {} for stream in streams}
    clocks: dict[int, Mapping[str, int]] = {}
    events: list[tuple[int, int]] = []
    for index in order:
        clock = known[streams[index]]
        latest: dict[str, int] = {}
        for first in needs.get(index, ()):
            if place[first] > clock.get(streams[first], -1):
                latest[streams[first]] = max(latest.get(streams[first], -1), place[first])
        for stream, position in latest.items():
            others = (clocks[order[p]] for s, p in latest.items() if s != stream)
            if not any(other.get(stream, -1) >= position for other in others):
                events.append((order[position], index))
        for position in latest.values():
            for stream, at in clocks[order[position]].items():
                clock[stream] = max(clock.get(stream, -1), at)
        clock[streams[index]] = place[index]
        clocks[index] = dict(clock) if len(known) > 1 else clock
    return events
