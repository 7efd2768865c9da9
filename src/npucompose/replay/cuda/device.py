"""The few calls of torch.cuda that a recording makes: all that is not tested without a GPU lies in this file."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


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
