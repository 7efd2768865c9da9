"""Products that torch computes by MKL and that oneDNN may compute faster: who does is known of each shape or measured.

As with frozen weights (Note [Who multiplies by a frozen float32 weight] in linears.py): on a Zen 5 oneDNN takes half of
MKL's time. torch has no operators for these, so the native replayer brings them (`air::onednn_…`). Results differ from
torch's in the last bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npucompose.results.graphs import Winner, of_samples
from npucompose.schema.recording import LinearLibrary
from npucompose_replay.executor import build
from npucompose_replay.products.libraries import ATEN, MKL, ONEDNN
from npucompose_replay.products.timed_calls import in_turns
from npucompose_replay.products.winners import Winners

if TYPE_CHECKING:
    from torch import fx

LEAST_WORK = 1 << 20
"""Multiplications and additions: below that oneDNN's setting up, some 10 µs, takes as long as the product."""
MOST_OPERANDS = 16 << 20
"""Bytes of the operands, made in several copies, that a contest goes through: a product of a model does not find all of
its operands in the cache either."""
Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""(sizes, strides)."""


@frozen(kw_only=True, eq=False)
class Candidate(ABC):
    """A call of a graph that both libraries can compute: its node, and the layouts of its operands."""

    node: fx.Node
    layouts: Sequence[Layout]

    @property
    @abstractmethod
    def form(self) -> str:
        """The key of its winner."""

    @property
    @abstractmethod
    def work(self) -> int:
        """Multiplications and additions."""

    @abstractmethod
    def by_aten(self, *operands: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def by_onednn(self, *operands: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def move(self) -> None:
        """Let the graph call oneDNN."""


def choose(
    graph_module: fx.GraphModule, found: Iterable[Candidate], library: LinearLibrary, winners: Winners | None
) -> int:
    """Give calls that were found in a graph to the faster library, shape by shape; how many went to oneDNN.

    With `library=auto` the `winners` know, or what is measured is kept there. Without the native replayer, or with a
    torch that has no oneDNN, all stay.
    """
    worth = [] if library in (MKL, ATEN) else [one for one in found if one.work >= LEAST_WORK]
    if not worth or not _is_here():
        return 0
    winners, moved = winners or Winners(), 0
    for one in worth:
        measured = partial(_measured, one, winners.limit_ms)
        if library == ONEDNN or winners.chosen(one.form, (ATEN, ONEDNN), measured).winner == ONEDNN:
            one.move()
            moved += 1
    if moved:
        graph_module.recompile()
    return moved


def _is_here() -> bool:
    try:
        return bool(build.load().has_onednn)
    except build.Unavailable:
        return False


def layout_of(operand: Any) -> Layout | None:
    """Of a float32 tensor on the CPU whose sizes are numbers."""
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    numbers = (*value.shape, *value.stride())
    if not all(isinstance(number, int) for number in numbers):  # a symbol
        return None
    return tuple(value.shape), value.stride()


def _measured(one: Candidate, limit_ms: float) -> Winner:
    with unset_fake_temporarily(), torch.no_grad():
        operands = operands_of(one)
        calls = {
            ATEN: [partial(one.by_aten, *some) for some in operands],
            ONEDNN: [partial(one.by_onednn, *some) for some in operands],
        }
        return of_samples(one.form, *in_turns(calls, limit_ms))


def operands_of(one: Candidate) -> Sequence[tuple[torch.Tensor, ...]]:
    """Random ones that lie as the graph's do, up to eight times and MOST_OPERANDS bytes."""

    def filled(sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return torch.rand(span).as_strided(sizes, strides)  # elements may share memory: one matrix for all of a batch

    def made() -> tuple[torch.Tensor, ...]:
        return tuple(filled(*layout) for layout in one.layouts)

    first = made()
    nbytes = sum(operand.untyped_storage().nbytes() for operand in first)
    return [first, *(made() for _ in range(min(7, MOST_OPERANDS // max(nbytes, 1))))]
