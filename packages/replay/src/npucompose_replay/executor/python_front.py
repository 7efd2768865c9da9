"""The front of executors without a compiler: admits inputs, replays and hands results out, in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from npucompose_replay import gate
from npucompose_replay.executor.portable import OtherResults, StraightLine, TorchScript
from npucompose_replay.memory.arena import forks_so_far
from npucompose_replay.memory.inputs import Inputs
from npucompose_replay.memory.results import HeldOutputs, ReplayOutput
from npucompose_replay.state import fills_empty_memory, have_tangents

_InferenceMode = torch._C._InferenceMode
Front = Callable[[Sequence[Any]], list[Any] | None]
"""A replay: the outputs, or None, with nothing done, when the inputs do not have the recording's signature, or when the
gate refuses one of them or the thread. Results of
earlier replays that are still held are left alone, or, for some fronts, overwritten (see `memory.results`)."""


class PythonFront:
    """Replays one at a time: admit inputs, leave what is held, run, give back what was written, make the outputs."""

    def __init__(
        self,
        inputs: Inputs,
        executor: TorchScript | StraightLine,
        outputs: Sequence[ReplayOutput],
        held: HeldOutputs,
        go_on: Callable[[int, Sequence[Any], Any, Sequence[Any]], list[Any]] | None,
        fills: bool | None,
        turns: AbstractContextManager[Any],
    ) -> None:
        """`turns` are shared with every recording in the same arena; `go_on` and `fills` are as in src/front.h."""
        self._inputs = inputs
        self._executor = executor
        self._lent = executor.lent if isinstance(executor, StraightLine) and executor.lends else None
        self._makers = [output.make for output in outputs]
        self._held = held
        self._go_on, self._fills = go_on, fills
        self._turns = turns
        self._forks = forks_so_far()

    def __call__(self, inputs: Sequence[Any], *, reuse: bool = False) -> list[Any] | None:
        """With `reuse`, results that were given out with `reuse` may be overwritten."""
        if gate.why_not_here() or have_tangents(inputs):
            return None
        if self._fills is not None and self._fills != fills_empty_memory():
            return None
        if torch._C._is_any_autocast_enabled():  # AOTAutograd's graphs have their casts written out
            with torch._C._DisableAutocast():
                return self._replay(inputs, reuse)
        return self._replay(inputs, reuse)

    def _replay(self, inputs: Sequence[Any], reuse: bool) -> list[Any] | None:
        with self._turns:
            try:
                # Inference mode spares kernels the way through autograd's dispatch keys: a sixth of a small one.
                with _InferenceMode(True):
                    if not self._inputs.admit(inputs):
                        return None
                    self._held.leave_held(inputs, reuse)
                    self._run_for(inputs, reuse)
                    self._inputs.give_back(inputs)
            except OtherResults as other:
                assert self._go_on is not None
                return self._go_on(other.step, other.returned, other.registers, inputs)
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
        if forks_so_far() == self._forks:
            self._executor.run()
            return
        # Threads that kernels shared their work with were the parent's: a child would wait for them for ever.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._executor.run()
        finally:
            torch.set_num_threads(threads)
