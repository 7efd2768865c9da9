"""The times of kernels on this machine, measured once: a graph of samples, replayed with a look at the clock.

`SAMPLES` says which operators, each in four sizes; their families are what `streams/calibrated.py` reads off them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from npucompose.errors import CaptureError
from npucompose.graphs import Dependence
from npucompose.schema.cost_table import CostTable, Sample
from npucompose.streams.calibrated import features
from npucompose.streams.cost import ResultSizes
from npucompose.streams.execute import isolated_run
from npucompose_replay.executor import tables
from npucompose_replay.executor.clock import ClockedTwice, clocked_twice

aten: Any = torch.ops.aten
Call = tuple[Any, tuple[Any, ...]]
"""(operator, arguments), tensors among them."""
SIZES = (1 << 8, 1 << 12, 1 << 15, 1 << 17, 1 << 19)
"""Elements: what a call costs, then up to and beyond what torch gives to one thread (32,768)."""
WIDTH = 256


SMALL_AGAIN = 3
"""So often a small kernel comes in a row: the first time its code has to be fetched, as no kernel's of a loop has."""


def _elementwise(count: int) -> Iterator[Call]:
    x, y = torch.rand(count), torch.rand(count)
    rows, ids = torch.rand(count // WIDTH, WIDTH), torch.arange(count // WIDTH).flip(0)
    weight = torch.ones(WIDTH)
    yield from ((aten.add.Tensor, (x, y)), (aten.mul.Tensor, (x, y)), (aten.relu.default, (x,)))
    yield from ((aten.pow.Tensor_Scalar, (x, 2)), (aten.rsqrt.default, (x,)))
    yield from ((aten.exp.default, (x,)), (aten.silu.default, (x,)), (aten.gelu.default, (x,)))
    yield from ((aten.sum.dim_IntList, (rows, [-1])), (aten.mean.dim, (rows, [-1], True)))
    yield aten.amax.default, (rows, [-1])
    yield aten._softmax.default, (rows, -1, False)
    yield aten.native_layer_norm.default, (rows, [WIDTH], weight, weight, 1e-5)
    yield from ((aten.embedding.default, (rows, ids)), (aten.index.Tensor, (rows, [ids])))
    yield aten.scatter.src, (rows, -1, torch.arange(WIDTH).expand_as(rows), rows)
    yield from ((aten.clone.default, (x,)), (aten.cat.default, ([x, y],)))


def _selections(count: int) -> Iterator[Call]:
    rows = torch.rand(count // WIDTH, WIDTH)
    yield aten.topk.default, (rows, 4)
    yield aten.sort.default, (rows, -1)


def _products(size: int) -> Iterator[Call]:
    left, right = torch.rand(size, size), torch.rand(size, size)
    yield aten.mm.default, (left, right)
    yield aten.addmm.default, (left[0], left, right)
    yield aten.bmm.default, (torch.rand(4, size // 2, size // 2), torch.rand(4, size // 2, size // 2))


def _rows(size: int) -> Iterator[Call]:
    """With the matrix transposed, as a linear layer and the keys of an attention have it."""
    row, matrix = torch.rand(1, size), torch.rand(size, size).mT
    yield aten.mm.default, (row, matrix)
    yield aten.addmm.default, (row[0], row, matrix)
    yield aten.bmm.default, (torch.rand(4, 1, size // 2), torch.rand(4, size // 2, size // 2).mT)


def _attention(length: int) -> Iterator[Call]:
    query = torch.rand(1, 8, length, 64)
    yield aten._scaled_dot_product_flash_attention_for_cpu.default, (query, query, query)


def _convolution(width: int) -> Iterator[Call]:
    image, weight = torch.rand(1, 16, width, width), torch.rand(16, 16, 3, 3)
    yield aten.convolution.default, (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


Samples = Sequence[tuple[Callable[[int], Iterator[Call]], Sequence[int]]]
"""(kernels of a size, the sizes)."""
SAMPLES: Samples = (
    (_elementwise, SIZES),
    (_selections, (1 << 9, 1 << 11, 1 << 13, 1 << 15)),
    (_products, (32, 96, 192, 352)),
    (_rows, (64, 256, 640, 1280)),
    (_attention, (8, 32, 96, 192)),
    (_convolution, (8, 24, 48, 96)),
)


def sample_graph(samples: Samples) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """All samples in one graph, the sizes in turn, and its inputs."""
    graph, inputs = fx.Graph(), []
    nodes: dict[int, fx.Node] = {}

    def given(value: Any) -> Any:
        """One input for each tensor, which a kernel that comes again finds in the cache."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in nodes:
            nodes[id(value)] = node = graph.placeholder(f"given_{len(inputs)}")
            node.meta["val"] = value
            inputs.append(value)
        return nodes[id(value)]

    calls = [
        call
        for calls_of, sizes in samples
        for place, size in enumerate(sizes)
        for call in calls_of(size)
        for _ in range(SMALL_AGAIN if place < len(sizes) // 2 else 1)
    ]
    placed: list[Call] = [(op, tuple(map_aggregate(one, given) for one in args)) for op, args in calls]
    last: fx.Node | None = None
    for (op, args), (_, real) in zip(placed, calls, strict=True):
        last = graph.call_function(op, args)
        last.meta["val"] = op(*real)
    graph.output((last,))
    return fx.GraphModule(torch.nn.Module(), graph), inputs


def measure() -> CostTable | None:
    """The table of this machine at torch's present number of threads; None where the native replayer cannot say."""
    with isolated_run():
        module, inputs = sample_graph(SAMPLES)
        try:
            found = clocked_twice(module, inputs)
        except CaptureError:
            return None
    return _table(module, found)


def _table(module: fx.GraphModule, found: ClockedTwice) -> CostTable:
    sizes = ResultSizes()
    families: dict[str, dict[str, dict[float, Sample]]] = {}
    for kernel in Dependence.from_graph(module.graph).kernels:
        if kernel.name not in found.low.kernel_us:
            continue
        feature = features(kernel, sizes)[-1]
        sample = Sample(
            size=feature.size,
            one_us=found.low.kernel_us[kernel.name],
            all_us=found.low.together_us[kernel.name],
            one_middle_us=found.middle.kernel_us[kernel.name],
            all_middle_us=found.middle.together_us[kernel.name],
        )
        same = families.setdefault(feature.family, {}).setdefault(feature.operator, {})
        same[feature.size] = sample.shortest(same.get(feature.size, sample))
    return CostTable(
        threads=torch.get_num_threads(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        stream_us=found.low.stream_us,
        event_us=found.low.event_us,
        families={
            family: {name: tuple(rows[size] for size in sorted(rows)) for name, rows in sorted(operators.items())}
            for family, operators in sorted(families.items())
        },
    )


_known: dict[int, CostTable | None] = {}
_turns = threading.Lock()


def cost_table() -> CostTable | None:
    """The table for torch's present number of threads: this process's, the one that is kept, or measured now."""
    threads = torch.get_num_threads()
    with _turns:
        if threads not in _known:
            kept = tables.read(threads)
            doubtful = kept is None or kept.is_doubtful(datetime.now(timezone.utc))
            _known[threads] = (calibrate() or kept) if doubtful else kept
        return _known[threads]


def calibrate() -> CostTable | None:
    """Measure now and keep what was found."""
    threads = torch.get_num_threads()
    print(f"npucompose: measuring kernels on {threads} thread{'s'[: threads - 1]}, once …", file=sys.stderr)
    table = measure()
    if table is not None:
        tables.keep(table)
    return table


def calibrate_again() -> list[CostTable]:
    """Measure anew at torch's number of threads and at each that a table is kept of; [] where nothing can be."""
    before = torch.get_num_threads()
    made: list[CostTable | None] = []
    try:
        for threads in sorted({before, *(table.threads for table in tables.kept())}):
            torch.set_num_threads(threads)
            made.append(calibrate())
    finally:
        torch.set_num_threads(before)
    return [table for table in made if table is not None]
