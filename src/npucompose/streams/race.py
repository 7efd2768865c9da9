"""Looking for races by running: random orders that a planned graph allows, on the CPU, must give equal bits.

Independent of the validator: the order is read off scopes, records and waits alone, the proof is in the values.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.graphs.effects import tensors_in
from npucompose.streams.execute import Execution, Inputs, on_the_side
from npucompose.streams.issue import issued_before


def find_races(graph: fx.Graph, orders: int, seed: int = 0) -> None:
    """Raise PlanError("race_found", …) when one of `orders` random legal orders gives other bits than the graph's own.

    "Legal" is what streams on a device may do: each keeps its own order and waits where it is told to. A missing event
    shows when it matters and an order is drawn in which it does; the validator needs no such luck, but trusts what it
    is told of memory.
    """
    dependence = Dependence.from_graph(graph)
    kernels = dependence.kernels
    before = issued_before(graph, kernels)
    with on_the_side():
        inputs = Inputs(graph, dependence)
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


def _run(graph: fx.Graph, inputs: Inputs, order: Sequence[fx.Node]) -> dict[str, Any]:
    """{kernel: checksum of its result when it was made}, and those of the outputs and of the inputs afterwards."""
    values = inputs.start()
    execution = Execution(graph, order, values)
    made: dict[str, Any] = {}
    try:
        for kernel in order:
            execution.prepare(kernel)
            made[kernel.name] = _checksum(execution.run(kernel))
        made[""] = [_checksum(value) for value in (*execution.outputs(), *inputs.written(values))]
    except KeyError as error:
        made[""] = f"'{error.args[0]}' is read before it is made"
    return made


def _checksum(value: Any) -> Any:
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
