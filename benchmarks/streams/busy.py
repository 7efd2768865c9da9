"""Forced plans while a second process takes one core: replays of plan and of one stream in turns, bits compared."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.streams.execution import handle, intra_op_threads, session
from benchmarks.streams.goals import Goal, Part, say, table_of
from npucompose.compose.session import Session
from npucompose.machine import cores

MODELS: Sequence[tuple[str, Sequence[str]]] = (
    ("parallel_branches", ("model.size=128", "model.depth=8")),
    ("parallel_branches", ("model.size=32", "model.depth=8")),
    ("moe_shared_expert", ("model.tokens=64", "model.hidden=256", "model.ffn=512", "model.shared_ffn=2048")),
    ("mla_prolog", ("model.tokens=16", "model.hidden=512")),
    ("gpt_decode", ("model.layers=2",)),
)
BEFORE = 20
"""Replays on an idle machine: a plan that was not tried shows in them what it takes."""
FIRST, ROUNDS, ROUND_S, LEAST, MOST_S = 100, 40, 0.02, 8, 10.0
"""Replays before anything is counted; turns of each, and how long one takes on one stream; of the turns at least so
many, and no more of them once so many seconds are over."""
GOAL = 1.15
"""Time of a plan over that of one stream, at most."""


@contextmanager
def a_busy_core(core: int) -> Iterator[None]:
    """Another process computes on that core for as long as this lasts."""
    words = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    burner = subprocess.Popen(words)
    try:
        sleep(0.3)
        yield
    finally:
        burner.kill()
        burner.wait()


def busy() -> Part:
    if len(cores()) < 2 or not hasattr(os, "sched_setaffinity"):
        return Part(goals=[Goal("a second process on one core", met=False, figure="two cores that can be bound to")])
    columns = ("model", "threads", "plan, µs", "one stream, µs", "ratio", "replays on one stream")
    table = table_of("forced plans while a second process takes one core", *columns)
    goals: list[Goal] = []
    for model, shape in MODELS:
        for threads in (1, 2):
            name = " ".join((model, *shape))
            say(f"busy: {name}, {threads} threads")
            with intra_op_threads(threads), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the machine has other work to do
                plan, alone, equal, left = _taken(model, shape)
            ratio = plan / alone
            table.add_row(name, str(threads), f"{plan:.0f}", f"{alone:.0f}", f"{ratio:.2f}", left)
            what = f"{name}, {threads} threads: at most {GOAL} × one stream, the same bits"
            goals.append(Goal(what, ratio <= GOAL and equal, f"{ratio:.2f}, bits {'equal' if equal else 'DIFFER'}"))
    return Part(tables=[table], goals=goals)


def _taken(model: str, shape: Sequence[str]) -> tuple[float, float, bool, str]:
    """(µs of a replay of the plan, of one stream, whether all had the same bits, how many replays fell back)."""
    live = session(model, *shape, "passes=stream_plan", "streams.min_gain=0")
    ways = [handle(live), handle(session(model, *shape, "passes=[]"))]
    begun = perf_counter()
    expected = _bits(ways[1]())
    calls = max(3, round(ROUND_S / (perf_counter() - begun)))
    took, equal, turn = [0.0, 0.0], True, 1
    for _ in range(BEFORE):
        ways[0]()
    with a_busy_core(max(cores())):
        for _ in range(FIRST):
            ways[0]()
        until = perf_counter() + MOST_S
        for turn in range(1, ROUNDS + 1):
            for index, way in enumerate(ways):
                begun = perf_counter()
                for _ in range(calls - 1):
                    way()
                made = way()
                took[index] += perf_counter() - begun
                equal &= _same(made, expected)
                del made
            if turn >= LEAST and perf_counter() > until:
                break
    each = [seconds / (turn * calls) * 1e6 for seconds in took]
    return each[0], each[1], equal, _left(live)


def _left(live: Session) -> str:
    """Of all recordings of the model."""
    recordings = live.materialised.backend.recordings()
    found = [one["fallback"] for one in recordings if one.get("fallback") is not None]
    return "" if not found else f"{sum(one['alone'] for one in found)} of {sum(one['replays'] for one in found)}"


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves: list[Any] = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _bits(value: Any) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in _tensors(value)]


def _same(value: Any, expected: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, _tensors(value), expected))
