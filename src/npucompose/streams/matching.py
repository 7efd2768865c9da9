"""Maximum matchings between what comes first and what comes next. Knows only numbers; loads no torch.

A matched pair (a, b) means "b follows a in one chain"; as many pairs as possible are as few chains as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    taken = 0
    for right in owner:
        taken |= 1 << right
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
