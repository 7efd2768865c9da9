"""The clean-ups one after the other until none finds anything."""

from __future__ import annotations

from torch import fx

from npucompose.graphs.effects import written_by
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
    writes = any(True for node in graph.nodes if written_by(node))
    changed = 0
    for _ in range(ROUNDS):
        found = _round(graph, writes, relaxed)
        changed += found
        if not found:
            break
    now = moves.counted(graph)
    return Outcome(matches=changed, exact=not (relaxed and changed), moves=moves.facts(before, now))


def _round(graph: fx.Graph, writes: bool, relaxed: bool) -> int:
    found = merge_equal(graph, moves.is_move)
    found += permutes.compose(graph, writes)
    found += casts.drop(graph, writes, relaxed)
    found += reductions.hoist(graph, writes, relaxed)
    return found + regions.turn(graph, writes, relaxed)
