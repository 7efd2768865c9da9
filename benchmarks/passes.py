"""How long the passes take on graphs of up to 50,000 nodes: `python -m benchmarks.passes`.

The graph is a stack of blocks of matrix products, element-wise functions, casts, permutes, norms and channels-last
poolings, written with fake values and not run. Times are of the processor, the best of the runs: a pass has one
thread, and what else the machine does only ever adds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import yaml
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from npucompose import ops
from npucompose.passes.base import Pass
from npucompose.passes.pipeline import build
from npucompose.schema.adapt import RuleSet
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.experiment import Choice
from npucompose.table.structure import structure
from npucompose_extras.paddle import operators
from tools.layout import choices

CAN = Capabilities(target="null_device", mode="reduce-overhead")
NAMES = ("adapt", "replace", "cancel_moves")
aten = torch.ops.aten


def graph_of(nodes: int) -> fx.GraphModule:
    """A graph of about that many nodes."""
    graph, mode = fx.Graph(), FakeTensorMode()

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        with mode:
            made.meta["val"] = target(
                *fx.map_arg(args, lambda n: n.meta["val"]), **fx.map_arg(kwargs, lambda n: n.meta["val"])
            )
        return made

    x, w, gamma = (graph.placeholder(name) for name in ("x", "w", "gamma"))
    with mode:
        x.meta["val"], w.meta["val"], gamma.meta["val"] = torch.empty(2, 8, 8, 8), torch.empty(8, 8), torch.empty(8)

    def normed(y: fx.Node) -> fx.Node:
        """A root-mean-square norm as a model writes it, for `replace`."""
        mean = call(aten.mean.dim, call(aten.pow.Tensor_Scalar, y, 2), [-1], True)
        root = call(aten.rsqrt.default, call(aten.add.Tensor, mean, 1e-6))
        return call(aten.mul.Tensor, call(aten.mul.Tensor, y, root), gamma)

    y = x
    block = 0
    while len(graph.nodes) < nodes:
        for _ in range(10):
            flat = call(aten.view.default, y, [128, 8])
            y = call(aten.view.default, call(aten.mm.default, flat, w), [2, 8, 8, 8])
            for op in (aten.relu.default, aten.neg.default, aten.abs.default, aten.sigmoid.default):
                y = call(op, y)
        if block % 2:
            y = call(aten._to_copy.default, call(aten._to_copy.default, y, dtype=torch.float64), dtype=torch.float32)
            y = call(torch.ops.paddle.pool2d.default, y, [1, 1], [1, 1], [0, 0], False, True, "NHWC")
            y = call(aten.relu.default, y)
            y = call(torch.ops.paddle.pool2d.default, y, [1, 1], [1, 1], [0, 0], False, True, "NHWC")
        else:
            y = call(aten.permute.default, y, [0, 3, 1, 2])
            y = call(aten.permute.default, call(aten.relu.default, y), [0, 2, 3, 1])
            y = normed(y)
        block += 1
    graph.output((y,))
    return fx.GraphModule(torch.nn.Module(), graph)


def seconds(nodes: int, names: tuple[str, ...], runs: int) -> tuple[dict[str, float], int]:
    """{pass: best time} and the size of the graph."""
    rules = structure(RuleSet, yaml.safe_load(choices("adapt")["adapt=paddle"].read_text()), "adapt")
    passes: tuple[tuple[str, Pass], ...] = build({name: Choice(name=name) for name in names}, {"adapt": rules})
    found: dict[str, list[float]] = {name: [] for name in names}
    size = 0
    for _ in range(runs):
        module = graph_of(nodes)
        size = len(module.graph.nodes)
        for name, a_pass in passes:
            begun = time.process_time()
            a_pass.rewrite(module.graph, CAN)
            found[name].append(time.process_time() - begun)
    return {name: min(times) for name, times in found.items()}, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2500, 5000, 10_000, 20_000, 50_000])
    parser.add_argument("--passes", nargs="*", default=list(NAMES))
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    ops.define()
    operators.define()
    seconds(500, tuple(given.passes), 1)  # imports and caches of torch's own
    print(f"torch {torch.__version__}; milliseconds of processor time, best of {given.runs}")
    for nodes in given.nodes:
        found, size = seconds(nodes, tuple(given.passes), given.runs)
        cells = "  ".join(f"{name} {took * 1e3:8.1f}" for name, took in found.items())
        total = sum(found.values())
        print(f"{size:6d} nodes  {cells}  together {total * 1e3:8.1f}  per node {total / size * 1e6:6.2f} µs")


if __name__ == "__main__":
    main()
