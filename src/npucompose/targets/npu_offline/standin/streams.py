"""Streams and events of a device that runs everything in one row and remembers what it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npucompose.targets.npu_offline.standin.device import Device

DEVICE_TYPE = 20
"""torch's number of PrivateUse1."""


class Stream:
    """torch.npu.Stream: made new, or by the three numbers of one that exists."""

    device_of: Device

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int = 0,
        device_type: int = DEVICE_TYPE,
        **_: Any,
    ) -> None:
        self.stream_id = self.device_of.new_stream() if stream_id is None else stream_id
        self.device_index, self.device_type, self.priority = device_index, device_type, priority
        self.limit = self.device_of.cores

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        self.device_of.synchronize()

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        self.device_of.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.device_of.leave()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """torch.npu.Event."""

    device_of: Device

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = self.device_of.new_event()

    def record(self, stream: Stream | None = None) -> None:
        self.device_of.record(self, stream or self.device_of.current_stream())

    def wait(self, stream: Stream | None = None) -> None:
        self.device_of.wait(self, stream or self.device_of.current_stream())

    def reset(self, stream: Stream | None = None) -> None:
        """Only external events are reset by TorchAir; an ordinary one has nothing to forget."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.device_of.synchronize()


class ExternalEvent(Event):
    """torch.npu.ExternalEvent: a captured graph waits for it at every replay, and the host signals it from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.signalled = False

    def reset(self, stream: Stream | None = None) -> None:
        self.device_of.reset(self)
