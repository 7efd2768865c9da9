"""Running an FX graph on the CPU with made-up inputs, node by node, in an order of the caller's choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.graphs import Dependence
from npucompose.streams.cost import hint

SEED = 0


@contextmanager
def on_the_side() -> Iterator[None]:
    """Real tensors whatever is being traced, no gradients, and the caller's random numbers untouched."""
    with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


def made_up_inputs(graph: fx.Graph) -> list[Any]:
    """Values for a graph's placeholders, by their fake values; see `Inputs`."""
    with on_the_side():
        return list(Inputs(graph, Dependence.from_graph(graph)).start().values())


class Inputs:
    """Made-up values for a graph's placeholders, the same at every start: numbers around 0, whole numbers 0 or 1."""

    def __init__(self, graph: fx.Graph, dependence: Dependence) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self._nodes = [node for node in graph.nodes if node.op == "placeholder"]
        self._values = [_example(node.meta.get("val"), generator) for node in self._nodes]
        written = dependence.aliases.written
        self._written = [not dependence.aliases.keys[node].isdisjoint(written) for node in self._nodes]

    def start(self) -> dict[fx.Node, Any]:
        """{placeholder: value}; what the graph writes is a copy of its own."""
        values = (v.clone() if w else v for v, w in zip(self._values, self._written, strict=True))
        return dict(zip(self._nodes, values, strict=True))

    def written(self, values: Mapping[fx.Node, Any]) -> list[Any]:
        """Those of `start()`'s values that the graph may have changed."""
        return [values[node] for node, written in zip(self._nodes, self._written, strict=True) if written]


def _example(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, torch.Tensor):
        size, stride = [int(hint(s)) for s in value.shape], [int(hint(s)) for s in value.stride()]
        made = torch.empty_strided(size, stride, dtype=value.dtype)
        if made.is_floating_point() or made.is_complex():
            return made.normal_(generator=generator)
        return made.random_(0, 2, generator=generator)
    return int(hint(value)) if isinstance(value, torch.SymInt) else value


class Execution:
    """One run: values by node; a kernel when it is told to, everything else when somebody needs it."""

    def __init__(self, graph: fx.Graph, kernels: Iterable[fx.Node], inputs: Mapping[fx.Node, Any]) -> None:
        module = graph.owning_module or torch.nn.Module()
        self._interpreter = fx.Interpreter(module, graph=graph, garbage_collect_values=False)
        self._values = self._interpreter.env
        self._kernels = frozenset(kernels)
        self._output = next(node for node in reversed(graph.nodes) if node.op == "output")
        self._values.update(inputs)
        torch.default_generator.manual_seed(SEED)

    def prepare(self, kernel: fx.Node) -> None:
        """The views and sizes that a kernel reads. KeyError, naming it, where another kernel's result is not there."""
        stack = [source for source in kernel.all_input_nodes if source not in self._values]
        while stack:
            node = stack[-1]
            missing = [source for source in node.all_input_nodes if source not in self._values]
            if node in self._kernels:
                raise KeyError(node.name)
            if missing:
                stack += missing
                continue
            stack.pop()
            if node not in self._values:
                self._values[node] = self._interpreter.run_node(node)

    def run(self, kernel: fx.Node) -> Any:
        value = self._values[kernel] = self._interpreter.run_node(kernel)
        return value

    def outputs(self) -> list[Any]:
        """The graph's results, flat."""
        self.prepare(self._output)
        results: list[Any] = []
        fx.map_arg(self._output.args, lambda node: results.append(self._values[node]))
        return results
