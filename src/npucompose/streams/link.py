"""Collectives as work on the link between ranks: what of their bytes goes over it, and how long that takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from npucompose.graphs import Dependence
from npucompose.graphs.effects import is_collective
from npucompose.streams.cost import ResultSizes
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

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
