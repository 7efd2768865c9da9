"""A recording of one FX graph with its static buffers, good for one signature."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx

from npucompose.errors import SignatureError
from npucompose.targets.cpu import capture as recorder
from npucompose.targets.cpu.inputs import Inputs, sharing, signature
from npucompose.targets.cpu.memory import Memory, laid_over
from npucompose.targets.cpu.plan import Buffer, Layout, Literally, Plan, SameAsInput, SameAsOutput, ViewOfInput
from npucompose.targets.cpu.straight_line import StraightLine
from npucompose.targets.cpu.torchscript import NotExpressible, TorchScript

ExecutorName = Literal["torchscript", "python"]
_InferenceMode = torch._C._InferenceMode


class CapturedGraph:
    """`CapturedGraph.capture(gm, inputs, static=…)`, then `replay(*inputs)` as often as wanted.

    Outputs lie in static buffers that the next replay overwrites: clone what must last, or capture with `clone_output`.
    An output that is an input comes back as the caller's own tensor. Replays of one recording run one at a time.
    """

    def __init__(
        self, plan: Plan, inputs: Sequence[Any], *, static: frozenset[int], executor: ExecutorName, clone_output: bool
    ) -> None:
        self.plan = plan
        self.memory = Memory.of(plan)
        self.clone_output = clone_output
        self.seconds = 0.0
        self.last_outputs: list[Any] = []
        """What the last replay returned, for those who look for these tensors elsewhere (see targets/detached.py)."""
        self._lock = threading.Lock()
        self._executor, self._executor_reason = _executor(plan, self.memory, executor)
        written = frozenset(root.index for root in plan.roots if root.kind == "input" and root.written)
        shared = sharing(inputs)
        # Inputs that overlap while one is written: right only where they lie, so their addresses are in the signature.
        pinned = plan.pinned | (shared if written & shared else frozenset())
        self._fixed = static | pinned | _overlapping_themselves(inputs)
        self._inputs = Inputs(
            inputs,
            fixed=self._fixed,
            written=written,
            from_zero=plan.from_zero,
            slots=self.memory.slots,
            outputs=self.memory.output_spans(),
            lay=self._executor.lay,
        )
        self._makers = _makers(plan, self.memory, clone_output)

    @classmethod
    def capture(
        cls,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        static: frozenset[int] = frozenset(),
        executor: ExecutorName = "torchscript",
        clone_output: bool = False,
    ) -> CapturedGraph:
        """Run `graph_module` once on the real `inputs` and record it; inputs and RNG are as before afterwards.

        `static` inputs (parameters, buffers) are used in place and their address belongs to the signature. Raises
        CaptureError, naming the operator and the model's line, for what cannot be replayed.
        """
        begin = time.perf_counter()
        plan = recorder.record(graph_module, inputs)
        with torch.inference_mode(False), torch.no_grad():
            captured = cls(plan, inputs, static=static, executor=executor, clone_output=clone_output)
        captured.seconds = time.perf_counter() - begin
        return captured

    def replay(self, *inputs: Any) -> list[Any]:
        outputs = self.try_replay(inputs)
        if outputs is None:
            given = signature(inputs, self._fixed)
            raise SignatureError(_mismatch(self._inputs.signature, given))
        return outputs

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Like replay, but None, with nothing done, when the inputs do not have this recording's signature."""
        if torch._C._is_any_autocast_enabled():  # AOTAutograd's graphs have their casts written out
            with torch._C._DisableAutocast():
                return self._replay(inputs)
        return self._replay(inputs)

    def _replay(self, inputs: Sequence[Any]) -> list[Any] | None:
        with self._lock:
            # Inference mode spares every kernel the way through autograd's dispatch keys: a sixth of a small kernel.
            with _InferenceMode(True):
                if not self._inputs.admit(inputs):
                    return None
                self._executor.run()
                self._inputs.give_back(inputs)
            outputs: list[Any] = []
            for make in self._makers:
                outputs.append(make(inputs, outputs))
            self.last_outputs = outputs
        return outputs

    def facts(self) -> Mapping[str, Any]:
        steps, placement = self.plan.steps, self.memory.placement
        return {
            "executor": self._executor.name,
            "executor_reason": self._executor_reason,
            "kernels": len(steps),
            "fresh": sum(1 for step in steps if any(result is not None for result in step.results)),
            "views_resolved": self.plan.views_resolved,
            "constants": self.plan.constants,
            "pool_bytes": placement.pool_bytes,
            "unplanned_bytes": placement.unplanned_bytes,
            "live_bytes": placement.live_bytes,
            "output_bytes": sum(root.nbytes for root in self.memory.outputs),
            "seconds": self.seconds,
            "signature": self._inputs.signature,
        }


def _executor(plan: Plan, memory: Memory, wanted: ExecutorName) -> tuple[TorchScript | StraightLine, str]:
    if wanted == "python":
        return StraightLine(plan.steps, memory.slots, memory.tensors), "asked for"
    try:
        return TorchScript(plan.steps, memory.slots, memory.tensors), "asked for"
    except NotExpressible as error:
        return StraightLine(plan.steps, memory.slots, memory.tensors), f"not expressible in TorchScript: {error}"


Maker = Callable[[Sequence[Any], list[Any]], Any]


def _makers(plan: Plan, memory: Memory, clone_output: bool) -> list[Maker]:
    """How each output of a replay is made from (inputs, the outputs before it)."""
    makers: list[Maker] = []
    for output in plan.outputs:
        if isinstance(output, Buffer):
            makers.append(_from_buffer(output.slot.layout.over(memory.storages[id(output.slot.root)]), clone_output))
        elif isinstance(output, SameAsInput):
            makers.append(lambda inputs, _, i=output.index: inputs[i])
        elif isinstance(output, SameAsOutput):
            makers.append(lambda _, outputs, i=output.index: outputs[i])
        elif isinstance(output, ViewOfInput):
            makers.append(_view_of_input(output))
        else:
            makers.append(_literally(output))
    return makers


def _from_buffer(tensor: torch.Tensor, clone: bool) -> Maker:
    if clone:
        return lambda _inputs, _outputs: tensor.clone()
    # A tensor object of the caller's own each time: what they do to its shape or flags stays theirs.
    return lambda _inputs, _outputs: tensor.detach()


def _view_of_input(output: ViewOfInput) -> Maker:
    return lambda inputs, _outputs: laid_over(inputs[output.index], output.layout)


def _literally(output: Literally) -> Maker:
    return lambda _inputs, _outputs: output.value


def _overlapping_themselves(inputs: Sequence[Any]) -> frozenset[int]:
    """Inputs that cannot be copied element by element, other than expanded ones: good only where they lie."""
    tensors = ((i, t) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor))
    return frozenset(i for i, t in tensors if Layout.of(t).collapsed().overlaps_itself())


def _mismatch(captured: tuple[str, ...], given: tuple[str, ...]) -> str:
    text = f"captured for {captured}, got {given}"
    if captured == given:
        text += (
            ": the same, but an input that the graph writes overlaps another input or this recording's output buffers, "
            "or an input that as_strided reads does not lie at the begin of its storage"
        )
    return text
