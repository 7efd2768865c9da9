"""Acyclic graphs whose nodes are the numbers 0, 1, 2, …: order, reachability, and the edges that matter.

A graph is the list of each node's successors. Sets of nodes are bits of one Python integer: with 10,000 nodes the sets
of everything behind every node take 12 MB and a tenth of a second. Knows no kernel; loads no torch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

Edges = Iterable[tuple[int, int]]
Successors = Sequence[Sequence[int]]


def successors(count: int, edges: Edges) -> list[list[int]]:
    then: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges:
        then[first].append(second)
    return then


def predecessors(then: Successors) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in then]
    for index, targets in enumerate(then):
        for target in targets:
            before[target].append(index)
    return before


def topological(then: Successors) -> tuple[list[int], list[int]]:
    """(a legal order, low numbers first where there is a choice; a circle, first node repeated, or [] for none).

    `[[1], [], [0]]` gives ([2, 0, 1], []); `[[1], [0]]` gives ([], [0, 1, 0]).
    """
    missing = [0] * len(then)
    for targets in then:
        for target in targets:
            missing[target] += 1
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for target in then[index]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, target)
    return order, [] if len(order) == len(then) else _circle(then, set(range(len(then))).difference(order))


def _circle(then: Successors, stuck: set[int]) -> list[int]:
    """A circle among nodes that could never start: walk backwards, each has a predecessor that is stuck too.

    All that a stuck node leads to is stuck as well.
    """
    before = {target: index for index in stuck for target in then[index]}
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


def descendants(then: Successors) -> list[int]:
    """For each node a bit set of everything behind it, itself included. Edges go forward."""
    reach = [1 << index for index in range(len(then))]
    for index, targets in reversed(list(enumerate(then))):
        bits = reach[index]
        for target in targets:
            bits |= reach[target]
        reach[index] = bits
    return reach


def ancestors(then: Successors) -> list[int]:
    """For each node a bit set of everything before it, itself included. Edges go forward."""
    ahead = [1 << index for index in range(len(then))]
    for index, targets in enumerate(then):
        bits = ahead[index]
        for target in targets:
            ahead[target] |= bits
    return ahead


def minimum_equivalent(then: Successors, reach: Sequence[int]) -> list[list[int]]:
    """The same order with the fewest edges: those that no longer path implies (unique for an acyclic graph).

    `reach` is `descendants(then)`. `[[1, 2], [2], []]` gives [[1], [2], []].
    """
    kept: list[list[int]] = []
    for targets in then:
        if len(targets) < 2:
            kept.append(list(targets))
            continue
        behind = 0
        own: list[int] = []
        for target in sorted(set(targets)):
            if not behind >> target & 1:
                own.append(target)
                behind |= reach[target]
        kept.append(own)
    return kept


def longest_paths(weights: Sequence[float], then: Successors) -> list[float]:
    """For each node the heaviest path that begins with it, itself included: its urgency. Edges go forward."""
    left = list(weights)
    for index, targets in reversed(list(enumerate(then))):
        if targets:
            left[index] += max([left[target] for target in targets])
    return left


def bits(mask: int) -> Iterator[int]:
    """The members of a bit set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
