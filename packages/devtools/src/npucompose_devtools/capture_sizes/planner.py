"""The sizes whose padding is least, within a number of recordings and a number of bytes.

A step runs at the least recorded size that holds it, and the rows in between are padding. Sizes are chosen among those
of the trace: a size that no step has can be lowered to the next one that a step has, which pads less and takes no more.

Without a bound of memory that is a shortest path with at most so many edges, whose costs are lines in the number of
steps, so that each number of recordings takes time in proportion to the number of sizes (the lower envelope of lines;
Aggarwal, Schieber and Tokuyama, Discrete & Computational Geometry 12, 1994, on shortest paths with a Monge cost). With
a bound it is a shortest path with a resource: bytes get a price, the best price's shortest paths are lower bounds of
what is left (Handler and Zang, Networks 10, 1980), and an A* search with these bounds finds the optimum itself.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.npu.capture.budget import CaptureBudget
from npucompose_devtools.capture_sizes.trace import Trace

PRICES = 40
"""Prices that are tried: halving an interval so often leaves nothing of it."""
MOST_WAYS = 5_000
"""Ways that are followed before the search is given up, after some seconds; traces of 500 sizes need a few hundred."""


@frozen(kw_only=True)
class SizeBudget:
    recordings: int
    """At most so many sizes."""
    nbytes: float = math.inf
    """At most so many bytes in all recordings together."""
    nbytes_of: Callable[[int], float] = lambda size: 0.0
    """What the recording of one size takes."""


@frozen(kw_only=True)
class SizePlan:
    sizes: tuple[int, ...]
    padding: int
    """Rows that are added over the whole trace."""
    nbytes: float
    """Of all recordings together, as the budget counts them."""
    beyond: int = 0
    """Rows by which another plan could have less padding at most; 0: there is none with less."""


class NoPlan(ValueError):
    """Not even the recording of the largest size alone is within the budget."""


def plan(trace: Trace, budget: SizeBudget) -> SizePlan:
    """The sizes with the least padding; of those with equal padding the fewest. Every step of the trace has a size.

    NoPlan where that is not possible within the budget.
    """
    problem = _Problem.of(trace, budget)
    if budget.recordings < 1 or problem.taken[-1] > budget.nbytes:
        raise NoPlan(f"the recording of size {problem.sizes[-1]} alone is beyond the budget")
    found, beyond = problem.priced(0.0).path(problem), 0
    if problem.nbytes(found) > budget.nbytes:
        found, beyond = _search(problem, *_best_price(problem))
    sizes = tuple(problem.sizes[at] for at in found)
    return SizePlan(sizes=sizes, padding=trace.padding(sizes), nbytes=problem.nbytes(found), beyond=beyond)


def least_padding(trace: Trace, recordings: int) -> Iterator[tuple[int, int]]:
    """(number of recordings, the least padding with so many), without a bound of memory, until nothing is padded."""
    problem = _Problem.of(trace, SizeBudget(recordings=recordings))
    for number, layer in enumerate(problem.priced(0.0).layers[1:], 1):
        yield number, round(layer[0])


@frozen(kw_only=True)
class _Problem:
    """Sizes by index; `steps` and `rows` are those of all sizes below an index, so that index 0 stands for none."""

    sizes: Sequence[int]
    taken: Sequence[float]
    steps: Sequence[int]
    rows: Sequence[int]
    budget: SizeBudget

    @classmethod
    def of(cls, trace: Trace, budget: SizeBudget) -> _Problem:
        steps, rows = [0], [0]
        for size, count in trace.steps.items():
            steps.append(steps[-1] + count)
            rows.append(rows[-1] + size * count)
        sizes = list(trace.steps)
        return cls(sizes=sizes, taken=[budget.nbytes_of(size) for size in sizes], steps=steps, rows=rows, budget=budget)

    def padding(self, below: int, at: int) -> int:
        """Of the steps above index `below` (exclusive, 0: all) that run at size `at`."""
        steps = self.steps[at + 1] - self.steps[below]
        return self.sizes[at] * steps - (self.rows[at + 1] - self.rows[below])

    def nbytes(self, chosen: Sequence[int]) -> float:
        return math.fsum(self.taken[at] for at in chosen)

    def priced(self, price: float) -> _Priced:
        """Shortest paths from each index to the end where a byte costs `price` rows."""
        count = len(self.sizes)
        layers, choices = [[math.inf] * count + [0]], [list[int]()]
        for _ in range(min(self.budget.recordings, count)):
            values, chosen = self._layer(layers[-1], price)
            layers.append(values)
            choices.append(chosen)
        return _Priced(price=price, layers=layers, choices=choices)

    def _layer(self, after: Sequence[float], price: float) -> tuple[list[float], list[int]]:
        """With one recording more than `after`: the least over the next size, from each index.

        From index i to size l costs sizes[l]·(steps[l+1] - steps[i]) - (rows[l+1] - rows[i]): a line in steps[i].
        """
        count = len(self.sizes)
        values: list[float] = [math.inf] * count + [0]
        chosen = [-1] * (count + 1)
        lines: deque[tuple[int, float, int]] = deque()  # (slope, height at 0, size), by rising slope
        for below in range(count - 1, -1, -1):
            if after[below + 1] < math.inf:
                size = self.sizes[below]
                height = size * self.steps[below + 1] - self.rows[below + 1] + after[below + 1]
                _add(lines, (-size, height + price * self.taken[below], below))
            x = self.steps[below]
            while len(lines) > 1 and _at(lines[1], x) <= _at(lines[0], x):
                lines.popleft()
            if lines:
                values[below], chosen[below] = self.rows[below] + _at(lines[0], x), lines[0][2]
        return values, chosen


@frozen(kw_only=True)
class _Priced:
    """`layers[m][i]`: what the sizes above index i cost with at most m recordings; `choices`: the first of them."""

    price: float
    layers: Sequence[Sequence[float]]
    choices: Sequence[Sequence[int]]

    def path(self, problem: _Problem) -> list[int]:
        """The cheapest from the beginning, with no more recordings than it needs."""
        left = min(range(len(self.layers)), key=lambda m: (self.layers[m][0], m))
        below, found = 0, []
        while below < len(problem.sizes):
            found.append(self.choices[left][below])
            below, left = found[-1] + 1, left - 1
        return found


def _at(line: tuple[int, float, int], x: int) -> float:
    return line[0] * x + line[1]


def _add(lines: deque[tuple[int, float, int]], line: tuple[int, float, int]) -> None:
    """Keeps the lower envelope for x that fall: a line between two that is nowhere below both goes."""
    while len(lines) > 1:
        (m1, b1, _), (m2, b2, _), (m3, b3, _) = lines[-2], lines[-1], line
        if (b3 - b1) * (m2 - m1) > (b2 - b1) * (m3 - m1):
            break
        lines.pop()
    lines.append(line)


def _padding(problem: _Problem, chosen: Sequence[int]) -> int:
    return sum(problem.padding(below, at) for below, at in zip((0, *(at + 1 for at in chosen)), chosen, strict=False))


def _best_price(problem: _Problem) -> tuple[_Priced, list[int]]:
    """The price with the greatest lower bound, and the best path within the budget that a price gave."""
    most = problem.budget.nbytes
    best = [len(problem.sizes) - 1]
    low, high = 0.0, (_padding(problem, best) + 1) / max(min(filter(None, problem.taken), default=1.0), 1e-9)
    bound, chosen = -math.inf, problem.priced(0.0)
    for _ in range(PRICES):
        priced = problem.priced((low + high) / 2)
        path = priced.path(problem)
        reached = priced.layers[-1][0] - priced.price * most
        if reached > bound:
            bound, chosen = reached, priced
        if problem.nbytes(path) > most:
            low = priced.price
        else:
            high = priced.price
            best = min(best, path, key=lambda one: (_padding(problem, one), len(one)))
    return chosen, best


def _search(problem: _Problem, priced: _Priced, known: list[int]) -> tuple[list[int], int]:
    """The optimum where memory binds, or the best that is known and by how much it may miss the optimum.

    A* over the sizes chosen so far; `priced` bounds the others' cost, and `known` holds unless one is better.

    Of two ways to one index, one that pads more, takes more and has no more recordings left is not followed.
    """
    end, least = len(problem.sizes), _padding(problem, known)
    onward = _Onward.of(problem, priced)
    waiting: list[_Way] = [(0.0, 0, 0.0, 0, len(priced.layers) - 1, ())]
    seen: defaultdict[int, list[tuple[int, float, int]]] = defaultdict(list)
    for _ in range(MOST_WAYS):
        if not waiting:
            return known, 0
        way = heapq.heappop(waiting)
        if way[3] == end:
            return list(way[5]), 0
        for longer in onward.ways(way, least):
            _, padding, taken, below, left, _ = longer
            if not any(p <= padding and t <= taken and n >= left for p, t, n in seen[below]):
                seen[below].append((padding, taken, left))
                heapq.heappush(waiting, longer)
    return known, least - math.ceil(waiting[0][0]) if waiting else 0


_Way = tuple[float, int, float, int, int, tuple[int, ...]]
"""Bound of the padding, padding so far, bytes so far, the next index, recordings left, indices so far."""


@frozen(kw_only=True)
class _Onward:
    """One size more, all sizes at once: of 2,000 a handful are within the bounds."""

    sizes: np.ndarray
    taken: np.ndarray
    steps: np.ndarray
    rows: np.ndarray
    layers: np.ndarray
    price: float
    most: float

    @classmethod
    def of(cls, problem: _Problem, priced: _Priced) -> _Onward:
        return cls(
            sizes=np.array(problem.sizes), taken=np.array(problem.taken, float), steps=np.array(problem.steps),
            rows=np.array(problem.rows), layers=np.array(priced.layers), price=priced.price, most=problem.budget.nbytes,
        )  # fmt: skip

    def ways(self, way: _Way, least: int) -> Iterator[_Way]:
        """Those that may end with less padding than `least`, within the memory."""
        _, padding, taken, below, left, path = way
        if not left:
            return
        steps, rows = self.steps[below + 1 :] - self.steps[below], self.rows[below + 1 :] - self.rows[below]
        paddings = padding + self.sizes[below:] * steps - rows
        more = taken + self.taken[below:]
        rest = self.layers[left - 1, below + 1 :] - self.price * (self.most - more)
        bounds = paddings + np.maximum(rest, 0.0)
        bounds = np.ceil(bounds * (1 - 1e-9) - 1e-6)  # padding is whole, and bounds were rounded on the way
        needed = np.where(np.arange(below, len(self.sizes)) < len(self.sizes) - 1, self.taken[-1], 0.0)
        for at in np.flatnonzero((bounds < least) & (more + needed <= self.most)).tolist():
            chosen = (*path, below + at)
            yield float(bounds[at]), int(paddings[at]), float(more[at]), below + at + 1, left - 1, chosen


def sizes_for(trace: Trace, budget: CaptureBudget) -> SizePlan:
    """The sizes of a server's steps that pad least, as many of them as certainly fit.

    ConfigError where none does. Streams are counted and bytes are not: those of sizes that nobody asked about are
    unknown (`npucompose sizes plan --memory` takes both).
    """
    if not budget.certain:
        raise ConfigError("no size fits for certain: one may take more streams than there are.")
    return plan(trace, SizeBudget(recordings=len(budget.certain)))
