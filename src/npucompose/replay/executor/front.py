"""The way through a recording: its outputs, and the front in Python that portable executors have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from attrs import frozen

from npucompose.replay import gate
from npucompose.replay.executor.straight_line import StraightLine
from npucompose.replay.executor.torchscript import TorchScript
from npucompose.replay.memory import forks
from npucompose.replay.memory.buffers import Memory, laid_over
from npucompose.replay.memory.held_memory import HeldOutputs, Static
from npucompose.replay.memory.inputs import Inputs
from npucompose.replay.plan import Buffer, Literally, Plan, SameAsInput, SameAsOutput, ViewOfInput

_InferenceMode = torch._C._InferenceMode
Front = Callable[[Sequence[Any]], list[Any] | None]
"""A replay: the outputs, or None, with nothing done, when the inputs do not have the recording's signature, or when the
gate refuses one of them or the thread. Results of
earlier replays that are still held are left alone, or, for some fronts, overwritten (see `held_memory`)."""
Maker = Callable[[Sequence[Any], list[Any]], Any]


@frozen(kw_only=True, eq=False)
class Output:
    """One output of a replay: `make(inputs, the outputs before it)`. The other fields say the same as data."""

    make: Maker
    static: Static | None = None
    """In an output buffer: that memory, or with `clone` a copy of it, goes out in a tensor of the caller's own."""
    clone: bool = False
    same_as_input: int | None = None
    same_as_output: int | None = None


def outputs_of(plan: Plan, memory: Memory, clone: bool) -> list[Output]:
    made: list[Output] = []
    for output in plan.outputs:
        if isinstance(output, Buffer):
            root = output.slot.root
            static = Static(memory.buffer_of(root), output.slot.layout).lay(memory.storages[id(root)])
            made.append(_from_buffer(static, clone))
        elif isinstance(output, SameAsInput):
            i = output.index
            made.append(Output(make=lambda inputs, _, i=i: inputs[i], same_as_input=i))
        elif isinstance(output, SameAsOutput):
            i = output.index
            made.append(Output(make=lambda _, outputs, i=i: outputs[i], same_as_output=i))
        elif isinstance(output, ViewOfInput):
            made.append(Output(make=_view_of_input(output)))
        else:
            made.append(Output(make=_literally(output)))
    return made


def _from_buffer(static: Static, clone: bool) -> Output:
    if clone:
        return Output(make=lambda _inputs, _outputs: static.tensor.clone(), static=static, clone=True)
    # A tensor object of the caller's own each time: what they do to its shape or flags stays theirs.
    return Output(make=lambda _inputs, _outputs: static.given_out(), static=static)


def _view_of_input(output: ViewOfInput) -> Maker:
    return lambda inputs, _outputs: laid_over(inputs[output.index], output.layout)


def _literally(output: Literally) -> Maker:
    return lambda _inputs, _outputs: output.value


class PythonFront:
    """Replays one at a time: admit inputs, leave what is held, run, give back what was written, make the outputs."""

    def __init__(
        self,
        inputs: Inputs,
        executor: TorchScript | StraightLine,
        outputs: Sequence[Output],
        held: HeldOutputs,
        turns: AbstractContextManager[Any],
    ) -> None:
        """`turns` are shared with every recording that lies in the same arena."""
        self._inputs = inputs
        self._executor = executor
        self._lent = executor.lent if isinstance(executor, StraightLine) and executor.lends else None
        self._makers = [output.make for output in outputs]
        self._held = held
        self._turns = turns
        self._forks = forks.count()

    def __call__(self, inputs: Sequence[Any], *, reuse: bool = False) -> list[Any] | None:
        """With `reuse`, results that were given out with `reuse` may be overwritten."""
        if gate.why_not_here():
            return None
        if torch._C._is_any_autocast_enabled():  # AOTAutograd's graphs have their casts written out
            with torch._C._DisableAutocast():
                return self._replay(inputs, reuse)
        return self._replay(inputs, reuse)

    def _replay(self, inputs: Sequence[Any], reuse: bool) -> list[Any] | None:
        with self._turns:
            # Inference mode spares every kernel the way through autograd's dispatch keys: a sixth of a small kernel.
            with _InferenceMode(True):
                if not self._inputs.admit(inputs):
                    return None
                self._held.leave_held(inputs, reuse)
                self._run_for(inputs, reuse)
                self._inputs.give_back(inputs)
            outputs: list[Any] = []
            for make in self._makers:
                outputs.append(make(inputs, outputs))
        return outputs

    def _run_for(self, inputs: Sequence[Any], reuse: bool) -> None:
        if self._lent is None:
            self._run_here()
            return
        try:
            self._lent.owners.update(self._inputs.lent(inputs))
            if not reuse:
                self._lent.results.update(self._held.storages())
            self._run_here()
        finally:
            self._lent.clear()

    def _run_here(self) -> None:
        if forks.count() == self._forks:
            self._executor.run()
            return
        # Threads that kernels shared their work with were the parent's: a child would wait for them for ever.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._executor.run()
        finally:
            torch.set_num_threads(threads)
