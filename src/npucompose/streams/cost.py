"""How long a kernel takes: by its shapes (a roofline; no kernel is run), or as measured on this very graph; and what a
collective takes on the link between ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch.utils.flop_counter import flop_registry

from npucompose.graphs import Dependence, effects
from npucompose.graphs.effects import is_collective
from npucompose.schema.capabilities import Clock, Clocked
from npucompose.streams.execute import ExampleInputs, Execution, hint, isolated_run, made_up_inputs
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

_CONTRACTIONS = {
    "mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "_int_mm": 0, "_scaled_mm": 0,
    "npu_quant_matmul": 0, "npu_weight_quant_batchmatmul": 0,
}  # fmt: skip
"""{operator: position of the left matrix, whose last dimension is summed over}"""
_MIXED = (
    "_scaled_mm", "npu_quant_matmul", "npu_weight_quant_batchmatmul", "_scaled_dot_product", "npu_fusion_attention",
    "npu_prompt_flash_attention", "npu_incre_flash_attention", "npu_fused_infer_attention_score",
)  # fmt: skip
"""Beginnings of the names of kernels that need cube and vector cores: products of quantised matrices and attention
(cann-recipes-infer, multi_stream_principles.md, 2.1.1)."""
_CPU = "_for_cpu"
"""How the name of a CPU's attention ends."""
_CUBE_TILE, _VECTOR_TILE = 128, 4096
"""Rows and columns, and elements, of the result that one core is given: a kernel with fewer leaves cores to others."""


class ResultSizes(dict[fx.Node, tuple[float, float]]):
    """{node: (elements, bytes) of its result}, worked out when asked for; a symbolic size counts as its hint, or 1."""

    def __missing__(self, node: fx.Node) -> tuple[float, float]:
        elements = nbytes = 0.0
        for tensor in _tensors(node):
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
    result has tiles; a mixed kernel fills both. Its cores divide the arithmetic, not the launch and not the traffic.
    What the last `l2_bytes` of traffic read or wrote comes from L2, in the order of `kernels`, nothing being there when
    the graph begins. On a CPU a kernel of a
    stream runs on one core; without streams torch may spread it over several.
    """
    traffic = _Traffic(kernels, model, sizes)
    return [_estimated(kernel, model, sizes, traffic) for kernel in kernels]


class _Traffic:
    """Bytes that kernels move, one after the other, and which of them are still in L2."""

    def __init__(self, kernels: Sequence[fx.Node], model: DeviceModel, sizes: ResultSizes) -> None:
        self.kernels, self.model, self.sizes = set(kernels), model, sizes
        self.moved = 0.0
        # {what made a tensor: where its last use began in the traffic}.
        self.used: dict[fx.Node, float] = {}

    def of(self, kernel: fx.Node) -> tuple[float, float]:
        """(µs of memory, µs of L2) that the kernel's bytes take."""
        begun, far, near = self.moved, 0.0, 0.0
        for source in kernel.all_input_nodes:
            nbytes = self.sizes[source][1]
            if begun - self.used.get(self._maker(source), -math.inf) <= self.model.l2_bytes:
                near += nbytes
            else:
                far += nbytes
            self._use(self._maker(source), nbytes)
        made = self.sizes[kernel][1]
        self._use(kernel, made)
        l2_us = near / (self.model.l2_gbytes_s * 1e3) if self.model.l2_gbytes_s else 0.0
        return (far + made) / (self.model.gbytes_s * 1e3), l2_us

    def _use(self, maker: fx.Node, nbytes: float) -> None:
        if self.model.l2_gbytes_s:
            self.used[maker] = self.moved
            self.moved += nbytes

    def _maker(self, node: fx.Node) -> fx.Node:
        """The kernel or the input that a view is of."""
        while node not in self.kernels and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node


@frozen
class _Arithmetic:
    """What the cores do of a kernel."""

    us: float
    """On one core; all tiles together."""
    tiles: int
    product: bool
    mixed: bool


def _estimated(kernel: fx.Node, model: DeviceModel, sizes: ResultSizes, traffic: _Traffic) -> Work:
    needs = _arithmetic(kernel, model, sizes)
    cube, vector = _cores(kernel, needs, model)
    on_cube = needs.product and bool(cube)
    rounds = math.ceil(needs.tiles / cube) / needs.tiles if on_cube else 1 / vector
    divided = needs.us * rounds
    memory_us, l2_us = traffic.of(kernel)
    busy_us = max(divided, memory_us + l2_us)
    us = model.launch_us + busy_us
    threads = min(torch.get_num_threads(), model.vector)
    spread = None if model.fork_us is None else min(us, model.fork_us + model.launch_us + busy_us / threads)
    return Work(
        us=us,
        in_a_row_us=spread,
        cube=cube,
        vector=vector,
        bandwidth=memory_us / us if us else 0.0,
        fixed_us=model.launch_us,
        divided_us=divided,
        tiles=needs.tiles if on_cube else 0,
    )


def _cores(kernel: fx.Node, needs: _Arithmetic, model: DeviceModel) -> tuple[int, int]:
    """(cube, vector) cores that a kernel fills; one where cores are threads."""
    if not model.cube:
        return 0, 1
    used = min(model.cube if needs.product else model.vector, needs.tiles)
    if not needs.mixed:
        return (used, 0) if needs.product else (0, used)
    cube = used if needs.product else math.ceil(used * model.cube / model.vector)
    return cube, max(1, cube * model.vector // model.cube)


def _arithmetic(kernel: fx.Node, model: DeviceModel, sizes: ResultSizes) -> _Arithmetic:
    made, made_bytes = sizes[kernel]
    inputs = [sizes[source] for source in kernel.all_input_nodes]
    read, read_bytes = sum(elements for elements, _ in inputs), sum(nbytes for _, nbytes in inputs)
    mixed = bool(model.cube) and name_of(kernel).startswith(_MIXED)
    flops = flops_of(kernel, made)
    if flops is None:
        count = max(made, read)
        operations = max(count, max(made_bytes, read_bytes) / model.word_bytes) if model.word_bytes else count
        tiles = max(1, math.ceil(count / _VECTOR_TILE))
        return _Arithmetic(operations / (model.vector_gflops * 1e3), tiles, product=False, mixed=mixed)
    rate = model.cube_gflops * _product_speed(kernel, model) * 1e3
    tiles = _tiles(kernel, made) if not mixed else max(_tiles(kernel, made), math.ceil(read / _VECTOR_TILE))
    return _Arithmetic(flops / rate, tiles, product=True, mixed=mixed)


def _product_speed(kernel: fx.Node, model: DeviceModel) -> float:
    """Of matrices of this width, 1.0 those of `word_bytes`: a product of half the width is twice as fast (DtypeMKN in
    platform_config), one of twice the width four times as slow (FP32 against FP16 of an Atlas A2: 94 and 376 TFLOPS).
    """
    left = next((value for source in kernel.all_input_nodes for value in _tensors(source)), None)
    if model.word_bytes is None or left is None:
        return 1.0
    narrower = model.word_bytes / left.dtype.itemsize
    return narrower if narrower >= 1 else narrower**2


def _tiles(kernel: fx.Node, made: float) -> int:
    """Parts of a product's result; where rows and columns are no dimensions of it, as many as it has elements for."""
    shape = next((value.shape for value in _tensors(kernel)), ())
    if name_of(kernel) not in _CONTRACTIONS or not shape:
        return max(1, math.ceil(made / _CUBE_TILE**2))
    rows, columns = (hint(shape[-2]), hint(shape[-1])) if len(shape) > 1 else (hint(shape[-1]), 1.0)
    batches = math.prod(hint(size) for size in shape[:-2])
    return max(1, round(batches * math.ceil(rows / _CUBE_TILE) * math.ceil(columns / _CUBE_TILE)))


def _tensors(node: fx.Node) -> Sequence[torch.Tensor]:
    value = node.meta.get("val")
    return (value,) if isinstance(value, torch.Tensor) else tuple(effects.tensors_in(value))


def name_of(kernel: fx.Node) -> str:
    """Of its operator without the overload: "mm"; '' for what is no operator."""
    return getattr(getattr(kernel.target, "overloadpacket", None), "__name__", "")


def rows_of(kernel: fx.Node) -> float:
    """Of the result of a matrix product, in one of its batches; many for a convolution or an attention."""
    shape = next((value.shape for value in _tensors(kernel)), ())
    if name_of(kernel) not in _CONTRACTIONS:
        return math.inf
    return 1.0 if name_of(kernel) in ("mv", "addmv") or len(shape) < 2 else hint(shape[-2])


def flops_of(kernel: fx.Node, made: float) -> float | None:
    """Of a matrix product, a convolution or an attention, by torch's own formulas; None for everything else.

    `made` is how many elements its result has.
    """
    name = name_of(kernel)
    if name in _CONTRACTIONS and len(kernel.args) > _CONTRACTIONS[name]:
        left = kernel.args[_CONTRACTIONS[name]]
        value = left.meta.get("val") if isinstance(left, fx.Node) else None
        return 2 * made * hint(value.shape[-1]) if isinstance(value, torch.Tensor) else None
    packet = getattr(kernel.target, "overloadpacket", None)
    if name.endswith(_CPU):  # it has no formula of its own
        packet = getattr(torch.ops.aten, name.removesuffix(_CPU), None)
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


_OVER_THE_LINK: Mapping[str, tuple[Callable[[float, float], float], float]] = {
    "all_reduce": (min, 2.0),
    "all_gather_into_tensor": (max, 1.0),
    "reduce_scatter_tensor": (max, 1.0),
    "all_to_all_single": (max, 1.0),
}
"""{operator: (which of the bytes read and made count, how often each goes over the link of a rank, of many ranks)}, by
the bus bandwidth of nccl-tests (doc/PERFORMANCE.md): n ranks spare 1/n of it. All others send what they read once."""


def on_link(work: Sequence[Work], needed: Dependence, model: DeviceModel, sizes: ResultSizes) -> list[Work]:
    """`work` with collectives on the link, and what waits for them without work of its own.

    A collective takes `model.link_us` and its share of the bytes at `model.link_gbytes_s`, and where
    `model.collective_cores` says so vector cores too, all at once.
    """
    number = {kernel: index for index, kernel in enumerate(needed.kernels)}
    found = list(work)
    for kernel, index in number.items():
        if is_collective(kernel):
            cores = min(model.collective_cores, model.vector)
            us = model.link_us + _bytes(kernel, sizes) / (model.link_gbytes_s * 1e3)
            found[index] = Work(us=us, vector=cores, gang=cores > 0, link=True)
    for wait, collectives in needed.awaited.items():
        found[number[wait]] = Work(us=0.0, awaits=tuple(sorted(number[one] for one in collectives)))
    return found


def _bytes(collective: fx.Node, sizes: ResultSizes) -> float:
    """Over the link of one rank."""
    read = sum(sizes[source][1] for source in collective.all_input_nodes)
    made = sizes[collective][1]
    name = str(getattr(collective.target, "_opname", ""))
    found = next((shares for operator, shares in _OVER_THE_LINK.items() if name.startswith(operator)), None)
    if found is None:
        return read
    counted, times = found
    return counted(read, made) * times * (1 - 1 / _ranks(collective, read, made))


def _ranks(collective: fx.Node, read: float, made: float) -> float:
    """How many take part, as far as the graph or this process's groups tell; else endlessly many."""
    if read != made and read and made:
        return max(read, made) / min(read, made)
    group = next((given for given in reversed(collective.args) if isinstance(given, str)), None)
    try:
        groups: Any = torch.distributed.distributed_c10d
        return float(groups._resolve_process_group(group).size()) if group else math.inf
    except (AttributeError, RuntimeError):  # torch without distributed, or a group of another process
        return math.inf
