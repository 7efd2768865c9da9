"""Calls of one compiled module from many threads: `python -m tools.call_from_threads [--threads 8] [--calls 100000]`.

Each thread has inputs of its own, whose results eager has computed before. A result is compared at once, held for a few
calls more, and compared again: nobody else's call may have changed it. With `--streams` the module's branches run on
streams of their own. The last line says how many were wrong; the exit status is 1 where there were any.
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from attrs import define
from torch import nn

INPUTS = 16
"""Of each thread."""
HELD = 3
"""Results that each thread holds, beside the newest."""
ROWS, WIDTH = 4, 16
FRONTS = ("backend", "compile", "detached")


class Branches(nn.Module):
    """Two branches that meet: small, with results of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.left(x).relu(), self.right(x).tanh()
        return a + b, (a * b)[1:]


@define
class Caller:
    """One thread's share; `wrong` counts results that differ from eager, at once or later."""

    call: Callable[[torch.Tensor], Any]
    inputs: list[torch.Tensor]
    expected: list[tuple[torch.Tensor, ...]]
    wrong: int = 0
    error: BaseException | None = None

    def run(self, calls: int, begin: threading.Barrier) -> None:
        begin.wait()
        held: deque[tuple[int, tuple[torch.Tensor, ...]]] = deque()
        try:
            with torch.no_grad():
                for k in range(calls):
                    which = k % INPUTS
                    held.append((which, self.call(self.inputs[which])))
                    self._look_at(*held[-1])
                    if len(held) > HELD:
                        self._look_at(*held.popleft())
        except Exception as error:  # noqa: BLE001 - told by the main thread
            self.error = error

    def _look_at(self, which: int, results: tuple[torch.Tensor, ...]) -> None:
        same = all(torch.equal(a, b) for a, b in zip(results, self.expected[which], strict=True))
        self.wrong += not same


def compiled(module: nn.Module, front: str, streams: bool) -> Callable[[torch.Tensor], Any]:
    """The module behind one of the fronts, called once."""
    import npucompose

    passes = ["passes=stream_plan", "streams.min_gain=0", "streams.trial_ms=0"] if streams else []
    with torch.no_grad():
        if front == "backend":
            options: dict[str, Any] = dict(choice.split("=", 1) for choice in passes)
            made = torch.compile(module, backend="npucompose", options=options)
        else:
            made = npucompose.compile(module, *passes)
            if front == "detached":
                return made.detach(torch.zeros(ROWS, WIDTH), outputs="keep")
        made(torch.zeros(ROWS, WIDTH))
    return made


def wrong_results(front: str, *, threads: int, calls: int, streams: bool = False) -> int:
    """How many of `calls` results, spread over `threads`, were not eager's."""
    torch.manual_seed(0)
    module = Branches().requires_grad_(False)
    call = compiled(module, front, streams)
    callers = []
    for _ in range(threads):
        inputs = [torch.randn(ROWS, WIDTH) for _ in range(INPUTS)]
        callers.append(Caller(call=call, inputs=inputs, expected=[module(x) for x in inputs]))
    begin = threading.Barrier(threads)
    running = [threading.Thread(target=caller.run, args=(calls // threads, begin)) for caller in callers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for caller in callers:
        if caller.error is not None:
            raise caller.error
    return sum(caller.wrong for caller in callers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calls", type=int, default=100_000, help="of all threads together, for each front")
    parser.add_argument("--fronts", nargs="+", choices=FRONTS, default=FRONTS)
    parser.add_argument("--streams", action="store_true", help="run the branches on two streams")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = 0
    for front in given.fronts:
        wrong = wrong_results(front, threads=given.threads, calls=given.calls, streams=given.streams)
        total += wrong
        print(f"{front}: {given.calls} calls from {given.threads} threads, {wrong} wrong", flush=True)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
