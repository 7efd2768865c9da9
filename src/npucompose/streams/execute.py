"""Running an FX graph on the CPU with made-up inputs; random orders that streams allow must give equal bits.

Independent of the validator: the order is read off scopes, records and waits alone, the proof is in the values.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import tensors_in
from npucompose.streams.timing import issued_before

SEED = 0


@contextmanager
def isolated_run() -> Iterator[None]:
    """Real tensors whatever is being traced, no gradients, and the caller's random numbers untouched."""
    with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


def made_up_inputs(graph: fx.Graph) -> list[Any]:
    """Values for a graph's placeholders, by their fake values; see `ExampleInputs`."""
    with isolated_run():
        return list(ExampleInputs(graph, Dependence.from_graph(graph)).start().values())


class ExampleInputs:
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


def hint(size: Any) -> float:
    """A size as a number, without adding a guard: the hint of a symbol, 1 where there is none."""
    if type(size) is not int and isinstance(size, torch.SymInt):
        return float(size.node.hint) if size.node.has_hint() else 1.0
    return float(size)


def missing_first(wanted: Iterable[fx.Node], there: Container[fx.Node]) -> Iterator[fx.Node]:
    """What is not `there` of these nodes and of what they are made of, inputs first; the caller puts it there."""
    stack = list(wanted)
    while stack:
        missing = [source for source in stack[-1].all_input_nodes if source not in there]
        if missing and stack[-1] not in there:
            stack += missing
        elif (node := stack.pop()) not in there:
            yield node


class Execution:
    """One run: values by node; a kernel when `run` asks for it, everything else when somebody needs it."""

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
        for node in missing_first(kernel.all_input_nodes, self._values):
            if node in self._kernels:
                raise KeyError(node.name)
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


def find_races(graph: fx.Graph, orders: int, seed: int = 0) -> None:
    """Raise PlanError("race_found", …) when one of `orders` random legal orders gives other bits than the graph's own.

    "Legal" is what streams on a device may do: each keeps its own order and waits where it is told to. A missing event
    shows when it matters and an order is drawn in which it does; the validator needs no such luck, but trusts what it
    is told of memory.
    """
    dependence = Dependence.from_graph(graph)
    kernels = dependence.kernels
    before = issued_before(graph, kernels)
    with isolated_run():
        inputs = ExampleInputs(graph, dependence)
        expected = _run(graph, inputs, kernels)
        for number in range(orders):
            order = random_order(kernels, before, random.Random(f"{seed}/{number}"))
            got = _run(graph, inputs, order)
            if got != expected:
                raise PlanError("race_found", _words(number, seed, kernels, expected, got))


def random_order(
    kernels: Sequence[fx.Node], before: Mapping[fx.Node, Sequence[fx.Node]], chance: random.Random
) -> list[fx.Node]:
    """A random linear extension: among those that may start, one by chance, and runs of one stream now and then."""
    missing = {kernel: len(before[kernel]) for kernel in kernels}
    after: dict[fx.Node, list[fx.Node]] = {}
    for kernel, firsts in before.items():
        for first in firsts:
            after.setdefault(first, []).append(kernel)
    ready = [kernel for kernel in kernels if not missing[kernel]]
    order: list[fx.Node] = []
    eager = chance.random()  # how often the newest goes first: 0 shuffles, 1 drives one stream as far as it goes
    while ready:
        at = len(ready) - 1 if chance.random() < eager else chance.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        kernel = ready.pop()
        order.append(kernel)
        for target in after.get(kernel, ()):
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    return order


def _run(graph: fx.Graph, inputs: ExampleInputs, order: Sequence[fx.Node]) -> dict[str, Any]:
    """{kernel: checksum of its result when it was made}, and those of the outputs and of the inputs afterwards."""
    values = inputs.start()
    execution = Execution(graph, order, values)
    made: dict[str, Any] = {}
    try:
        for kernel in order:
            execution.prepare(kernel)
            made[kernel.name] = checksum(execution.run(kernel))
        made[""] = [checksum(value) for value in (*execution.outputs(), *inputs.written(values))]
    except KeyError as error:
        made[""] = f"'{error.args[0]}' is read before it is made"
    return made


def checksum(value: Any) -> Any:
    """Of the bits of a value's tensors; the value itself where none has its bytes in a row."""
    parts = [
        zlib.crc32(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        for tensor in tensors_in(value)
        if tensor.layout is torch.strided
    ]
    return parts or value


def _words(number: int, seed: int, kernels: Sequence[fx.Node], expected: dict[str, Any], got: dict[str, Any]) -> str:
    first = next((k.name for k in kernels if k.name in got and got[k.name] != expected[k.name]), None)
    what = f"the first kernel with other bits is '{first}'" if first else "the outputs or the inputs afterwards differ"
    if isinstance(got[""], str):
        what = got[""]
    return f"Random order {number} (seed {seed}), which streams and events allow, gives another result: {what}."
