"""A CUDA graph of one FX graph with its static buffers, good for one signature."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import define
from torch import fx

from npucompose.errors import CaptureError
from npucompose.graphs import Aliases, is_planned
from npucompose_replay import gate
from npucompose_replay.cuda.device import Cuda, SharedPool
from npucompose_replay.cuda.forms import Forms
from npucompose_replay.cuda.results import InPiece, ResultMemory, Results
from npucompose_replay.gate import Refused, isolated_capture
from npucompose_replay.memory.inputs import refusal, signature
from npucompose_replay.memory.results import OVERWRITTEN
from npucompose_replay.operands import layout_of, sharing, traits_of

_InferenceMode = torch._C._InferenceMode
_copy: Any = torch._foreach_copy_  # type: ignore[attr-defined]


@define(eq=False)
class Uses:
    """Memory of ours, and the streams that have used it.

    # Note [Memory and streams]
    torch's allocator gives freed memory back to the stream that asked for it, at once: what that stream is given next
    comes after all that it was given before. Work on any other stream has to be recorded (`Tensor.record_stream`); then
    the memory waits until it is freed *and* that work is done. Recorded here: results of a first call, made on the
    stream that captures; buffers and results of a recording, on every stream on which it was replayed.

    A recording writes the memory of results that nobody holds any more without giving it back to the allocator. It
    waits for the stream on which they went out, as the allocator would. What a caller has another stream read, and
    reports to the allocator, it cannot know: that stream must be waited for before the result is let go.
    """

    device: Cuda
    tensors: Sequence[torch.Tensor]
    _streams: set[Any]

    def on(self, stream: Any) -> None:
        if stream not in self._streams:
            self._streams.add(stream)
            for tensor in self.tensors:
                self.device.used_on(tensor, stream)


@define(eq=False)
class Buffers:
    """What the graph reads its inputs from: copies, and what is `fixed` as it lies."""

    values: list[Any]
    uses: Uses

    @classmethod
    def like(cls, inputs: Sequence[Any], fixed: frozenset[int], device: Cuda, home: Any) -> Buffers:
        values, own = list[Any](), list[torch.Tensor]()
        for i, value in enumerate(inputs):
            if not isinstance(value, torch.Tensor):
                values.append(value)
            elif i in fixed:
                values.append(value.detach())
            else:
                own.append(torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device))
                values.append(own[-1])
        return cls(values, Uses(device, own, {home}))


@define(eq=False)
class CudaCapture:
    """A CUDA graph and the memory of its results."""

    graph: Any
    results: ResultMemory
    uses: Uses
    lent: bool = False
    """Its results went out to somebody who lets the next call overwrite them."""
    _went_out_on: Any = None

    def replay(self, home: Any) -> None:
        if self._went_out_on is not None and self._went_out_on != home:
            home.wait_stream(self._went_out_on)
        self._went_out_on = home
        self.uses.on(home)
        self.graph.replay()


class Runnable(Protocol):
    """What is captured: a Walk of a graph, or what a compiler made of one."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """Whose inputs it takes, and whose outputs it gives."""
        ...

    @property
    def kernels(self) -> int:
        """How many it starts."""
        ...

    def check(self) -> None:
        """Raise CaptureError for what can be seen, before anything has run, that no recording can hold."""
        ...

    def run(self, inputs: Sequence[Any]) -> list[Any]: ...

    def refused(self, reason: str) -> Refused:
        """That the last run could not be captured."""
        ...


class CudaRecording:
    """`replay(*inputs)` for inputs of one signature, that of `inputs`; it runs nothing yet.

    # Note [Every call runs every operator once]
    The first call runs the graph as it is, on the caller's tensors and on the stream that captures: libraries set
    themselves up outside a capture, as torch's notes on CUDA graphs ask for. The second one captures, which executes
    nothing, and replays. What an operator does on the host beside starting kernels happens in these two calls; a
    replay is the device's affair alone. Where an operator has to act on the host each time, its author says so.

    # Note [Two captures at most]
    The results of the first capture go out themselves. Where one of them, or a view of one, is still held at the next
    call, the graph is captured once more, into memory that never goes out: copies do. From then on a call replays
    the first one when nobody holds its results, and the second one otherwise; `clone_output` is the second one always.
    With `reuse`, results that were given out with `reuse` are overwritten instead, with one warning.

    `static` inputs are used where they lie, and so are inputs that overlap themselves, or each other while one is
    written, or lie within a storage that `as_strided` reads: their address belongs to the signature. Others are copied
    in where they do not lie in the buffers.
    """

    def __init__(
        self,
        runs: Runnable,
        inputs: Sequence[Any],
        *,
        device: Cuda,
        pool: SharedPool,
        static: frozenset[int] = frozenset(),
        clone_output: bool = False,
    ) -> None:
        self._device, self._pool, self._clone = device, pool, clone_output
        self._tensors = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        for i in self._tensors:
            if not device.holds(inputs[i]):
                raise CaptureError(
                    f"input {i} is on {inputs[i].device}: a CUDA graph takes tensors of its device only."
                )
            if why := gate.why_not_anywhere(inputs[i]):
                raise Refused(f"input {i} {why}.", reason=f"an input of it {why}", index=i)
        self._kind = inputs[self._tensors[0]].device.type if self._tensors else "cuda"
        runs.check()
        self._runs, graph = runs, runs.graph_module.graph
        self._aliases = Aliases.from_graph(graph)
        placeholders = graph.find_nodes(op="placeholder")
        self._written = [i for i in self._tensors if self._aliases.keys[placeholders[i]] & self._aliases.written]
        shared = sharing(inputs)
        folded = frozenset(i for i in self._tensors if layout_of(inputs[i]).overlaps_itself())
        by_place = _read_by_place(graph, self._aliases)
        self._from_zero = frozenset(i for i in by_place if _is_all_of_its_storage(inputs[i]))
        self._fixed = static | folded | (by_place - self._from_zero)
        if shared.intersection(self._written):
            self._fixed |= shared
        self._copied = [i for i in self._tensors if i not in self._fixed]
        self._brought_back = frozenset(self._written).intersection(self._copied)
        self.signature = signature(inputs, self._fixed)
        self._forms = Forms(inputs, fixed=self._fixed, from_zero=self._from_zero, device=self._kind)
        self._results: Results | None = None
        """None before the first call."""
        self._buffers: Buffers | None = None
        self._giving: CudaCapture | None = None
        """Whose results go out."""
        self._keeping: CudaCapture | None = None
        """Whose results go out in copies."""
        self._warned = False
        self.planned = is_planned(graph)
        self.seconds = 0.0
        """What the first call took and every capture: a caller waits for a replay."""

    def replay(self, *inputs: Any, reuse: bool = False) -> list[Any]:
        """The outputs for inputs of the recording's signature; SignatureError for others."""
        outputs = self.try_replay(inputs, reuse=reuse)
        if outputs is None:
            raise refusal(inputs, self.signature, self._fixed, self._kind, subclasses=True)
        return outputs

    def try_replay(self, inputs: Sequence[Any], *, reuse: bool = False) -> list[Any] | None:
        """None, with nothing done, when the inputs do not have this recording's signature."""
        if not self._fits(inputs) or (self._results is not None and gate.why_not_here()):
            return None
        with self._pool.turns:
            if self._results is None:
                with self._timed():
                    return self._first_call(inputs)
            home = self._device.current_stream()
            with _InferenceMode(True):
                self._pool.enter(home)
                moved = self._copy_in(inputs, home)
                captured = self._next(inputs, reuse)
                captured.replay(home)
                self._copy_back(inputs, moved)
            made = captured.results.copies() if captured is self._keeping else captured.results.themselves()
            return self._results.handed_out(inputs, made)

    # -- the first call

    def _first_call(self, inputs: Sequence[Any]) -> list[Any]:
        inference = torch.is_inference_mode_enabled()
        home, side = self._device.current_stream(), self._pool.stream
        with isolated_capture(), torch.inference_mode(inference):
            side.wait_stream(home)
            with self._device.on(side):
                values = self._runs.run(inputs)
            home.wait_stream(side)
            results = Results.from_run(self._runs.graph_module, self._aliases, inputs, values)
        made = [value for value, output in zip(values, results.outputs, strict=True) if isinstance(output, InPiece)]
        for value in made:  # allocated by the stream that ran, read by the caller's
            self._device.used_on(value, home)
        self._results = results
        return results.handed_out(inputs, made)

    # -- the second one, and another capture

    def _next(self, inputs: Sequence[Any], reuse: bool) -> CudaCapture:
        """What to replay, so that no result is overwritten that its holder counts on."""
        giving = self._giving
        if giving is None and not self._clone:
            giving = self._giving = self._capture()
        if giving is not None and self._may_overwrite(giving, inputs, reuse):
            giving.lent = reuse
            return giving
        if self._keeping is None:
            self._keeping = self._capture()
        return self._keeping

    def _may_overwrite(self, giving: CudaCapture, inputs: Sequence[Any], reuse: bool) -> bool:
        if not giving.results.is_held():
            return True
        if not (reuse and giving.lent) or giving.results.is_read(inputs):
            return False
        if not self._warned:
            self._warned = True
            warnings.warn(OVERWRITTEN, RuntimeWarning, stacklevel=6)
        return True

    def _capture(self) -> CudaCapture:
        assert self._buffers is not None
        assert self._results is not None
        device, results = self._device, ResultMemory(self._results)
        captured = CudaCapture(device.graph(), results, Uses(device, results.tensors, {device.current_stream()}))
        try:
            with (
                self._timed(),
                isolated_capture(),
                _InferenceMode(True),
                device.capturing(captured.graph, self._pool.handle, self._pool.stream),
            ):
                results.fill(self._runs.run(self._buffers.values))
        except RuntimeError as error:
            line = str(error).partition("\n")[0]
            raise self._runs.refused(f"the device does not record it: {line}") from error
        results.count()
        return captured

    # -- inputs

    def _copy_in(self, inputs: Sequence[Any], home: Any) -> list[int]:
        """Inputs that were copied into the buffers."""
        if self._buffers is None:
            self._buffers = Buffers.like(inputs, self._fixed, self._device, home)
        self._buffers.uses.on(home)
        values = self._buffers.values
        moved = [i for i in self._copied if inputs[i].data_ptr() != values[i].data_ptr()]
        if moved:  # one kernel, where copies one by one would be as many
            _copy([values[i] for i in moved], [inputs[i] for i in moved], non_blocking=True)
        return moved

    def _copy_back(self, inputs: Sequence[Any], moved: Sequence[int]) -> None:
        assert self._buffers is not None
        if self._brought_back:
            for i in self._brought_back.intersection(moved):
                inputs[i].copy_(self._buffers.values[i], non_blocking=True)
        elsewhere = [inputs[i] for i in self._written if i not in moved]
        if changed := [value for value in elsewhere if not value.is_inference()]:
            torch.autograd.graph.increment_version(changed)

    def _fits(self, inputs: Sequence[Any]) -> bool:
        # What is written and brought back may share memory with nobody: others would not see it in time.
        return self._forms.fit(inputs) and not (self._brought_back and self._brought_back & sharing(inputs))

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begun

    def facts(self) -> Mapping[str, Any]:
        return {
            "executor": "cuda graph",
            "executor_reason": "",
            "kernels": self._runs.kernels,
            "captures": sum(one is not None for one in (self._giving, self._keeping)),
            "seconds": self.seconds,
            "signature": self.signature,
        }


def _read_by_place(graph: fx.Graph, aliases: Aliases) -> frozenset[int]:
    """Inputs that `as_strided` reads: it counts from the begin of a storage, wherever in it the input lies."""
    readers = [
        node.args[0]
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and traits_of(node.target).is_as_strided
    ]
    given = enumerate(graph.find_nodes(op="placeholder"))
    return frozenset(
        i for i, node in given if any(isinstance(one, fx.Node) and aliases.shares(one, node) for one in readers)
    )


def _is_all_of_its_storage(tensor: torch.Tensor) -> bool:
    return layout_of(tensor).span() == (0, tensor.untyped_storage().nbytes())
