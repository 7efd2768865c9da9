"""Graphs of published networks, and random ones, as edges between numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable

from npucompose.streams import dag

Dag = list[list[int]]


def of(*paths: str) -> Dag:
    """A graph from paths of names: `of("a b d", "a c d")` is a diamond; numbers follow a legal order."""
    edges = [pair for path in paths for pair in zip(path.split(), path.split()[1:], strict=False)]
    names = list(dict.fromkeys(name for path in paths for name in path.split()))
    number = {name: index for index, name in enumerate(names)}
    order, circle = dag.topological(dag.successors(len(names), ((number[a], number[b]) for a, b in edges)))
    assert not circle
    place = {names[index]: position for position, index in enumerate(order)}
    return dag.successors(len(names), sorted({(place[a], place[b]) for a, b in edges}))


DIAMOND = of("a b d", "a c d")
MM_ABS_SUB = of("x mm add", "x abs sub add", "x sub")
INCEPTION_A = of("in b1 cat", "in b2a b2b cat", "in b3a b3b b3c cat", "in pool b4 cat")
INCEPTION_E = of(
    "in b1 cat", "in b2a b2l cat", "b2a b2r cat", "in b3a b3b b3l cat", "b3b b3r cat", "in pool b4 cat"
)  # fmt: skip
NASNET_A = of(
    "cur sep3_0 add0 cat", "cur same_0 add0", "prev sep3_1 add1 cat", "cur sep5_1 add1", "cur avg_2 add2 cat",
    "prev same_2 add2", "prev avg_3a add3 cat", "prev avg_3b add3", "prev sep5_4 add4 cat", "prev sep3_4 add4",
    "prev cat",
)  # fmt: skip
MOE = of(
    "x gate topk dispatch up act down combine add", "x s_up s_act s_down add", "x dispatch", "topk combine", "x add"
)
MLA = of(
    "x norm q_a q_norm q_b absorb attention uv o_proj out", "q_b q_split rope_q attention",
    "norm kv_a kv_norm cache_c attention", "kv_a rope_k cache_k attention",
)  # fmt: skip


def random_dag(count: int, edges: int, seed: int, span: int | None = None) -> Dag:
    """`edges` different random edges that go forward, by at most `span`."""
    chance = random.Random(seed)
    found: set[tuple[int, int]] = set()
    while len(found) < edges:
        first = chance.randrange(count - 1)
        found.add((first, chance.randrange(first + 1, min(count, first + 1 + (span or count)))))
    return dag.successors(count, sorted(found))


def small_dag(seed: int, most: int = 8) -> Dag:
    chance = random.Random(seed)
    count = chance.randint(1, most)
    likely = chance.choice([0.15, 0.3, 0.5])
    return dag.successors(count, [(a, b) for b in range(count) for a in range(b) if chance.random() < likely])


def pairs(then: Iterable[Iterable[int]]) -> set[tuple[int, int]]:
    return {(first, second) for first, targets in enumerate(then) for second in targets}
