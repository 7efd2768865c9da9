"""How long the kernels of this very graph take on this CPU, one after the other: `streams.cost=measured`."""

from __future__ import annotations

from time import perf_counter_ns

from torch import fx

from npucompose.graphs import Dependence
from npucompose.schema.capabilities import Clock, Clocked
from npucompose.streams.execute import Execution, Inputs, made_up_inputs, on_the_side
from npucompose.streams.work import Work

ROUNDS = 7
"""Each kernel's time is the shortest of so many, after one round that warms up."""


def clocked(graph: fx.Graph, clock: Clock) -> Clocked | None:
    """What the clock of a device says of the graph on made-up inputs of its shapes."""
    if graph.owning_module is None:
        return None
    inputs = made_up_inputs(graph)
    with on_the_side():
        return clock(graph.owning_module, inputs)


def work_of(found: Clocked, dependence: Dependence) -> list[Work]:
    """The work of each kernel, in the order of `dependence.kernels`; each fills one core."""
    names = [kernel.name for kernel in dependence.kernels]
    return [
        Work(us=found.kernel_us.get(name, 0.0), in_a_row_us=found.together_us.get(name, 0.0), vector=1)
        for name in names
    ]


def measured(graph: fx.Graph, dependence: Dependence) -> list[Work]:
    """The same for a graph that no clock takes: each kernel is called from Python and timed.

    The graph runs on made-up inputs of its shapes, so its own inputs and the random numbers stay as they are.
    """
    kernels = dependence.kernels
    best = [float("inf")] * len(kernels)
    with on_the_side():
        inputs = Inputs(graph, dependence)
        for round_ in range(ROUNDS + 1):
            execution = Execution(graph, kernels, inputs.start())
            for index, kernel in enumerate(kernels):
                execution.prepare(kernel)
                took = _timed(execution, kernel)
                if round_:
                    best[index] = min(best[index], took)
    return [Work(us=us, vector=1) for us in best]


def _timed(execution: Execution, kernel: fx.Node) -> float:
    """Microseconds of one call."""
    begun = perf_counter_ns()
    execution.run(kernel)
    return (perf_counter_ns() - begun) / 1e3
