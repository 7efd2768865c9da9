"""Executor: the plan in C++. What pays is held set up or calls BLAS; every other operator goes through the dispatcher.

The plan is the same as for the portable executors and so are the bits. `build.load()` brings the extension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from npucompose.replay.memory.arena import Memory
from npucompose.replay.memory.inputs import Inputs
from npucompose.replay.memory.results import Output
from npucompose.replay.operands import Layout, is_plain
from npucompose.replay.plan import Plan, Register, Slot, Step, Threads, Workers, dying_registers, leaves, lent_inputs

Call = Callable[[tuple[Any, ...]], Any]
"""The result for a tuple of arguments; None, with nothing done, when Python has to look."""


class Refused(Exception):
    """A step that cannot be handed to C++; the text says which and why."""


class NativeFront(Protocol):
    """What replays, in C++; `src/front.h` says more."""

    def replayer(self, reuse: bool) -> Callable[[Sequence[Any]], list[Any] | None]: ...

    def caller(
        self,
        held: list[Any],
        taken: Sequence[tuple[int, int]],
        result: type | int,
        entries: Sequence[tuple[dict[str, Any], str, torch.Tensor]],
        reuse: bool,
    ) -> Call: ...


class Native:
    """`front(…)` makes what replays; `move(i, tensor)` lets all of input i lie where `tensor` does."""

    name = "native"

    def __init__(
        self,
        extension: ModuleType,
        plan: Plan,
        memory: Memory,
        *,
        direct: bool = True,
        keeps: bool = False,
        threads: Threads | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Without `direct` every step goes through the dispatcher: what `direct` is compared with. With `keeps` the
        results that steps hand to each other stay after a replay, so that any step can be run by itself. With `threads`
        the steps run side by side on `workers`; `memory` must have been laid out for them.
        """
        self._extension = extension
        self._direct = direct
        self.recording = extension.Recording()
        self._has_registers = bool(plan.register_roots)
        self._operators: dict[OpOverload, Any] = {}
        """The extension's handle of each operator that a step calls."""
        self._tensors = {id(slot): tensor for slot, tensor in zip(memory.slots, memory.tensors, strict=True)}
        for root in plan.roots:
            if root.kind == "input":
                assert root.tensor is not None
                self.recording.set_input(root.index, Layout.of(root.tensor).over(memory.storages[id(root)]))
        for number, buffer in enumerate(memory.outputs):
            self.recording.set_output(number, [_bytes(memory.storages[id(root)]) for root in buffer.members])
        dying, kept = (dying_registers(plan.steps), []) if threads is None else threads.dying(plan)
        lent = lent_inputs(plan.steps)
        self.ways = [self._add(step, () if keeps else dying[i], lent[i]) for i, step in enumerate(plan.steps)]
        """How each step runs: "held", "blas" or "boxed"."""
        if threads is not None:
            asked = workers or Workers()
            self.recording.set_streams(
                threads.turns(), threads.waits, kept, round(asked.spin_us * 1e3), list(asked.cores)
            )

    def facts(self) -> Mapping[str, int]:
        """How many steps run in which way: `{"held": 150, "blas": 50}`."""
        return dict(Counter(self.ways))

    # -- what Inputs needs

    def copies_rather(self, index: int, nbytes: int) -> bool:
        """Never: however many slots lie over an input, moving it changes one address."""
        return False

    def move(self, index: int, tensor: torch.Tensor) -> None:
        self.recording.move(index, tensor.data_ptr())

    # -- the front

    def front(
        self,
        given: Sequence[Any],
        inputs: Inputs,
        memory: Memory,
        outputs: Sequence[Output],
        turns: AbstractContextManager[Any],
    ) -> NativeFront:
        """The output buffers lie in memory of the front from then on."""
        front = self._extension.Front(
            self.recording,
            [inputs.described(i, value) for i, value in enumerate(given)],
            [buffer.nbytes for buffer in memory.outputs],
            [_output(output) for output in outputs],
            inputs.admit_from,
            inputs.give_back,
            turns,
        )
        memory.given_up()
        return front

    # -- one step

    def _add(self, step: Step, dying: Sequence[int], lent: frozenset[int]) -> str:
        tensors = self._tensors
        filled: dict[int, Any] = {}
        if self._has_registers and any(isinstance(operand, Register) for operand in step.operands):
            filled = {i: _filled(value, tensors) for i, value in enumerate(step.args) if _has_register(value)}
        args = [tensors[id(part)] if isinstance(part, Slot) else self._value(part) for part in step.args]
        for i in filled:
            args[i] = None
        results = [
            result.number if isinstance(result, Register) else [r.number for r in result] if result else None
            for result in step.results
        ]
        while results and results[-1] is None:
            results.pop()
        try:
            return self.recording.add(self._operator(step.op), args, filled, results, dying, sorted(lent), self._direct)
        except (RuntimeError, TypeError, ValueError) as error:
            raise Refused(f"{step.op}: {str(error).splitlines()[0]}") from error

    def _operator(self, op: OpOverload) -> Any:
        found = self._operators.get(op)
        if found is None:
            found = self._operators[op] = self._extension.Operator(op._schema.name, op._schema.overload_name)
        return found

    def _value(self, value: Any) -> Any:
        if isinstance(value, Slot):
            return self._tensors[id(value)]
        if isinstance(value, (list, tuple)):
            return value if is_plain(value) else [self._value(part) for part in value]
        return value


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.inference_mode():
        return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]


def _has_register(value: Any) -> bool:
    return any(isinstance(leaf, Register) for leaf in leaves((value,)))


def _filled(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """A register's number, or a list of numbers, tensors and None."""
    if isinstance(value, (list, tuple)):
        return [_filled(part, tensors) for part in value]
    return value.number if isinstance(value, Register) else tensors[id(value)] if isinstance(value, Slot) else value


def _output(output: Output) -> tuple[Any, ...]:
    if output.static is not None:
        static = output.static
        return ("clone" if output.clone else "buffer", static.buffer, static.tensor, static.inference)
    if output.same_as_input is not None:
        return ("input", output.same_as_input)
    if output.same_as_output is not None:
        return ("output", output.same_as_output)
    return ("made", output.make)
