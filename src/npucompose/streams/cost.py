"""How long a kernel takes: by its shapes (a roofline; no kernel is run), or as measured on this very graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter_ns

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from npucompose.graphs import Dependence, effects
from npucompose.schema.capabilities import Clock, Clocked
from npucompose.streams.execute import ExampleInputs, Execution, hint, isolated_run, made_up_inputs
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

_CONTRACTIONS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""{operator: position of the left matrix, whose last dimension is summed over}"""
_CUBE_TILE, _VECTOR_TILE = 128 * 128, 4096
"""Elements of the result that one core is given: a kernel with fewer leaves cores to others."""


class ResultSizes(dict[fx.Node, tuple[float, float]]):
    """{node: (elements, bytes) of its result}, worked out when asked for; a symbolic size counts as its hint, or 1."""

    def __missing__(self, node: fx.Node) -> tuple[float, float]:
        elements = nbytes = 0.0
        value = node.meta.get("val")
        for tensor in (value,) if isinstance(value, torch.Tensor) else effects.tensors_in(value):
            count = elements_of(tensor)
            elements += count
            nbytes += count * tensor.dtype.itemsize
        return self.setdefault(node, (elements, nbytes))


def elements_of(tensor: torch.Tensor) -> float:
    """Not numel(): of a fake tensor it costs as much as all the rest."""
    return math.prod([hint(size) for size in tensor.shape])


def roofline(kernels: Sequence[fx.Node], model: DeviceModel, sizes: ResultSizes) -> list[Work]:
    """The work of each kernel on a device: launch, then the longer of its arithmetic and its memory traffic.

    A matrix product fills cube cores (vector cores where there are none), everything else vector cores, as many as its
    result has tiles. On a CPU a kernel of a stream runs on one core; without streams torch may spread it over several.
    """
    return [_estimated(kernel, model, sizes) for kernel in kernels]


def _estimated(kernel: fx.Node, model: DeviceModel, sizes: ResultSizes) -> Work:
    made, made_bytes = sizes[kernel]
    inputs = [sizes[source] for source in kernel.all_input_nodes]
    read, read_bytes = sum(elements for elements, _ in inputs), sum(nbytes for _, nbytes in inputs)
    flops = _flops(kernel, made)
    is_cube = flops is not None
    cores, tile, rate = (
        (model.cube, _CUBE_TILE, model.cube_gflops) if is_cube else (model.vector, _VECTOR_TILE, model.vector_gflops)
    )
    gang = effects.is_collective(kernel)
    used = 1
    if model.cube:
        used = cores if gang else max(1, min(cores, math.ceil(max(made, 1 if is_cube else read) / tile)))
    memory_us = (made_bytes + read_bytes) / (model.gbytes_s * 1e3)
    busy_us = max((flops if flops is not None else max(made, read)) / (used * rate * 1e3), memory_us)
    us = model.launch_us + busy_us
    on_cube = is_cube and bool(model.cube)
    threads = min(torch.get_num_threads(), model.vector)
    spread = None if model.fork_us is None else min(us, model.fork_us + model.launch_us + busy_us / threads)
    return Work(
        us=us,
        in_a_row_us=spread,
        cube=used if on_cube else 0,
        vector=0 if on_cube else used,
        bandwidth=memory_us / us if us else 0.0,
        gang=gang and bool(model.cube),
    )


def _flops(kernel: fx.Node, made: float) -> float | None:
    """Of a matrix product, a convolution or an attention, by torch's own formulas; None for everything else."""
    packet = getattr(kernel.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    if name in _CONTRACTIONS and len(kernel.args) > _CONTRACTIONS[name]:
        left = kernel.args[_CONTRACTIONS[name]]
        value = left.meta.get("val") if isinstance(left, fx.Node) else None
        return 2 * made * hint(value.shape[-1]) if isinstance(value, torch.Tensor) else None
    formula = flop_registry.get(packet)
    if formula is None:
        return None
    args, kwargs = fx.map_arg((kernel.args, kernel.kwargs), lambda source: source.meta.get("val"))
    return float(hint(formula(*args, **kwargs, out_val=kernel.meta.get("val"))))


ROUNDS = 7
"""Each kernel's time is the shortest of so many, after one round that warms up."""


def clocked(graph: fx.Graph, clock: Clock) -> Clocked | None:
    """What the clock of a device says of the graph on made-up inputs of its shapes."""
    if graph.owning_module is None:
        return None
    inputs = made_up_inputs(graph)
    with isolated_run():
        return clock(graph.owning_module, inputs)


def work_of(found: Clocked, dependence: Dependence) -> list[Work]:
    """The work of each kernel, in the order of `dependence.kernels`; each fills one core."""
    return [
        Work(us=found.kernel_us.get(kernel.name, 0.0), in_a_row_us=found.together_us.get(kernel.name, 0.0), vector=1)
        for kernel in dependence.kernels
    ]


def measured(graph: fx.Graph, dependence: Dependence) -> list[Work]:
    """The same for a graph that no clock takes: each kernel is called from Python and timed.

    The graph runs on made-up inputs of its shapes, so its own inputs and the random numbers stay as they are.
    """
    kernels = dependence.kernels
    best = [float("inf")] * len(kernels)
    with isolated_run():
        inputs = ExampleInputs(graph, dependence)
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
