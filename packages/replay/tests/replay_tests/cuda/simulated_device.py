"""A device that notes what it is told and computes on the CPU: capture records calls, replay runs them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from npu_simulator.recorder import RecordedCall, tensors
from npucompose_replay.cuda.device import SharedPool, Walk
from npucompose_replay.cuda.recording import CudaRecording

CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


WAITS_FOR_HOST = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::item"})
"""Calls whose answer the host needs at once: a stream that is captured refuses them."""


class Stream:
    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device, self.name = device, name

    def wait_stream(self, other: Stream) -> None:
        self.device.told.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.device.told.append(f"{self.name} waits for {event.name}")


class Event:
    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device, self.name = device, name

    def record(self, stream: Stream) -> None:
        self.device.told.append(f"{stream.name} records {self.name}")


class Graph(TorchDispatchMode):
    """Also what looks on while it is captured. A real device executes nothing then: what was written is put back, the
    random numbers too, and results are made wrong. An operator of others is what it calls: its host code is not
    recorded.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.device = device
        self.calls: list[RecordedCall] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """{address: (bytes that were there before the capture, what they were)}"""
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace not in ("aten", "prims"):
            with self:
                return func.redispatch(CPU, *args, **kwargs)
        if func._schema.name in WAITS_FOR_HOST:
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing\nmore about it")
        with _disable_current_modes():
            for tensor in tensors([*args, *kwargs.values()]):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in {*self._before, *self._made}:
                    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                    self._before[storage.data_ptr()] = whole, whole.clone()
        out = func(*args, **kwargs)
        self._made |= {tensor.untyped_storage().data_ptr() for tensor in tensors(out)} - set(self._before)
        self.calls.append(RecordedCall(func=func, args=args, kwargs=kwargs, out=out, stream=0))
        return out

    def undo(self) -> None:
        for call in self.calls:
            for tensor in tensors(call.out) if call.computes else ():
                tensor.fill_(7)
        for now, before in self._before.values():
            now.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        self.device.told.append("replay")
        for call in self.calls:
            if call.computes:
                call.run()


class SimulatedDevice:
    """`told` is what a device would have been told, in order; calls of operators as `stream: operator`."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._streams = self._events = self._pools = 0
        self._current = Stream(self, "default")
        self._listens = False

    def stream(self, priority: int = 0) -> Stream:
        self._streams += 1
        return Stream(self, f"stream{self._streams}" + (f" of priority {priority}" if priority else ""))

    def current_stream(self) -> Stream:
        return self._current

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            with contextlib.nullcontext() if self._listens else _Told(self):
                self._listens, listened = True, self._listens
                yield
                self._listens = listened
        finally:
            self._current = before

    def event(self) -> Event:
        self._events += 1
        return Event(self, f"event{self._events}")

    def pool(self) -> str:
        self._pools += 1
        return f"pool{self._pools}"

    def graph(self) -> Graph:
        return Graph(self)

    @contextlib.contextmanager
    def capturing(self, graph: Graph, pool: str, stream: Stream) -> Iterator[None]:
        self.told.append(f"capture begins on {stream.name} in {pool}")
        random = torch.get_rng_state()
        try:
            with self.on(stream), graph:
                yield
        finally:
            self.told.append("capture ends")
            torch.set_rng_state(random)
            graph.undo()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def used_on(self, tensor: torch.Tensor, stream: Stream) -> None:
        self.told.append(f"{tensor.nbytes} bytes are used on {stream.name}")


def cuda_recording(
    module: fx.GraphModule, inputs: Sequence[Any], device: SimulatedDevice, pool: SharedPool | None = None, **said: Any
) -> CudaRecording:
    """Of a graph; in a pool of its own where none is given."""
    pool = pool or SharedPool(device)  # type: ignore[arg-type]
    walk = Walk(graph_module=module, device=device, lanes=pool.lanes)  # type: ignore[arg-type]
    return CudaRecording(walk, inputs, device=device, pool=pool, **said)  # type: ignore[arg-type]


class _Told(TorchDispatchMode):
    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.device.told.append(f"{self.device.current_stream().name}: {func}")
        return func(*args, **(kwargs or {}))
