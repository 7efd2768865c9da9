"""How long a kernel takes by its shapes: a roofline of arithmetic, memory and launch. No kernel is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from npucompose.graphs import effects
from npucompose.streams.work import Work
from npucompose.vendor.devices import DeviceModel

_CONTRACTIONS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""{operator: position of the left matrix, whose last dimension is summed over}"""
_CUBE_TILE, _VECTOR_TILE = 128 * 128, 4096
"""Elements of the result that one core is given: a kernel with fewer leaves cores to others."""


class Sizes:
    """Elements and bytes of every node's result, each worked out once; a symbolic size counts as its hint, or 1."""

    def __init__(self) -> None:
        self._known: dict[fx.Node, tuple[float, float]] = {}

    def of(self, node: fx.Node) -> tuple[float, float]:
        """(elements, bytes)."""
        known = self._known.get(node)
        if known is None:
            elements = nbytes = 0.0
            value = node.meta.get("val")
            for tensor in (value,) if isinstance(value, torch.Tensor) else effects.tensors_in(value):
                # Not numel(): of a fake tensor it costs as much as all the rest.
                count = math.prod([hint(size) for size in tensor.shape])
                elements += count
                nbytes += count * tensor.dtype.itemsize
            known = self._known[node] = (elements, nbytes)
        return known


def roofline(kernels: Sequence[fx.Node], model: DeviceModel, sizes: Sizes) -> list[Work]:
    """The work of each kernel on a device: launch, then the longer of its arithmetic and its memory traffic.

    A matrix product fills cube cores (vector cores where there are none), everything else vector cores, as many as its
    result has tiles. On a CPU a kernel of a stream runs on one core; without streams torch may spread it over several.
    """
    return [_estimated(kernel, model, sizes) for kernel in kernels]


def _estimated(kernel: fx.Node, model: DeviceModel, sizes: Sizes) -> Work:
    made, made_bytes = sizes.of(kernel)
    read, read_bytes = 0.0, 0.0
    for source in kernel.all_input_nodes:
        elements, nbytes = sizes.of(source)
        read += elements
        read_bytes += nbytes
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
    spread = None if model.fork_us is None else min(us, model.fork_us + model.launch_us + busy_us / _threads(model))
    return Work(
        us=us,
        in_a_row_us=spread,
        cube=used if on_cube else 0,
        vector=0 if on_cube else used,
        bandwidth=memory_us / us if us else 0.0,
        gang=gang and bool(model.cube),
    )


def _threads(model: DeviceModel) -> int:
    return min(torch.get_num_threads(), model.vector)


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


def hint(size: Any) -> float:
    """A size as a number, without adding a guard: the hint of a symbol, 1 where there is none."""
    if type(size) is not int and isinstance(size, torch.SymInt):
        return float(size.node.hint) if size.node.has_hint() else 1.0
    return float(size)
