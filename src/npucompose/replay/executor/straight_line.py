"""Executor: the plan as one straight-line Python function. Runs whatever Python can call; slower than `torchscript`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from npucompose.replay.executor.lent_operands import Lent, lending, lent_inputs
from npucompose.replay.plan import Register, Slot, Step, leaves, mapped
from npucompose.replay.traits import traits_of

aten = torch.ops.aten

_BINDINGS: dict[OpOverload, Callable[..., Any]] = {
    aten.add.out: torch.add,
    aten.sub.out: torch.sub,
    aten.mul.out: torch.mul,
    aten.div.out: torch.div,
    aten.mm.out: torch.mm,
    aten.bmm.out: torch.bmm,
    aten.clamp_min.out: torch.clamp_min,
    aten.rsqrt.out: torch.rsqrt,
    aten.exp.out: torch.exp,
    aten.sigmoid.out: torch.sigmoid,
    aten.tanh.out: torch.tanh,
}
"""torch's own argument parser is quicker than OpOverload.__call__; only where the arguments are the same by name."""


class StraightLine:
    """`run()` calls every kernel in order; `lay(i, tensor)` puts another tensor into slot i."""

    name = "python"

    def __init__(self, steps: Sequence[Step], slots: Sequence[Slot], tensors: Sequence[torch.Tensor]) -> None:
        self.lent = Lent()
        self.lends = not all(traits_of(step.op).may_be_tried for step in steps)
        self._numbers = {id(slot): i for i, slot in enumerate(slots)}
        self._names: dict[str, Any] = {f"s{i}": tensor for i, tensor in enumerate(tensors)}
        dying = dying_registers(steps)
        lent = lent_inputs(steps)
        lines = [line for i, step in enumerate(steps) for line in self._lines(i, step, dying[i], lent[i])]
        self.source = "\n    ".join(("def run():", *(lines or ["pass"])))
        exec(compile(self.source, "<npucompose replay>", "exec"), self._names)
        self.run: Callable[[], None] = self._names["run"]

    def lay(self, index: int, tensor: torch.Tensor) -> None:
        self._names[f"s{index}"] = tensor

    def _lines(self, index: int, step: Step, dying: Sequence[int], lent: frozenset[int]) -> list[str]:
        keeps_nothing = traits_of(step.op).may_be_tried
        function = _BINDINGS.get(step.op, step.op) if keeps_nothing else lending(step.op, self.lent, lent)
        self._names[f"f{index}"] = function
        parts: list[str] = []
        for position, (declared, value) in enumerate(zip(step.op._schema.arguments, step.args, strict=True)):
            text = self._text(value, f"c{index}_{position}")
            parts.append(f"{declared.name}={text}" if declared.kwarg_only else text)
        call = f"f{index}({', '.join(parts)})"
        targets = [_target(result) for result in step.results]
        if any(target != "_" for target in targets):
            call = f"{', '.join(targets)} = {call}" if len(targets) > 1 else f"{targets[0]} = {call}"
        return [call, *(f"r{number} = None" for number in dying)]

    def _text(self, value: Any, name: str) -> str:
        if isinstance(value, Slot):
            return f"s{self._numbers[id(value)]}"
        if isinstance(value, Register):
            return f"r{value.number}"
        if isinstance(value, (list, tuple)) and leaves(value):
            return f"[{', '.join(self._text(part, f'{name}_{i}') for i, part in enumerate(value))}]"
        self._names[name] = mapped(lambda leaf: leaf, value)
        return name


def _target(result: Register | tuple[Register, ...] | None) -> str:
    if result is None:
        return "_"
    if isinstance(result, tuple):
        return f"[{', '.join(f'r{r.number}' for r in result)}]" if result else "_"
    return f"r{result.number}"


def dying_registers(steps: Sequence[Step]) -> list[list[int]]:
    """For each step, the registers that nobody reads after it: their memory goes back at once, as in eager."""
    last = {
        operand.number: position
        for position, step in enumerate(steps)
        for operand in (*step.operands, *step.made)
        if isinstance(operand, Register)
    }
    dying: list[list[int]] = [[] for _ in steps]
    for number, position in last.items():
        dying[position].append(number)
    return dying
