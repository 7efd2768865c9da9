"""Ways to compute one product, timed from Python in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from time import perf_counter_ns
from typing import Any

from npucompose.machine import Attendance
from npucompose.results.graphs import FEWEST_ROUNDS

MOST_ROUNDS = 60
"""Rounds of a contest: as many as fit its time, at least FEWEST_ROUNDS and at most so many."""


def in_turns(
    calls: Mapping[str, Sequence[Callable[[], Any]]], limit_ms: float, before: Callable[[], Any] | None = None
) -> tuple[dict[str, list[float]], float]:
    """({name: microseconds of each round}, share of the time with a processor): round by round the next call of each
    name, over and over; what is done `before` each call does not count."""

    def taken_by(turn: Iterator[Callable[[], Any]]) -> int:
        if before is not None:
            before()
        return nanoseconds(next(turn))

    turns: Mapping[str, Iterator[Callable[[], Any]]] = {name: cycle(some) for name, some in calls.items()}
    for turn in turns.values():
        taken_by(turn)
    taken: dict[str, list[float]] = {name: [] for name in turns}
    begun, rounds, attendance = perf_counter_ns(), 0, Attendance()
    while rounds < FEWEST_ROUNDS or (perf_counter_ns() - begun < limit_ms * 1e6 and rounds < MOST_ROUNDS):
        rounds += 1
        for name, turn in turns.items():
            taken[name].append(taken_by(turn) / 1e3)
    return taken, attendance.share()


def nanoseconds(call: Callable[[], Any]) -> int:
    begun = perf_counter_ns()
    call()
    return perf_counter_ns() - begun
