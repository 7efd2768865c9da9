"""The few calls of torch.cuda that a recording makes, and memory that recordings share.

All that is not tested without a GPU lies in `Cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from attrs import define, field

from npucompose.replay.memory.arena import Turns


class Device(Protocol):
    """Streams have wait_stream and wait_event, events have record, graphs have replay: torch.cuda's own."""

    def stream(self, priority: int = 0) -> Any: ...

    def current_stream(self) -> Any: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]: ...

    def event(self) -> Any: ...

    def pool(self) -> Any:
        """A handle of memory that captures share."""
        ...

    def graph(self) -> Any: ...

    def capturing(self, graph: Any, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        """What is called inside on `stream` is recorded and not executed; random numbers stay where they are."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on this device."""
        ...

    def used_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """The tensor's memory, once it is freed, goes to nobody else before what `stream` was told by then is done."""
        ...


class Cuda:
    """Device `cuda:index`."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)

    def stream(self, priority: int = 0) -> Any:
        return torch.cuda.Stream(device=self._device, priority=priority)

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        return torch.cuda.Event()

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def graph(self) -> Any:
        return torch.cuda.CUDAGraph()

    def capturing(self, graph: Any, pool: Any, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device

    def used_on(self, tensor: torch.Tensor, stream: Any) -> None:
        tensor.record_stream(stream)


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


@define(eq=False)
class Uses:
    """Memory of ours, and the streams that have used it.

    # Note [Memory and streams]
    torch's allocator gives freed memory back to the stream that asked for it, at once: what that stream is told next
    comes after all that it was told before. Work on any other stream has to be recorded (`Tensor.record_stream`); then
    the memory waits until it is freed *and* that work is done. Recorded here: results of a first call, made on the
    stream that captures; buffers and results of a recording, on every stream on which it was replayed.

    A recording writes the memory of results that nobody holds any more without giving it back to the allocator. It
    waits for the stream on which they went out, as the allocator would. What a caller has another stream read, and
    tells the allocator of, it cannot know: that stream must be waited for before the result is let go.
    """

    device: Device
    tensors: Sequence[torch.Tensor]
    _streams: set[Any]

    def on(self, stream: Any) -> None:
        if stream not in self._streams:
            self._streams.add(stream)
            for tensor in self.tensors:
                self.device.used_on(tensor, stream)
