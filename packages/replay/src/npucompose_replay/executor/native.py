"""Executor: the plan in C++. What pays is held set up or calls BLAS; every other operator goes through the dispatcher.

The plan is the same as for the portable executors and so are the bits. `build.load()` brings the extension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CellType, ModuleType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from npucompose.results.streams import Fallback
from npucompose_replay.memory.arena import Memory
from npucompose_replay.memory.inputs import Inputs
from npucompose_replay.memory.results import ReplayOutput
from npucompose_replay.operands import is_plain, layout_of
from npucompose_replay.plan import (
    Plan,
    PlanSlot,
    Register,
    Step,
    Threads,
    UnsupportedStep,
    Workers,
    dying_registers,
    leaves,
    lent_inputs,
)

Entry = tuple[dict[str, Any] | CellType, str, Any]
"""(the dict of a module or of an object that it keeps, or the cell of a variable that a function closes over; the name;
what must stand there)."""
GoOn = Callable[[int, list[Any], Sequence[Any] | None, Sequence[Any]], list[Any]]
"""(step, what its operator returned, registers or None beside other streams, inputs) -> the outputs of a call that left
its recording there."""
Call = Callable[[tuple[Any, ...]], Any]
"""The result for a tuple of arguments; None, with nothing done, when Python has to look."""


class NativeFront(Protocol):
    """What replays, in C++; `src/front.h` says more."""

    def replayer(self, reuse: bool) -> Callable[[Sequence[Any]], list[Any] | None]: ...

    def caller(
        self,
        held: list[Any],
        taken: Sequence[tuple[int, int]],
        result: type | int,
        entries: Sequence[Entry],
        reuse: bool,
        weights: Any,
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
        keep_results: bool = False,
        threads: Threads | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Without `direct` every step goes through the dispatcher: what `direct` is compared with. With `keep_results`
        those that steps hand to each other stay after a replay, so that any step can be run by itself. With `threads`
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
                self.recording.set_input(root.index, layout_of(root.contents).over(memory.storages[id(root)]))
        for number, buffer in enumerate(memory.outputs):
            self.recording.set_output(number, [_bytes(memory.storages[id(root)]) for root in buffer.members])
        dying, lasting = dying_registers(plan.steps, threads)
        lent = lent_inputs(plan.steps)
        self.ways = [self._add(step, () if keep_results else dying[i], lent[i]) for i, step in enumerate(plan.steps)]
        """How each step runs: "held", "blas", "packed", "generated" or "boxed"."""
        if threads is not None:
            asked = workers or Workers()
            self.recording.set_streams(
                threads.turns(), threads.waits, lasting, round(asked.spin_us * 1e3), list(asked.cores)
            )

    def facts(self) -> Mapping[str, int]:
        """How many steps run in which way: `{"held": 150, "blas": 50}`."""
        return dict(Counter(self.ways))

    def watch(self, one_stream_us: float | None) -> None:
        """From now on replays go on in one stream while the streams take longer; `src/watch.h` says when. None: nobody
        has timed one stream, and the plan stays unless it takes longer than it does itself at first."""
        self.recording.watch(round((one_stream_us or 0) * 1e3))

    def fallback(self) -> Fallback | None:
        """What came of it so far; None where nothing is watched."""
        watched = self.recording.watched()
        if watched is None:
            return None
        return Fallback(replays=watched.replays, alone=watched.alone, falls=watched.falls, trials=watched.trials)

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
        outputs: Sequence[ReplayOutput],
        go_on: GoOn,
        fills: bool | None,
        turns: AbstractContextManager[Any],
    ) -> NativeFront:
        """The output buffers lie in memory of the front from then on."""
        front = self._extension.Front(
            self.recording,
            [inputs.described(i, value) for i, value in enumerate(given)],
            [buffer.nbytes for buffer in memory.outputs],
            [output.described for output in outputs],
            inputs.admit_from,
            inputs.give_back,
            go_on,
            fills,
            turns,
        )
        memory.given_up()
        return front

    def tensor(self, slot: PlanSlot) -> torch.Tensor:
        return self._tensors[id(slot)]

    # -- one step

    def _add(self, step: Step, dying: Sequence[int], lent: frozenset[int]) -> str:
        tensors = self._tensors
        args = [tensors[id(part)] if isinstance(part, PlanSlot) else self._value(part) for part in step.args]
        filled: dict[int, Any] = {}
        # a register's number, or a list of numbers, tensors and None
        if self._has_registers and any(isinstance(operand, Register) for operand in step.operands):
            made = [any(isinstance(leaf, Register) for leaf in leaves((value,))) for value in step.args]
            filled = {i: args[i] for i, is_made in enumerate(made) if is_made}
            args = [None if is_made else value for value, is_made in zip(args, made, strict=True)]
        results = [self._result(result) for result in step.results]
        while results and results[-1] is None:
            results.pop()
        try:
            operator, returns = self._operator(step.op), list(step.returns)
            return self.recording.add(operator, args, filled, results, dying, sorted(lent), returns, self._direct)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedStep(f"{step.op}: {str(error).splitlines()[0]}") from error

    def _result(self, result: PlanSlot | Register | tuple[Register, ...] | None) -> Any:
        if isinstance(result, tuple):
            return [register.number for register in result] or None
        return None if result is None else self._value(result)

    def _operator(self, op: OpOverload) -> Any:
        found = self._operators.get(op)
        if found is None:
            found = self._operators[op] = self._extension.Operator(op._schema.name, op._schema.overload_name)
        return found

    def _value(self, value: Any) -> Any:
        if isinstance(value, PlanSlot):
            return self._tensors[id(value)]
        if isinstance(value, (list, tuple)):
            return value if is_plain(value) else [self._value(part) for part in value]
        return value.number if isinstance(value, Register) else value


def computes(extension: ModuleType, op: OpOverload, args: Sequence[Any], result: torch.Tensor) -> bool:
    """Whether the native replayer computes `op(*args)`, all of them in order, into memory like that of `result` without
    torch's operator, which makes its result anew."""
    operator = extension.Operator(op._schema.name, op._schema.overload_name)
    return bool(extension.computes_into(operator, list(args), result))


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.inference_mode():
        return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
