"""Acyclic graphs whose nodes are the numbers 0, 1, 2, …: order, reachability, the edges that matter, and matchings.

A graph is the list of each node's successors. Sets of nodes are bits of one Python integer: with 10,000 nodes the sets
of everything behind every node take 12 MB and a tenth of a second. A matched pair (a, b) means "b follows a in one
chain"; as many pairs as possible are as few chains as possible. Knows no kernel; loads no torch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import or_

Edges = Iterable[tuple[int, int]]
Successors = Sequence[Sequence[int]]


def successors(count: int, edges: Edges) -> list[list[int]]:
    then: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges:
        then[first].append(second)
    return then


def predecessors(then: Successors) -> list[list[int]]:
    return successors(len(then), ((target, index) for index, targets in enumerate(then) for target in targets))


def missing_predecessors(then: Successors) -> Counter[int]:
    """{node: how many edges lead to it}; an order that starts nodes counts it down."""
    return Counter(chain.from_iterable(then))


def topological(then: Successors) -> tuple[list[int], list[int]]:
    """(a legal order, low numbers first where there is a choice; a circle, first node repeated, or [] for none).

    `[[1], [], [0]]` gives ([2, 0, 1], []); `[[1], [0]]` gives ([], [0, 1, 0]).
    """
    missing = missing_predecessors(then)
    ready = [index for index in range(len(then)) if not missing[index]]
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
        for target in targets:
            reach[index] |= reach[target]
    return reach


def ancestors(then: Successors) -> list[int]:
    """For each node a bit set of everything before it, itself included. Edges go forward."""
    ahead = [1 << index for index in range(len(then))]
    for index, targets in enumerate(then):
        for target in targets:
            ahead[target] |= ahead[index]
    return ahead


def minimum_equivalent(then: Successors, reach: Sequence[int]) -> list[list[int]]:
    """The same order with the fewest edges: those that no longer path implies (unique for an acyclic graph).

    `reach` is `descendants(then)`. `[[1, 2], [2], []]` gives [[1], [2], []].
    """
    fewest: list[list[int]] = []
    for targets in then:
        behind = 0
        own: list[int] = []
        for target in sorted(set(targets)):
            if not behind >> target & 1:
                own.append(target)
                behind |= reach[target]
        fewest.append(own)
    return fewest


def longest_paths(weights: Sequence[float], then: Successors) -> list[float]:
    """For each node the heaviest path that begins with it, itself included: its urgency. Edges go forward."""
    left = list(weights)
    for index, targets in reversed(list(enumerate(then))):
        left[index] += max([left[target] for target in targets], default=0.0)
    return left


def bit_set(members: Iterable[int]) -> int:
    return reduce(or_, (1 << member for member in members), 0)


def bits(mask: int) -> Iterator[int]:
    """The members of a bit set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


NONE = -1


def hopcroft_karp(adjacency: Sequence[Sequence[int]]) -> list[int]:
    """For each left vertex its partner on the right, or -1; right vertices are numbered like left ones.

    J. Hopcroft, R. Karp, "An n^5/2 algorithm for maximum matchings in bipartite graphs", 1973: O(edges * sqrt(nodes)).
    A first partner is the first free one in the list, so the order of a list is a wish. `[[1, 2], [2], []]` gives
    [1, 2, -1].
    """
    count = len(adjacency)
    partner = [NONE] * count
    owner = [NONE] * count
    for left, targets in enumerate(adjacency):
        for right in targets:
            if owner[right] == NONE:
                partner[left], owner[right] = right, left
                break
    while True:
        level, found = _levels(adjacency, partner, owner)
        if not found:
            return partner
        at = [0] * count
        for left in range(count):
            if partner[left] == NONE and adjacency[left]:
                _augment(left, adjacency, partner, owner, level, at)


def _levels(adjacency: Sequence[Sequence[int]], partner: list[int], owner: list[int]) -> tuple[list[int], bool]:
    """Breadth first from the free left vertices; whether some free right vertex can be reached at all."""
    level = [NONE] * len(adjacency)
    front = [left for left, right in enumerate(partner) if right == NONE and adjacency[left]]
    for left in front:
        level[left] = 0
    depth, found = 0, False
    while front and not found:
        depth += 1
        following: list[int] = []
        for left in front:
            for right in adjacency[left]:
                back = owner[right]
                if back == NONE:
                    found = True
                elif level[back] == NONE:
                    level[back] = depth
                    following.append(back)
        front = following
    return level, found


def _augment(
    root: int, adjacency: Sequence[Sequence[int]], partner: list[int], owner: list[int], level: list[int], at: list[int]
) -> None:
    """One path from a free left vertex along the levels to a free right one, if there is one; flips it."""
    path = [root]
    while path:
        left = path[-1]
        targets = adjacency[left]
        if at[left] == len(targets):
            path.pop()
            level[left] = NONE  # whoever tries it again goes on to the next
            continue
        back = owner[targets[at[left]]]
        if back == NONE:
            for step in path:
                right = adjacency[step][at[step]]
                partner[step], owner[right] = right, step
            return
        if level[back] == level[left] + 1:
            path.append(back)
        else:
            at[left] += 1


def by_bits(adjacency: Sequence[int], partner: Sequence[int] | None = None) -> list[int]:
    """As `hopcroft_karp`, for dense graphs: a left vertex's candidates are one bit set; may start from a matching.

    Phases of depth-first searches that share what they have visited (H. Kuhn 1955, with the sharing of Hopcroft and
    Karp), so that a phase looks at each right vertex once. `[0b110, 0b100, 0]` gives [1, 2, -1].
    """
    count = len(adjacency)
    result = list(partner) if partner is not None else [NONE] * count
    owner = {right: left for left, right in enumerate(result) if right != NONE}
    taken = bit_set(owner)
    for left, mask in enumerate(adjacency):
        free = mask & ~taken if result[left] == NONE else 0
        if free:
            low = free & -free
            taken |= low
            result[left] = low.bit_length() - 1
            owner[result[left]] = left
    open_ = [left for left in range(count) if result[left] == NONE and adjacency[left]]
    progress = True
    while progress and open_:
        unseen = (1 << count) - 1
        still: list[int] = []
        for root in open_:
            unseen, hit = _search(root, adjacency, result, owner, unseen)
            if not hit:
                still.append(root)
        progress = len(still) < len(open_)
        open_ = still
    return result


def _search(
    root: int, adjacency: Sequence[int], partner: list[int], owner: dict[int, int], unseen: int
) -> tuple[int, bool]:
    path: list[tuple[int, int]] = []  # (left, the right vertex that it tries)
    left = root
    while True:
        candidates = adjacency[left] & unseen
        if candidates:
            low = candidates & -candidates
            unseen ^= low
            right = low.bit_length() - 1
            path.append((left, right))
            if right not in owner:
                for step, wanted in path:
                    partner[step], owner[wanted] = wanted, step
                return unseen, True
            left = owner[right]
            continue
        if not path:
            return unseen, False
        left, _ = path.pop()
