"""Graphs to test with: traced functions, random programs, and three ways to run a graph."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose.graphs import Dependence
from npucompose.graphs.effects import control, stream_labels
from npucompose.schema.capabilities import Capabilities

CAN = Capabilities(target="null_device", mode="reduce-overhead")
aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> fx.GraphModule:
    """The graph of `function` at the level of aten, every node with its fake value."""
    return make_fx(function, tracing_mode=mode)(*inputs)


def names(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def node(graph: fx.Graph, name: str) -> fx.Node:
    return next(found for found in graph.nodes if found.name == name)


def mm_abs_sub(x: torch.Tensor) -> torch.Tensor:
    product = torch.mm(x, x)
    return torch.add(product, torch.sub(torch.abs(x), x))


class Program:
    """Builds a graph operator by operator, with fake values, as AOTAutograd's graphs have them."""

    def __init__(self, inputs: int) -> None:
        self.mode = FakeTensorMode()
        self.graph = fx.Graph()
        self.values: list[fx.Node] = []
        for index in range(inputs):
            made = self.graph.placeholder(f"x{index}")
            with self.mode:
                made.meta["val"] = torch.empty(4, 4)
            self.values.append(made)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = self.graph.call_function(target, args, kwargs)
        with self.mode:
            made.meta["val"] = target(*fx.map_arg(args, value_of), **fx.map_arg(kwargs, value_of))
        return made

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        self.graph = module.graph
        self.graph.lint()
        return module


def _write(program: Program, target: fx.Node, value: fx.Node) -> list[fx.Node]:
    """copy_ refuses a transposed view of its own target: such a value is copied first."""
    program.call(aten.copy_.default, target, program.call(aten.clone.default, value))
    return []


def value_of(made: fx.Node) -> Any:
    return made.meta["val"]


PURE = ("add", "mul", "sub", "relu", "mm", "abs", "t", "view", "clone", "split", "to", "zeros", "zeros_add")


@st.composite
def programs(draw: st.DrawFn, in_place: bool = True, random_numbers: bool = True, size: int = 12) -> fx.GraphModule:
    """A random graph on 4 x 4 matrices: views, splits, copies, equal and dead calls, writes to inputs and values."""
    program = Program(inputs=draw(st.integers(1, 3)))
    inputs = list(program.values)
    kinds = [*PURE, *(("write", "write_value", "around") if in_place else ()), *(("rand",) if random_numbers else ())]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=size)):
        a = draw(st.sampled_from(program.values))
        b = draw(st.sampled_from(program.values))
        program.values += _step(program, kind, a, b, draw(st.sampled_from(inputs)))
    for target in draw(st.lists(st.sampled_from(inputs), unique=True, max_size=2)) if in_place else ():
        _write(program, target, draw(st.sampled_from(program.values)))
    outputs = draw(st.lists(st.sampled_from(program.values), min_size=1, max_size=3))
    return program.finish(outputs)


def seeded_program(seed: int, size: int = 12) -> fx.GraphModule:
    """As `programs`, from a seed: for tests that need a fixed number of graphs."""
    chance = random.Random(seed)
    program = Program(inputs=2)
    inputs = list(program.values)
    for _ in range(size):
        kind = chance.choice([*PURE, "write", "write_value", "around", "rand"])
        a, b = chance.choice(program.values), chance.choice(program.values)
        program.values += _step(program, kind, a, b, chance.choice(inputs))
    return program.finish(program.values[-2:])


def _step(program: Program, kind: str, a: fx.Node, b: fx.Node, target: fx.Node) -> list[fx.Node]:
    call = program.call
    if kind in ("add", "mul", "sub"):
        return [call(getattr(aten, kind).Tensor, a, b)]
    if kind in ("relu", "abs", "clone", "t"):
        return [call(getattr(aten, kind).default, a)]
    if kind == "mm":
        return [call(aten.mm.default, a, b)]
    if kind == "view":
        return [call(aten.expand.default, a, [4, 4])]
    if kind == "split":
        parts = call(aten.split.Tensor, a, 2)
        return [call(aten.cat.default, [call(operator.getitem, parts, 1), call(operator.getitem, parts, 0)])]
    if kind == "to":
        return [call(aten._to_copy.default, a, dtype=torch.float32)]
    if kind == "zeros":
        return [call(aten.zeros.default, [4, 4])]
    if kind == "zeros_add":
        return [call(aten.add.Tensor, a, 0)]
    if kind == "rand":
        return [call(aten.rand.default, [4, 4])]
    if kind == "around":  # the same read before and after a write
        first = call(aten.abs.default, target)
        _write(program, target, b)
        return [call(aten.sub.Tensor, first, call(aten.abs.default, target))]
    if kind == "write":
        return _write(program, target, b)
    return [call(aten.add_.Tensor, a, 1)] if a.op != "placeholder" else []


def some_inputs(module: fx.GraphModule, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    count = sum(made.op == "placeholder" for made in module.graph.nodes)
    inputs = [torch.randn(4, 4, generator=generator) for _ in range(count)]
    inputs[0][0, 0], inputs[0][1, 1], inputs[0][2, 2] = -0.0, float("nan"), float("inf")
    return inputs


def bits(values: Any) -> list[Any]:
    return [v.contiguous().view(torch.uint8).tolist() if isinstance(v, torch.Tensor) else v for v in values]


def run(module: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """(outputs, inputs afterwards) as bits; random numbers start from one seed."""
    inputs = some_inputs(module)
    torch.manual_seed(1)
    return bits(fx.Interpreter(module, garbage_collect_values=False).run(*inputs)), bits(inputs)


def happens_before(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Who certainly is done when a kernel starts, read off scopes, records and waits alone: stream order and events."""
    labels = stream_labels(graph)
    kernels = set(Dependence.from_graph(graph).kernels)
    last: dict[str, fx.Node] = {}
    recorded: dict[fx.Node, fx.Node] = {}
    waits: dict[str, list[fx.Node]] = {}
    before: dict[fx.Node, set[fx.Node]] = {}
    for made in graph.nodes:
        stream = labels.get(made, "default")
        kind = control(made)
        if kind == "record":
            recorded[made] = last[stream]
        elif kind == "wait":
            waits.setdefault(stream, []).extend(recorded[event] for event in made.args[0])
        elif made in kernels:
            direct = [*waits.pop(stream, []), *([last[stream]] if stream in last else [])]
            before[made] = set(direct).union(*(before[other] for other in direct))
            last[stream] = made
    return before
