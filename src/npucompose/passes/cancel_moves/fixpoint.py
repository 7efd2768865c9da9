"""The clean-ups one after the other until none finds anything."""

from __future__ import annotations

from torch import fx

from npucompose.passes.base import Outcome
from npucompose.passes.cancel_moves import casts, moves, permutes, reductions, regions
from npucompose.passes.cse import merge_equal

ROUNDS = 20
"""Each round wins bytes or removes a node, so that the end comes by itself; this many were never seen."""


def cancel(graph: fx.Graph, *, relaxed: bool) -> Outcome:
    """Rewrite in place; the facts say what was there before and what is left."""
    before = moves.counted(graph)
    if before[2] == 0:
        return Outcome(matches=0, moves=moves.facts(before, before))
    changed = 0
    for _ in range(ROUNDS):
        found = _round(graph, relaxed)
        changed += found
        if not found:
            break
    now = moves.counted(graph)
    return Outcome(matches=changed, exact=not (relaxed and changed), moves=moves.facts(before, now))


def _round(graph: fx.Graph, relaxed: bool) -> int:
    found = merge_equal(graph, moves.is_move)
    found += permutes.compose(graph)
    found += casts.drop(graph, relaxed)
    found += reductions.hoist(graph, relaxed)
    return found + regions.turn(graph, relaxed)
