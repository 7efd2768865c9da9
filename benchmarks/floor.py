"""The raw kernel floor of a native recording: what its kernels take when nothing stands between them.

Matrix products, and whatever reads 64 KiB and more outside of the pool (weights, packed or not, tables, caches), run
one after the other, so that they find this memory as cold as in a replay; every other kernel runs hot, by itself.
With `mode=max-autotune` these are Inductor's fused kernels, else torch's own. An estimate, not a bound of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from statistics import median
from typing import Any

import torch
from attrs import frozen

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.native import Native
from npucompose_replay.memory.arena import Memory
from npucompose_replay.operands import flat
from npucompose_replay.packed_weights import is_opaque
from npucompose_replay.plan import PlanSlot, Step

PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})
MUCH = 64 << 10
"""Bytes: more than the nearest cache of a core has room for beside what else a kernel touches."""
REPEATED = 16
"""Runs of a short kernel between two looks at the clock."""
SHORT_NS = 20_000.0


@frozen(kw_only=True)
class StepTime:
    """One step by itself, hot, in nanoseconds."""

    operator: str
    way: str
    """How the recording runs it: held, blas, boxed."""
    direct_ns: float
    boxed_ns: float
    """The same kernel through torch's dispatcher."""


class Floor:
    """`Floor(captured, inputs)` makes a copy of a native recording; `microseconds()` measures once.

    # Note [The floor needs memory without reuse]
    In a planned pool, running only some of the steps feeds results back into operands: values decay, become denormal,
    and a product that takes 0.4 ms takes 7. Here every value has its own memory and is what a whole replay left there.
    """

    def __init__(self, captured: CapturedGraph, inputs: Sequence[Any]) -> None:
        self._plan = captured.plan
        self._inputs = [
            x.clone(memory_format=torch.preserve_format) if isinstance(x, torch.Tensor) else x for x in inputs
        ]
        self._memories: list[Memory] = []
        """A recording knows addresses; what lies there is kept here."""
        self._native = self._executor(direct=True)
        self._all = list(range(len(self._plan.steps)))
        self._in_a_row = [i for i in self._all if _is_cold(self._plan.steps[i])]
        self._others = [i for i in self._all if i not in set(self._in_a_row)]
        self._native.recording.times(self._all, 2)

    def microseconds(self, rounds: int = 5, row_ns: float = 20e6) -> float:
        """Medians: what is cold in a row, for `row_ns`, and each other kernel by itself, `rounds` times."""
        return (self._row(row_ns) + sum(self._alone(self._native, i, rounds) for i in self._others)) / 1e3

    def _row(self, row_ns: float) -> float:
        if not self._in_a_row:
            return 0.0
        (once,) = self._native.recording.times(self._in_a_row, 1)
        return median(self._native.recording.times(self._in_a_row, max(5, round(row_ns / once))))

    def steps(self, rounds: int = 25) -> list[StepTime]:
        """Every step by itself, beside the same step through the dispatcher."""
        boxed = self._executor(direct=False)
        boxed.recording.times(self._all, 2)
        return [
            StepTime(
                operator=str(self._plan.steps[i].op).removeprefix("aten."),
                way=self._native.ways[i],
                direct_ns=self._alone(self._native, i, rounds),
                boxed_ns=self._alone(boxed, i, rounds),
            )
            for i in self._all
        ]

    def _executor(self, *, direct: bool) -> Native:
        memory = Memory.from_plan(self._plan, reuse=False)
        self._memories.append(memory)
        made = Native(build.load(), self._plan, memory, direct=direct, keep_results=True)
        for index, value in enumerate(self._inputs):
            if isinstance(value, torch.Tensor) and value.numel():
                made.move(index, value)
        return made

    @staticmethod
    def _alone(native: Native, step: int, rounds: int) -> float:
        (once,) = native.recording.times([step], 1)
        times = REPEATED if once < SHORT_NS else 1
        return median(native.recording.times([step] * times, rounds)) / times


def _is_cold(step: Step) -> bool:
    return step.op._schema.name in PRODUCTS or any(_outside(leaf) >= MUCH for leaf in flat(step.args))


def _outside(leaf: Any) -> int:
    """Bytes of an operand that lies outside of the pool; 0 of every other."""
    if is_opaque(leaf):
        return torch.ops.mkldnn._nbytes(leaf)
    if isinstance(leaf, PlanSlot) and leaf.root.kind in ("input", "attribute", "constant"):
        return prod(leaf.layout.shape) * leaf.layout.dtype.itemsize
    return 0


def by_operator(steps: Sequence[StepTime]) -> Mapping[str, tuple[int, str, float, float]]:
    """{operator: (how many, ways, total direct µs, total boxed µs)}, the costliest first."""
    found: dict[str, list[StepTime]] = {}
    for step in steps:
        found.setdefault(step.operator, []).append(step)
    summed = {
        name: (
            len(some),
            ", ".join(dict.fromkeys(step.way for step in some)),
            sum(step.direct_ns for step in some) / 1e3,
            sum(step.boxed_ns for step in some) / 1e3,
        )
        for name, some in found.items()
    }
    return dict(sorted(summed.items(), key=lambda item: -item[1][2]))
