"""Batched products of float32 matrices: to the faster of two libraries, by what is known of each shape or is measured.

As with frozen weights (Note [Who multiplies by a frozen float32 weight] in linears.py): on a Zen 5 oneDNN takes half of
MKL's time. torch has no operator for it, so the native replayer brings one, `air::onednn_bmm`. Results differ from
`aten::bmm` in the last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.replay.executor import build
from npucompose.results.winners import Winner, of_samples
from npucompose.targets.linears import MKL, ONEDNN
from npucompose.targets.timed_calls import in_turns
from npucompose.targets.winners import Winners

if TYPE_CHECKING:
    from torch import fx

ATEN = "aten"
LEAST_WORK = 1 << 20
"""Multiplications and additions: below that oneDNN's setting up, some 10 µs, takes as long as the product."""
MOST_OPERANDS = 16 << 20
"""Bytes of the operands, made in several copies, that a contest goes through: a product of a model does not find all of
its operands in the cache either."""


@frozen(kw_only=True, eq=False)
class Batched:
    """`bmm(x, y)` of a graph: the node, and the layouts of its operands as (sizes, strides)."""

    node: fx.Node
    x: tuple[tuple[int, ...], tuple[int, ...]]
    y: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def form(self) -> str:
        """`bmm_4x16x256x64`: matrices, rows, inner size, columns; with `_turned` where the second is transposed."""
        (matrices, rows, inner), columns = self.x[0], self.y[0][2]
        turned = "_turned" if self.y[1][1] == 1 and self.y[1][2] != 1 else ""
        return f"bmm_{matrices}x{rows}x{inner}x{columns}{turned}"

    @property
    def work(self) -> int:
        matrices, rows, inner = self.x[0]
        return 2 * matrices * rows * inner * self.y[0][2]


def choose_batched(
    graph_module: fx.GraphModule, library: Literal["auto", "mkl", "onednn"] = "auto", winners: Winners | None = None
) -> int:
    """Give the batched products of a graph to the faster library, shape by shape; how many went to oneDNN.

    With `library=auto` the `winners` know, or what is measured is kept there. Without the native replayer, or with a
    torch that has no oneDNN, all stay.
    """
    found = [] if library == MKL else [one for one in batched(graph_module) if one.work >= LEAST_WORK]
    if not found or not _has_onednn():
        return 0
    winners, moved = winners or Winners(), 0
    for one in found:
        measured = partial(_measured, one, winners.limit_ms)
        if library == ONEDNN or winners.chosen(one.form, (ATEN, ONEDNN), measured).winner == ONEDNN:
            one.node.target = torch.ops.air.onednn_bmm.default
            moved += 1
    if moved:
        graph_module.recompile()
    return moved


def _has_onednn() -> bool:
    try:
        return bool(build.load().has_onednn)
    except build.Unavailable:
        return False


def batched(graph_module: fx.GraphModule) -> list[Batched]:
    """The products of float32 matrices on the CPU whose sizes are numbers; of vectors (one row or column) none, which
    Inductor does not compute as products."""
    found: list[Batched] = []
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.ops.aten.bmm.default or node.kwargs:
            continue
        x, y = map(_layout, node.args)
        if x is not None and y is not None and x[0][1] > 1 and y[0][2] > 1:
            found.append(Batched(node=node, x=x, y=y))
    return found


def _layout(operand: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    numbers = (*value.shape, *value.stride())
    if not all(isinstance(number, int) for number in numbers):  # a symbol
        return None
    return tuple(value.shape), value.stride()


def _measured(one: Batched, limit_ms: float) -> Winner:
    with unset_fake_temporarily(), torch.no_grad():
        pairs = _operands(one)
        calls = {
            ATEN: [partial(torch.bmm, x, y) for x, y in pairs],
            ONEDNN: [partial(torch.ops.air.onednn_bmm, x, y) for x, y in pairs],
        }
        return of_samples(one.form, *in_turns(calls, limit_ms))


def _operands(one: Batched) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    def filled(sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return torch.rand(span).as_strided(sizes, strides)  # elements may share memory: one matrix for all of a batch

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        return filled(*one.x), filled(*one.y)

    first = made()
    nbytes = sum(operand.untyped_storage().nbytes() for operand in first)
    return [first, *(made() for _ in range(min(7, MOST_OPERANDS // max(nbytes, 1))))]
