"""A device of streams that work through their kernels in order, as events in time. Knows only numbers; loads no torch.

Kernels that run side by side share cores and memory bandwidth: each slows down by as much as the resource that it needs
most is overbooked. A gang (a collective) starts when all its cores are free and then keeps them. An event takes
`event_us` from the end of the recorder, a side stream's first kernel starts no earlier than `stream_us`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf, nan

from attrs import frozen

from npucompose.vendor.devices import DeviceModel


@frozen(slots=True)
class Work:
    """What a kernel asks of a device that it has to itself: `Work(us=5.0, cube=24)`."""

    us: float
    """On its stream, beside others."""
    in_a_row_us: float | None = None
    """When all kernels run one after the other and this one may take threads of its own; None: the same."""
    cube: int = 0
    """Cube cores that it fills; a device without any computes everything on its vector cores."""
    vector: int = 0
    bandwidth: float = 0.0
    """Share of the device's memory bandwidth that it takes."""
    gang: bool = False
    """It starts with all its cores or not at all: a collective."""


_SOON = 1e-9
"""Microseconds that count as none: kernels that end together up to rounding."""


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
    def __init__(
        self,
        order: Sequence[int],
        streams: Sequence[int],
        events: Sequence[tuple[int, int]],
        work: Sequence[Work],
        model: DeviceModel,
    ) -> None:
        self.work, self.model, self.stream_of = work, model, streams
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
        self.now = 0.0
        # {stream: (kernel, when it ends, its rate)}.
        self.running: dict[int, tuple[int, float, float]] = {}
        # (time, stream) of the kernels that only time keeps from starting; streams whose next kernel waits for cores.
        self.soon: list[tuple[float, int]] = []
        self.blocked: list[int] = []
        self.cube = self.vector = self.gang_cube = self.gang_vector = 0
        self.bandwidth = 0.0
        # Whether some kernel runs slower than with the device to itself.
        self.shared = False

    def run(self) -> Simulation:
        for stream in range(len(self.queues)):
            self._ready(stream)
        while self.running or self.soon:
            self._advance()
        stuck = tuple(sorted(index for queue in self.queues for index in queue))
        return Simulation(start=self.start, end=self.end, makespan=self.now, stuck=stuck)

    def _advance(self) -> None:
        ends = min([at for _, at, _ in self.running.values()], default=inf)
        if self.soon and self.soon[0][0] < ends:
            self.now, stream = heapq.heappop(self.soon)
            self._try(stream)
            return
        self.now = ends
        done = [stream for stream, (_, at, _) in self.running.items() if at <= ends + _SOON]
        for stream in done:
            self._finish(stream)
        if self.shared:
            self._rebalance()
        blocked, self.blocked = self.blocked, []
        for stream in blocked:
            self._try(stream)

    def _ready(self, stream: int) -> None:
        """The stream's next kernel starts now, soon, or when its last recorder is done."""
        queue = self.queues[stream]
        if not queue or self.missing[queue[-1]] or stream in self.running:
            return
        at = max(self.free_at[stream], self.earliest[queue[-1]])
        if at > self.now:
            heapq.heappush(self.soon, (at, stream))
        else:
            self._try(stream)

    def _try(self, stream: int) -> None:
        index = self.queues[stream][-1]
        wanted = self.work[index]
        if not self._has_room(wanted):
            self.blocked.append(stream)
            return
        self.queues[stream].pop()
        self.start[index] = self.now
        self.running[stream] = (index, self.now + wanted.us, 1.0)
        self._book(wanted, 1)
        if self.cube > self.model.cube or self.vector > self.model.vector or self.bandwidth > 1.0 + _SOON:
            self._rebalance()

    def _has_room(self, wanted: Work) -> bool:
        cube = self.cube if wanted.gang else self.gang_cube
        vector = self.vector if wanted.gang else self.gang_vector
        most = inf if wanted.gang else 1
        fits_cube = cube + min(most, wanted.cube) <= self.model.cube
        return fits_cube and vector + min(most, wanted.vector) <= self.model.vector

    def _finish(self, stream: int) -> None:
        index, at, _ = self.running.pop(stream)
        self.end[index] = at
        self._book(self.work[index], -1)
        for waiter in self.waiters.get(index, ()):
            self.missing[waiter] -= 1
            self.earliest[waiter] = max(self.earliest[waiter], at + self.model.event_us)
            other = self.stream_of[waiter]
            if other != stream and self.queues[other] and self.queues[other][-1] == waiter:
                self._ready(other)
        self._ready(stream)

    def _book(self, wanted: Work, sign: int) -> None:
        self.cube += sign * wanted.cube
        self.vector += sign * wanted.vector
        self.bandwidth += sign * wanted.bandwidth
        if wanted.gang:
            self.gang_cube += sign * wanted.cube
            self.gang_vector += sign * wanted.vector

    def _rebalance(self) -> None:
        """What is left of each kernel goes on at the rate that its share of the scarcest resource allows."""
        cube = _share(self.model.cube - self.gang_cube, self.cube - self.gang_cube)
        vector = _share(self.model.vector - self.gang_vector, self.vector - self.gang_vector)
        memory = _share(1.0, self.bandwidth)
        self.shared = min(cube, vector, memory) < 1.0
        for stream, (index, at, rate) in self.running.items():
            wanted = self.work[index]
            needs = ((cube, wanted.cube and not wanted.gang), (vector, wanted.vector and not wanted.gang))
            new = min((share for share, needed in (*needs, (memory, wanted.bandwidth)) if needed), default=1.0)
            self.running[stream] = (index, self.now + (at - self.now) * rate / new, new)


def _share(there: float, wanted: float) -> float:
    return min(1.0, there / wanted) if wanted > 0 else 1.0
