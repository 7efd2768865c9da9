"""Graphs are converted as for tensors on an NPU, though the tensors lie on the CPU.

TorchAir writes each input's device into the GE graph, and options follow from it: a parameter on the CPU is not a
frozen input, for example. So while a graph is converted its inputs are fake tensors on `npu:0`, and so are the devices
that its operators name. The graph that is *run* stays on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from npucompose.targets.npu_offline.simulator.ge_session import TorchNpuGraphBase

DEVICE = "npu:0"
_PLACED: list[Any] = []


def place_ge_graphs() -> None:
    """Wrap TorchAir's converter once; the second call does nothing."""
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph  # pyright: ignore[reportMissingImports]
    from torchair.npu_fx_compiler import _NpuGraphConverter  # pyright: ignore[reportMissingImports]

    if GeConcreteGraph in _PLACED:
        return
    _PLACED.append(GeConcreteGraph)
    save, run = GeConcreteGraph.save_fx_graph, _NpuGraphConverter.run

    def save_fx_graph(self: Any, graph_module: Any) -> Any:
        TorchNpuGraphBase.programs[self.graph.name] = self
        return save(self, graph_module)

    def run_converter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._graph, GeConcreteGraph):
            return run(self, *args, **kwargs)
        with _devices_named(self.module.graph):
            return run(self, *(on_npu(arg) for arg in args), **kwargs)

    GeConcreteGraph.save_fx_graph = save_fx_graph
    _NpuGraphConverter.run = run_converter


def on_npu(value: Any) -> Any:
    """A fake CPU tensor as a fake NPU tensor of the same sizes, with the marks that TorchAir and Dynamo put on it."""
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    with value.fake_mode:
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        if value.storage_offset():
            made = made.as_strided(value.size(), value.stride(), value.storage_offset())
    for name, mark in vars(value).items():
        if name not in vars(made):
            setattr(made, name, mark)
    return made


@contextmanager
def _devices_named(graph: Any) -> Iterator[None]:
    """`torch.ones(2, device="cpu")` in the graph is made on the NPU meanwhile."""
    before = [(node, node.args, node.kwargs) for node in graph.nodes]
    for node in graph.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = _renamed(node.args), _renamed(node.kwargs)
    try:
        yield
    finally:
        for node, args, kwargs in before:
            node.args, node.kwargs = args, kwargs


def _renamed(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device(DEVICE)
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _renamed(item) for key, item in value.items()}
    return value
