"""Threads that call one recording with plain tensors, with odd ones and under modes, in any order: each call is right
or refused, and no call spoils another's. `make test-sanitized` runs this under sanitizers.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from replay_tests.test_gate import Answering, Watching
from tests.graph_helpers import one_thread, same, traced
from tests.odd_tensors import MAKERS, PLAIN, SHAPE

THREADS = 8
HELD = 3


def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x @ w).relu()
    return y + 1, y[1:], w.add_(0)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no mode": nullcontext,
    "fake": FakeTensorMode,
    "watching": Watching,
    "answering": Answering,
}


class Caller(threading.Thread):
    """Calls with a seed of its own; `wrong` says what was neither right nor refused."""

    def __init__(self, captured: CapturedGraph, odd: dict[str, torch.Tensor], calls: int, seed: int) -> None:
        super().__init__()
        self.captured, self.odd, self.calls, self.random = captured, odd, calls, random.Random(seed)
        self.wrong: list[str] = []
        self.right = self.refused = 0

    def run(self) -> None:
        try:
            with torch.no_grad():
                self._run()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.wrong.append(f"{type(error).__name__}: {error}")

    def _run(self) -> None:
        held: list[tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]] = []
        for _ in range(self.calls):
            plain = self.random.random() < 0.6
            name = self.random.choice([*PLAIN] if plain else [*self.odd])
            mode = self.random.choice([*MODES]) if self.random.random() < 0.2 else "no mode"
            x = PLAIN[name]() if plain else self.odd[name]
            w = torch.randn(SHAPE)
            expected = step(x, w.clone()) if plain else None
            try:
                with MODES[mode]():
                    got = self.captured.replay(x, w)
            except SignatureError:
                self.refused += 1
                if plain and mode == "no mode":
                    self.wrong.append(f"{name} was refused")
                continue
            if expected is None or mode != "no mode" or not same(got, expected):
                self.wrong.append(f"{name} under {mode}")
            else:
                held = [*held[-HELD:], (got, expected)]
                self.right += 1
            if not all(same(one, wanted) for one, wanted in held):
                self.wrong.append("a result that was held has changed")


def outcome(executor: Any, calls: int, seed: int) -> tuple[list[str], int, int]:
    with torch.no_grad(), one_thread():
        first = torch.randn(SHAPE), torch.randn(SHAPE)
        captured = CapturedGraph.capture(traced(step, *first), list(first), executor=executor)
        callers = [
            Caller(captured, {name: make() for name, make in MAKERS.items()}, calls // THREADS, seed * THREADS + n)
            for n in range(THREADS)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    wrong = [words for caller in callers for words in caller.wrong]
    return wrong, sum(c.right for c in callers), sum(c.refused for c in callers)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("executor", ["native", "torchscript"])
def test_calls_of_strangers_from_eight_threads_are_right_or_refused(executor: str):
    wrong, right, refused = outcome(executor, calls=800, seed=0)
    assert wrong == []
    assert right > 200
    assert refused > 200


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_twenty_thousand_calls_of_strangers_are_right_or_refused(executor: str, seed: int):
    wrong, right, refused = outcome(executor, calls=20_000, seed=seed)
    assert wrong == []
    assert right + refused == 20_000
