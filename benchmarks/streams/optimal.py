"""How near our plans of small graphs are to the best of all plans, which a search without ours finds."""

from __future__ import annotations

from statistics import mean

from benchmarks.streams.goals import Goal, Part, table_of
from tests.streams.small import FAMILIES, MOST, small_graph

GRAPHS = 500
AVERAGE, WORST = 0.02, 0.10
"""Shares of the best time by which our plans may exceed it."""


def optimal(graphs: int = GRAPHS) -> Part:
    """The same figures in every process; graphs of which no better plan exists are counted."""
    found: dict[str, list[float]] = {family: [] for family in FAMILIES}
    for seed in range(graphs):
        graph = small_graph(seed)
        found[graph.family].append(graph.beyond_the_best)
    table = table_of(
        f"time of our plans beyond the best of all, random graphs of up to {MOST} kernels on two and three streams",
        *("family", "graphs", "the best itself", "average", "worst"),
    )
    every = [one for shares in found.values() for one in shares]
    for family, shares in (*found.items(), ("all", every)):
        best = str(sum(not share for share in shares))
        table.add_row(family, str(len(shares)), best, f"{mean(shares):.3%}", f"{max(shares):.2%}")
    what = f"of {graphs} graphs of up to {MOST} kernels"
    goals = [
        Goal(f"{what} at most {AVERAGE:.0%} beyond the best on average", mean(every) <= AVERAGE, f"{mean(every):.3%}"),
        Goal(f"{what} at most {WORST:.0%} at worst", max(every) <= WORST, f"{max(every):.2%}"),
    ]
    return Part(tables=[table], goals=goals, figures=found)
