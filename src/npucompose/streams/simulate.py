"""A device of streams that work through their kernels in order, as events in time. Knows only numbers; loads no torch.

Kernels that run side by side share cores and memory bandwidth: each slows down by as much as the resource that it needs
most is overbooked. A gang (a collective) starts when all its cores are free and then keeps them. An event takes
`event_us` from the end of the recorder, a side stream's first kernel starts no earlier than `stream_us`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from attrs import define, field, frozen

from npucompose.streams.work import Work
from npucompose.vendor.devices import DeviceModel

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
    return _Device.of(order, streams, events, work, model).run()


@define
class _Device:
    work: Sequence[Work]
    model: DeviceModel
    queues: list[list[int]]
    """The kernels of each stream, the next one last."""
    missing: list[int]
    """How many recorders of a kernel's events are not done."""
    waiters: dict[int, list[int]]
    stream_of: Sequence[int]
    start: list[float]
    end: list[float]
    earliest: list[float]
    """When the events of a kernel are through."""
    free_at: list[float]
    now: float = 0.0
    running: dict[int, tuple[int, float, float]] = field(factory=dict)
    """{stream: (kernel, when it ends, its rate)}."""
    soon: list[tuple[float, int]] = field(factory=list)
    """(time, stream) of the kernels that only time keeps from starting."""
    blocked: list[int] = field(factory=list)
    """Streams whose next kernel waits for cores."""
    cube: int = 0
    vector: int = 0
    bandwidth: float = 0.0
    gang_cube: int = 0
    gang_vector: int = 0
    shared: bool = False
    """Whether some kernel runs slower than alone."""

    @classmethod
    def of(
        cls,
        order: Sequence[int],
        streams: Sequence[int],
        events: Sequence[tuple[int, int]],
        work: Sequence[Work],
        model: DeviceModel,
    ) -> _Device:
        width = max(streams, default=0) + 1
        queues: list[list[int]] = [[] for _ in range(width)]
        for index in reversed(order):
            queues[streams[index]].append(index)
        missing = [0] * len(work)
        waiters: dict[int, list[int]] = {}
        for recorder, waiter in events:
            missing[waiter] += 1
            waiters.setdefault(recorder, []).append(waiter)
        nan = float("nan")
        return cls(
            work=work,
            model=model,
            queues=queues,
            missing=missing,
            waiters=waiters,
            stream_of=streams,
            start=[nan] * len(work),
            end=[nan] * len(work),
            earliest=[0.0] * len(work),
            free_at=[0.0, *[model.stream_us] * (width - 1)],
        )

    def run(self) -> Simulation:
        for stream in range(len(self.queues)):
            self._ready(stream)
        while self.running or self.soon:
            self._advance()
        stuck = tuple(sorted(index for queue in self.queues for index in queue))
        return Simulation(start=self.start, end=self.end, makespan=self.now, stuck=stuck)

    def _advance(self) -> None:
        ends = min([at for _, at, _ in self.running.values()], default=float("inf"))
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
        if self._overbooked():
            self._rebalance()

    def _has_room(self, wanted: Work) -> bool:
        cube = self.cube if wanted.gang else self.gang_cube
        vector = self.vector if wanted.gang else self.gang_vector
        need_cube, need_vector = (
            (wanted.cube, wanted.vector) if wanted.gang else (min(1, wanted.cube), min(1, wanted.vector))
        )
        return cube + need_cube <= self.model.cube and vector + need_vector <= self.model.vector

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

    def _overbooked(self) -> bool:
        return self.cube > self.model.cube or self.vector > self.model.vector or self.bandwidth > 1.0 + _SOON

    def _rebalance(self) -> None:
        """What is left of each kernel goes on at the rate that its share of the scarcest resource allows."""
        cube = _share(self.model.cube - self.gang_cube, self.cube - self.gang_cube)
        vector = _share(self.model.vector - self.gang_vector, self.vector - self.gang_vector)
        memory = _share(1.0, self.bandwidth)
        self.shared = min(cube, vector, memory) < 1.0
        for stream, (index, at, rate) in self.running.items():
            wanted = self.work[index]
            slow = [1.0]
            if not wanted.gang:
                slow += [cube] if wanted.cube else []
                slow += [vector] if wanted.vector else []
            slow += [memory] if wanted.bandwidth else []
            new = min(slow)
            self.running[stream] = (index, self.now + (at - self.now) * rate / new, new)


def _share(there: float, wanted: float) -> float:
    return min(1.0, there / wanted) if wanted > 0 else 1.0
