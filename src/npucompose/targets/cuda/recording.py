"""A CUDA graph of one FX graph with its static buffers, good for one signature."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx

from npucompose.errors import CaptureError, SignatureError
from npucompose.graphs import Aliases, is_planned
from npucompose.targets.cpu.arena import Turns
from npucompose.targets.cpu.inputs import same_number, sharing, signature
from npucompose.targets.cpu.memory import laid_over, relative
from npucompose.targets.cpu.plan import Layout
from npucompose.targets.cpu.undisturbed import undisturbed
from npucompose.targets.cuda.device import Device
from npucompose.targets.cuda.walk import Walk

WARM_UPS = 3
"""Runs before a capture, as torch's notes on CUDA graphs ask for: libraries set themselves up outside of it."""
Maker = Callable[[Sequence[Any], list[Any]], Any]


@define(eq=False)
class SharedPool:
    """Memory for what recordings compute in between; their inputs and outputs lie outside.

    Recordings that share it never run at once: the host takes `turns`, the device waits for an event.
    """

    device: Device
    handle: Any = field(init=False)
    turns: Turns = field(factory=Turns, init=False)
    stream: Any = field(init=False)
    """On which all of them are captured: the allocator gives a stream the memory that was freed on it."""
    lanes: dict[str, Any] = field(factory=dict, init=False)
    """Side streams of plans, by label, for the same reason."""
    _left: Any = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.handle, self.stream = self.device.pool(), self.device.stream()

    def enter(self) -> None:
        if self._left is not None:
            self.device.current_stream().wait_event(self._left)

    def leave(self) -> None:
        self._left = self.device.event()
        self._left.record(self.device.current_stream())


class CudaRecording:
    """`CudaRecording(gm, inputs, …)` records; `replay(*inputs)` copies in what does not lie in the buffers, and runs.

    Outputs are static buffers that the next replay overwrites, or with `clone_output` copies. `static` inputs are used
    where they lie, and so are inputs that overlap themselves, or each other while one is written: their address belongs
    to the signature. Inputs are as before after the capture, and so is torch's random state.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        device: Device,
        pool: SharedPool,
        static: frozenset[int] = frozenset(),
        clone_output: bool = False,
    ) -> None:
        begun = time.perf_counter()
        self._device, self._pool, self._clone = device, pool, clone_output
        self._tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        for i in self._tensors:
            if not device.holds(inputs[i]):
                raise CaptureError(
                    f"input {i} is on {inputs[i].device}: a CUDA graph takes tensors of its device only."
                )
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        aliases = Aliases.of(graph_module.graph)
        written = frozenset(i for i, node in enumerate(placeholders) if aliases.keys[node] & aliases.written)
        shared = sharing(inputs)
        folded = frozenset(i for i in self._tensors if Layout.of(inputs[i]).overlaps_itself())
        self._fixed = static | folded | (shared if written & shared else frozenset())
        self.signature = signature(inputs, self._fixed)
        self._forms = [self._form(i, inputs[i]) for i in self._tensors]
        self._numbers = [(i, value) for i, value in enumerate(inputs) if not isinstance(value, torch.Tensor)]
        self._count = len(inputs)
        self.last_outputs: list[Any] = []
        self.graph = device.graph()
        with pool.turns, undisturbed():
            pool.enter()
            self._buffers = [self._buffer(i, value) for i, value in enumerate(inputs)]
            self._copied = [i for i in self._tensors if i not in self._fixed]
            self._written = [i for i in self._tensors if i in written]
            self._makers = self._capture(graph_module)
            pool.leave()
        self.kernels = sum(isinstance(node.target, torch._ops.OpOverload) for node in graph_module.graph.nodes)
        self.planned = is_planned(graph_module.graph)
        self.seconds = time.perf_counter() - begun

    # -- the capture

    def _capture(self, graph_module: fx.GraphModule) -> list[Maker]:
        kept = [(self._buffers[i], self._buffers[i].clone()) for i in self._written]
        random = self._device.random_state()
        walk = Walk(graph_module=graph_module, device=self._device, lanes=self._pool.lanes)
        home, side = self._device.current_stream(), self._pool.stream
        side.wait_stream(home)
        with self._device.on(side):
            for _ in range(WARM_UPS - 1):
                walk.run(self._buffers)
            values = walk.run(self._buffers)
        home.wait_stream(side)
        makers, targets = self._outputs(values)
        del values
        with self._device.capturing(self.graph, self._pool.handle, side):
            found = walk.run(self._buffers)
            for k, buffer in targets.items():
                buffer.copy_(found[k])
            del found
        for buffer, before in kept:
            buffer.copy_(before)
        self._device.set_random_state(random)
        return makers

    def _buffer(self, i: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or i in self._fixed:
            return value.detach() if isinstance(value, torch.Tensor) else value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)

    def _outputs(self, values: Sequence[Any]) -> tuple[list[Maker], dict[int, torch.Tensor]]:
        """How each output goes out, and the buffers of those that the graph makes, from what a warm-up returned."""
        makers: list[Maker] = []
        targets: dict[int, torch.Tensor] = {}
        for k, value in enumerate(values):
            earlier = next((n for n in range(k) if values[n] is value), None)
            given = next((i for i in self._tensors if value is self._buffers[i]), None)
            if not isinstance(value, torch.Tensor):
                makers.append(lambda _inputs, _outputs, value=value: value)
            elif given is not None:
                makers.append(lambda inputs, _outputs, i=given: inputs[i])
            elif earlier is not None:
                makers.append(lambda _inputs, outputs, n=earlier: outputs[n])
            elif (base := self._base_of(value)) is not None:
                layout = relative(value, self._buffers[base])
                makers.append(lambda inputs, _outputs, i=base, layout=layout: laid_over(inputs[i], layout))
            else:
                targets[k] = buffer = torch.empty_like(value)
                makers.append(_clone_of(buffer) if self._clone else _view_of(buffer))
        return makers, targets

    def _base_of(self, value: torch.Tensor) -> int | None:
        storage = value.untyped_storage().data_ptr()
        if not value.numel():
            return None
        return next((i for i in self._tensors if self._buffers[i].untyped_storage().data_ptr() == storage), None)

    # -- the replay

    def replay(self, *inputs: Any) -> list[Any]:
        outputs = self.try_replay(inputs)
        if outputs is None:
            raise SignatureError(f"captured for {self.signature}, got {signature(inputs, self._fixed)}")
        return outputs

    def try_replay(self, inputs: Sequence[Any]) -> list[Any] | None:
        """None, with nothing done, when the inputs do not have this recording's signature."""
        if not self._fits(inputs):
            return None
        with self._pool.turns, torch.no_grad():
            self._pool.enter()
            moved = [i for i in self._copied if inputs[i].data_ptr() != self._buffers[i].data_ptr()]
            for i in moved:
                self._buffers[i].copy_(inputs[i], non_blocking=True)
            self.graph.replay()
            for i in self._written:
                if i in moved:
                    inputs[i].copy_(self._buffers[i], non_blocking=True)
                elif not inputs[i].is_inference():
                    torch.autograd.graph.increment_version(inputs[i])
            outputs: list[Any] = []
            for make in self._makers:
                outputs.append(make(inputs, outputs))
            self._pool.leave()
        self.last_outputs = outputs
        return outputs

    def _form(self, i: int, value: torch.Tensor) -> tuple[Any, ...]:
        address = value.data_ptr() if i in self._fixed else None
        return value.dtype, value.device, value.shape, value.stride(), value.is_conj(), value.is_neg(), address

    def _fits(self, inputs: Sequence[Any]) -> bool:
        return (
            len(inputs) == self._count
            and all(isinstance(inputs[i], torch.Tensor) for i in self._tensors)
            and [self._form(i, inputs[i]) for i in self._tensors] == self._forms
            and all(same_number(inputs[i], value) for i, value in self._numbers)
        )

    def facts(self) -> Mapping[str, Any]:
        return {
            "executor": "cuda graph",
            "executor_reason": "",
            "kernels": self.kernels,
            "seconds": self.seconds,
            "signature": self.signature,
        }


def _view_of(buffer: torch.Tensor) -> Maker:
    return lambda _inputs, _outputs: buffer.detach()


def _clone_of(buffer: torch.Tensor) -> Maker:
    return lambda _inputs, _outputs: buffer.clone()
