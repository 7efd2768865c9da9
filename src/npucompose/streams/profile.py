"""How long the kernels of this very graph take on this CPU, one after the other: `streams.cost=measured`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from torch import fx

from npucompose.streams.execute import Execution, example_inputs, on_the_side
from npucompose.streams.work import Work

ROUNDS = 7
"""Each kernel's time is the shortest of so many, after one round that warms up."""


def measured(graph: fx.Graph, kernels: Sequence[fx.Node]) -> list[Work]:
    """The work of each kernel, in the order of `kernels` (a legal one); each is taken to fill one core.

    The graph runs on made-up inputs of its shapes, so its own inputs and the random numbers stay as they are.
    """
    best = [float("inf")] * len(kernels)
    with on_the_side():
        for round_ in range(ROUNDS + 1):
            execution = Execution(graph, kernels, example_inputs(graph))
            for index, kernel in enumerate(kernels):
                execution.prepare(kernel)
                took = _timed(lambda kernel=kernel: execution.run(kernel))
                if round_:
                    best[index] = min(best[index], took)
    return [Work(us=us, vector=1) for us in best]


def _timed(run: Callable[[], Any]) -> float:
    """Microseconds of one call."""
    begun = perf_counter_ns()
    run()
    return (perf_counter_ns() - begun) / 1e3
