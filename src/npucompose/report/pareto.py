"""Which runs no other run beats in latency, memory and compile time together: the Pareto front, by kind of work.

A run that is slower and needs half the memory is on the front, too: nobody can say for another which counts more. A run
counts only when all three are known, and against runs of the same work. Differences of some percent count as none:
measured again, the same run would differ by as much, and every one of many equal runs would come out as best once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import attrs

from npucompose.report.compare import Line
from npucompose.results.record import Status

K = TypeVar("K", bound=Hashable)
Point = tuple[float, float, float]

RIGHT: tuple[Status, ...] = ("ok", "expect_failed")
"""Statuses of runs whose speed says something."""
SAME = 1.05
"""Ratio below which a figure is as good as the smallest of its work; above, figures are compared in such steps."""
LEAST_US, LEAST_BYTES, LEAST_S = 1e-3, 1.0, 1e-3
"""Below, a figure counts as nothing (mode eager compiles in 0.1 µs)."""
STEPS = 1 / math.log(SAME)


def front(points: Mapping[K, Point]) -> frozenset[K]:
    """Names of the points that no other one is at most as large as in all three and smaller in one.

    Equal points are on the front together. By the first objective, with a staircase of the other two: n log n.
    """
    ordered = sorted(points.items(), key=lambda item: item[1])
    stairs = _Staircase()
    found: list[K] = []
    for name, point in ordered:
        if stairs.keeps(point):
            found.append(name)
    return frozenset(found)


class _Staircase:
    """Of the points seen, those that no other one beats in the second and third objective: one rises, one falls."""

    def __init__(self) -> None:
        self.second: list[float] = []
        self.third: list[float] = []
        self.points: list[Point] = []

    def keeps(self, point: Point) -> bool:
        """Take a point, none of whose predecessors has a larger first objective; False when one of them beats it."""
        _, y, z = point
        at = bisect_right(self.second, y) - 1
        if at >= 0 and self.third[at] <= z:
            return self.points[at] == point
        begin = bisect_left(self.second, y)
        end = begin
        while end < len(self.second) and self.third[end] >= z:
            end += 1
        self.second[begin:end], self.third[begin:end], self.points[begin:end] = [y], [z], [point]
        return True


def rounded(points: Mapping[K, Point]) -> dict[K, Point]:
    """The points in steps of 5 % from the smallest of each figure: what is within 5 % of the best is as good as it."""
    if not points:
        return {}
    small_us = max(min(p[0] for p in points.values()), LEAST_US)
    small_bytes = max(min(p[1] for p in points.values()), LEAST_BYTES)
    small_s = max(min(p[2] for p in points.values()), LEAST_S)
    log, found = math.log, dict[K, Point]()
    for name, (p50_us, memory, compile_s) in points.items():
        found[name] = (
            float(int(log(max(p50_us, small_us) / small_us) * STEPS)),
            float(int(log(max(memory, small_bytes) / small_bytes) * STEPS)),
            float(int(log(max(compile_s, small_s) / small_s) * STEPS)),
        )
    return found


class Timed(NamedTuple):
    """What competes of a run that was timed and came out right."""

    work: str
    p50_us: float
    pool_bytes: int | None
    peak_rss_bytes: int | None
    compile_s: float | None


def timed(lines: Sequence[Line]) -> dict[int, Timed]:
    """{number of a line: its figures} of those that did their work right and were timed."""
    found: dict[int, Timed] = {}
    for n, line in enumerate(lines):
        f = line.figures
        if line.status in RIGHT and f.p50_us is not None:
            found[n] = Timed(line.work, f.p50_us, f.pool_bytes, f.peak_rss_bytes, f.compile_s)
    return found


def by_work(runs: Mapping[K, Timed]) -> dict[str, list[K]]:
    """{work: who did it}, in the order given."""
    found: dict[str, list[K]] = {}
    for name, run in runs.items():
        found.setdefault(run.work, []).append(name)
    return found


def memory_is_pool(runs: Iterable[Timed]) -> bool:
    """The planned pool where every run of the same work has one, else the peak of the process: one of them for all."""
    return all(run.pool_bytes is not None for run in runs)


def objectives(runs: Mapping[K, Timed]) -> dict[K, Point]:
    """{name: (p50 in µs, bytes, compile in s)} of those of which all three are known."""
    found: dict[K, Point] = {}
    for names in by_work(runs).values():
        planned = memory_is_pool(runs[name] for name in names)
        for name in names:
            _, p50_us, pool, peak, compile_s = runs[name]
            memory = pool if planned else peak
            if memory is not None and compile_s is not None:
                found[name] = (p50_us, float(memory), compile_s)
    return found


def best(runs: Mapping[K, Timed]) -> frozenset[K]:
    """Those on the front of their work."""
    points = objectives(runs)
    works = by_work(runs).values()
    fronts = (front(rounded({name: points[name] for name in names if name in points})) for names in works)
    return frozenset[K]().union(*fronts)


def with_front(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines, those on the front of their work marked."""
    marked = best(timed(lines))
    return tuple(attrs.evolve(line, front=n in marked) for n, line in enumerate(lines))
