"""Products timed from Python in turns, and what calling one from there takes by itself.

A replay calls it natively. Whoever times one from Python, as Inductor does, measures both: of 5.4 µs that MKL's product
of 16 rows by 16 columns takes there, 4.5 are the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import cycle
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.machine import Attendance
from npucompose.results.winners import FEWEST_ROUNDS

MOST_ROUNDS = 60
"""Rounds of a contest: as many as fit its time, at least FEWEST_ROUNDS and at most so many."""
CALLS = 200
SHORTEST_US = 0.1
"""No product takes less; what is left of one after its call from Python may be anything."""


def _mkl(one: torch.Tensor) -> Callable[[], Any]:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(one, 1)
    return partial(torch.ops.mkl._mkl_linear, one, packed, one, None, 1)


_of_one_number: Mapping[str, Callable[[torch.Tensor], Callable[[], Any]]] = {
    "mm": lambda one: partial(torch.mm, one, one),
    "addmm": lambda one: partial(torch.addmm, one, one, one),
    "bmm": lambda one: partial(torch.bmm, one[None], one[None]),
    "mkl_linear": _mkl,
}
"""{product: how one of 1x1 matrices is called}: those that the replayer calls by address; oneDNN's are operators there
as well, and so is what calling them takes."""


def in_turns(
    calls: Mapping[str, Sequence[Callable[[], Any]]], called_as: Mapping[str, str], limit_ms: float
) -> tuple[dict[str, list[float]], float]:
    """({name: microseconds of each round}, share of the time with a processor): round by round the next call of each
    name, over and over, without what the call takes where `called_as` says which product it is."""
    turns: Mapping[str, Iterator[Callable[[], Any]]] = {name: cycle(some) for name, some in calls.items()}
    for turn in turns.values():
        nanoseconds(next(turn))
    taken: dict[str, list[float]] = {name: [] for name in turns}
    begun, rounds, attendance = perf_counter_ns(), 0, Attendance()
    while rounds < FEWEST_ROUNDS or (perf_counter_ns() - begun < limit_ms * 1e6 and rounds < MOST_ROUNDS):
        rounds += 1
        for name, turn in turns.items():
            taken[name].append(without_call(called_as.get(name, ""), nanoseconds(next(turn)) / 1e3))
    return taken, attendance.share()


def without_call(library: str, us: float) -> float:
    """What is left of `us`, measured from Python, for the product itself."""
    return max(us - _call_us(library), SHORTEST_US)


@lru_cache
def _call_us(library: str) -> float:
    if library not in _of_one_number:
        return 0.0
    with unset_fake_temporarily(), torch.no_grad():
        call = _of_one_number[library](torch.ones(1, 1))
        return median(nanoseconds(call) for _ in range(CALLS)) / 1e3


def nanoseconds(call: Callable[[], Any]) -> int:
    begun = perf_counter_ns()
    call()
    return perf_counter_ns() - begun
