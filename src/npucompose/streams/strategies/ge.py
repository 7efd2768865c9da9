"""Plans as GE's automatic streams make them, to compare with: `ge.autoMultistreamParallelMode` = cv | LoadBalance:N |
MainStream:N.

What each does is told by CANN's page of the option, by GE's `docs/en/design/features/stream_allocator.md` and by what
its sources (hicann/ge, compiler/graph/build/dag, 2026-08) weigh; re-stated here. LoadBalance and MainStream cover the
graph with as few paths as its edges allow and give each path a stream, one level of the graph after the other; neither
knows how long a kernel takes. Knows only numbers; loads no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import pvariance

from attrs import define, field, frozen

from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.streams.strategies.chains import Chains, fewest_paths

WINDOW, CANDIDATES, NEAREST = 6, 6, 3
"""Levels that are looked ahead; streams that are weighed for a path; so many of them for having little to do."""
EVENT, BALANCE, LOAD, CONFLICT, NEW_STREAM, ALONE = 3, 4, 1, 4, 2, 4
"""Of a score, where less is better: an event; a kernel on the fullest stream of the window, and the spread of all; a
kernel of the stream; a kernel beside which one of the path could run; one more stream; a kernel that nothing can run
beside, on the main stream (taken off)."""


def load_balance(then: dag.Successors, streams: int) -> list[int]:
    """The stream of each kernel: few events, and as many kernels on each stream, in the window and altogether."""
    return _LoadBalance(_Paths.from_graph(then), streams).streams()


def main_stream(then: dag.Successors, streams: int) -> list[int]:
    """The stream of each kernel: 0 for what nothing can run beside, others where the fewest kernels could overlap."""
    return _MainStream(_Paths.from_graph(then), streams).streams()


def cube_and_vector(then: dag.Successors, work: Sequence[Work]) -> list[int]:
    """Stream 1 for vector kernels that need not wait for the cube kernel before them in the list, or whose result the
    next one does not need; 0 for all others."""
    before: list[int | None] = _nearest_cube(work, range(len(work)))
    after: list[int | None] = _nearest_cube(work, range(len(work) - 1, -1, -1))
    behind = dag.descendants(then)
    aside = [0] * len(work)
    for index, item in enumerate(work):
        first, last = before[index], after[index]
        waits = first is not None and bool(behind[first] >> index & 1)
        feeds = last is not None and bool(behind[index] >> last & 1)
        aside[index] = int(not item.cube and not (waits and (feeds or last is None)))
    return aside


def _nearest_cube(work: Sequence[Work], walk: Sequence[int]) -> list[int | None]:
    nearest: list[int | None] = [None] * len(work)
    last: int | None = None
    for index in walk:
        nearest[index] = last
        last = index if work[index].cube else last
    return nearest


@frozen
class _Paths:
    """A cover of the graph by paths, and what a score asks of each."""

    paths: Chains
    levels: Sequence[int]
    """Of each kernel: the edges of the longest path that leads to it."""
    wide: Mapping[int, int]
    """{level: kernels}"""
    near: Sequence[Mapping[int, int]]
    """For each path {other path: edges between them}."""

    @classmethod
    def from_graph(cls, then: dag.Successors) -> _Paths:
        paths = fewest_paths(then)
        path_of = {index: number for number, path in enumerate(paths) for index in path}
        near: list[Counter[int]] = [Counter() for _ in paths]
        levels = [0] * len(then)
        for index, targets in enumerate(then):
            for target in dict.fromkeys(targets):
                levels[target] = max(levels[target], levels[index] + 1)
                if path_of[index] != path_of[target]:
                    near[path_of[index]][path_of[target]] += 1
                    near[path_of[target]][path_of[index]] += 1
        return cls(paths, levels, Counter(levels), near)

    def in_turn(self) -> list[int]:
        """By the level of the first kernel, then the longest, then the one with most edges to others."""
        return sorted(
            range(len(self.paths)),
            key=lambda path: (self.first(path), -len(self.paths[path]), -sum(self.near[path].values()), path),
        )

    def first(self, path: int) -> int:
        return self.levels[self.paths[path][0]]

    def ahead(self, path: int) -> list[int]:
        """The levels of its kernels inside the window that begins with its first one."""
        end = self.first(path) + WINDOW
        return [level for level in map(self.levels.__getitem__, self.paths[path]) if level < end]

    def alone(self, path: int) -> int:
        """Its kernels that nothing can run beside."""
        return sum(self.wide[self.levels[index]] == 1 for index in self.paths[path])


@define
class _PathStream:
    """A stream while paths are laid on it."""

    levels: Counter[int] = field(factory=Counter)
    """{level: its kernels}"""
    size: int = 0

    def load(self, level: int) -> int:
        """Its kernels in the window."""
        return sum(self.levels[at] for at in range(level, level + WINDOW))


@define
class _Merge(ABC):
    """Paths on streams, one after the other; each goes where a score is least."""

    paths: _Paths
    limit: int
    lanes: list[_PathStream] = field(factory=list)
    stream_of: dict[int, int] = field(factory=dict)
    """{path: its stream}"""

    def streams(self) -> list[int]:
        for path in self.paths.in_turn():
            tied: Counter[int] = Counter()
            for other, edges in self.paths.near[path].items():
                if other in self.stream_of:
                    tied[self.stream_of[other]] += edges
            self.put(path, min(self.weighed(path, tied), key=lambda stream: self.score(path, stream, tied)))
        numbers = {index: self.stream_of[path] for path, members in enumerate(self.paths.paths) for index in members}
        return [numbers[index] for index in range(len(numbers))]

    def put(self, path: int, stream: int) -> None:
        if stream == len(self.lanes):
            self.lanes.append(_PathStream())
        self.stream_of[path] = stream
        self.lanes[stream].size += len(self.paths.paths[path])
        self.lanes[stream].levels.update(self.paths.levels[index] for index in self.paths.paths[path])

    def weighed(self, path: int, tied: Counter[int]) -> list[int]:
        """The streams that come into question, one that is not in use yet among them, in the order of preference."""
        fresh = [len(self.lanes)] if len(self.lanes) < self.limit else []
        return list(dict.fromkeys([*self.likely(path, tied), *fresh]))[:CANDIDATES]

    @abstractmethod
    def likely(self, path: int, tied: Counter[int]) -> list[int]:
        """The streams in use that come into question, in the order of preference."""

    @abstractmethod
    def score(self, path: int, stream: int, tied: Counter[int]) -> tuple[float, ...]:
        """How bad it is to put the path there; what comes later decides between equals."""


class _LoadBalance(_Merge):
    def likely(self, path: int, tied: Counter[int]) -> list[int]:
        level, every = self.paths.first(path), range(len(self.lanes))
        idle = sorted(every, key=lambda stream: (self.lanes[stream].load(level), self.lanes[stream].size))
        return [*sorted(tied, key=lambda stream: (-tied[stream], self.lanes[stream].size, stream)), *idle[:NEAREST]]

    def score(self, path: int, stream: int, tied: Counter[int]) -> tuple[float, ...]:
        is_new = stream == len(self.lanes)
        loads = [lane.load(self.paths.first(path)) for lane in self.lanes] + [0] * is_new
        loads[stream] += len(self.paths.ahead(path))
        fullest = max(loads) + pvariance(loads)
        events = sum(tied.values()) - tied[stream]
        size = (0 if is_new else self.lanes[stream].size) + len(self.paths.paths[path])
        return EVENT * events + BALANCE * fullest + LOAD * size + NEW_STREAM * is_new, events, fullest, size, stream


class _MainStream(_Merge):
    def likely(self, path: int, tied: Counter[int]) -> list[int]:
        alone = self.paths.alone(path)
        if alone == len(self.paths.paths[path]) or self.paths.wide[self.paths.first(path)] == 1:
            return [0] * CANDIDATES
        apart = sorted(range(len(self.lanes)), key=lambda stream: self.conflict(path, stream))
        return [0, *sorted(tied, key=lambda stream: (-tied[stream], stream)), *apart[:NEAREST]]

    def conflict(self, path: int, stream: int) -> int:
        """Its kernels of the window that stand on the level of one of the path's."""
        return sum(self.lanes[stream].levels[level] for level in self.paths.ahead(path))

    def score(self, path: int, stream: int, tied: Counter[int]) -> tuple[float, ...]:
        is_new = stream == len(self.lanes)
        events = sum(tied.values()) - tied[stream]
        conflict = 0 if is_new else self.conflict(path, stream)
        saved = 0 if stream else self.paths.alone(path)
        return EVENT * events + CONFLICT * conflict + NEW_STREAM * is_new - ALONE * saved, events, conflict, is_new
