"""A device of streams that work through their kernels in order, as events in time. Knows only numbers; loads no torch.

Kernels that run side by side share cores and memory bandwidth: each slows down by as much as the resource that it needs
most is overbooked. A gang (a collective) starts when all its cores are free and then keeps them. An event takes
`event_us` from the end of the recorder, a side stream's first kernel starts no earlier than `stream_us`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import nan

from attrs import frozen

from npucompose.streams.sharing import SharedDevice, Work
from npucompose.vendor.devices import DeviceModel


@frozen(kw_only=True)
class Simulation:
    """When each kernel started and ended; `stuck` are those that never could (both times are nan)."""

    start: Sequence[float]
    end: Sequence[float]
    makespan: float
    stuck: tuple[int, ...] = ()


def simulate(
    order: Sequence[int],
    streams: Sequence[int],
    events: Sequence[tuple[int, int]],
    work: Sequence[Work],
    model: DeviceModel,
) -> Simulation:
    """Run the kernels: on each stream as they stand in `order`, after the (recorder, waiter) pairs of `events`.

    Stream 0 is the default stream. Two kernels of 5 µs on two streams end at 5 and stream_us + 5; two that each want
    all cores at 10.
    """
    return _Device(order, streams, events, work, model).run()


class _Device:
    """Streams that take their kernels one after the other, on the one device that they share."""

    def __init__(
        self,
        order: Sequence[int],
        streams: Sequence[int],
        events: Sequence[tuple[int, int]],
        work: Sequence[Work],
        model: DeviceModel,
    ) -> None:
        self.device, self.model, self.stream_of = SharedDevice(work, model), model, streams
        width = max(streams, default=0) + 1
        # The kernels of each stream, the next one last.
        self.queues: list[list[int]] = [[] for _ in range(width)]
        for index in reversed(order):
            self.queues[streams[index]].append(index)
        # How many recorders of a kernel's events are not done, and when those that are done are through.
        self.missing = [0] * len(work)
        self.earliest = [0.0] * len(work)
        self.waiters: dict[int, list[int]] = {}
        for recorder, waiter in events:
            self.missing[waiter] += 1
            self.waiters.setdefault(recorder, []).append(waiter)
        self.start, self.end = [nan] * len(work), [nan] * len(work)
        self.free_at = [0.0, *[model.stream_us] * (width - 1)]
        # (time, stream) of the kernels that only time keeps from starting; streams whose next kernel waits for cores.
        self.soon: list[tuple[float, int]] = []
        self.blocked: list[int] = []

    def run(self) -> Simulation:
        for stream in range(len(self.queues)):
            self._ready(stream)
        while self.device.running or self.soon:
            self._advance()
        stuck = tuple(sorted(index for queue in self.queues for index in queue))
        return Simulation(start=self.start, end=self.end, makespan=self.device.now, stuck=stuck)

    def _advance(self) -> None:
        device = self.device
        if self.soon and self.soon[0][0] < device.next_end:
            device.now, stream = heapq.heappop(self.soon)
            self._try(stream)
            return
        done = device.finish()
        woken = [other for stream, index in done for other in self._finish(stream, index)]
        for stream in dict.fromkeys([*woken, *[stream for stream, _ in done]]):
            self._ready(stream)
        blocked, self.blocked = self.blocked, []
        for stream in blocked:
            self._try(stream)

    def _ready(self, stream: int) -> None:
        """The stream's next kernel starts now, soon, or when its last recorder is done."""
        queue = self.queues[stream]
        if not queue or self.missing[queue[-1]] or stream in self.device.running:
            return
        at = max(self.free_at[stream], self.earliest[queue[-1]])
        if at > self.device.now:
            heapq.heappush(self.soon, (at, stream))
        else:
            self._try(stream)

    def _try(self, stream: int) -> None:
        index = self.queues[stream][-1]
        if not self.device.has_room(index):
            self.blocked.append(stream)
            return
        self.queues[stream].pop()
        self.start[index] = self.device.now
        self.device.start(stream, index)

    def _finish(self, stream: int, index: int) -> list[int]:
        """Other streams whose next kernel has waited for this one."""
        at = self.end[index] = self.device.now
        through, woken = at + self.model.event_us, []
        for waiter in self.waiters.get(index, ()):
            self.missing[waiter] -= 1
            self.earliest[waiter] = max(self.earliest[waiter], through)
            other = self.stream_of[waiter]
            if other != stream and self.queues[other] and self.queues[other][-1] == waiter:
                woken.append(other)
        return woken
