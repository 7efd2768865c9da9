"""A device of streams that work through their kernels in order, as events in time. Knows only numbers; loads no torch.

Kernels that run side by side share cores and memory bandwidth: each slows down by as much as the resource that it needs
most is overbooked, so that nothing is gained by sharing. A kernel that is limited to fewer cores leaves the others
free, and is slower by less than its cores are fewer where cores are not all that it takes time for (`Work.on`). A gang
(a collective) starts when all its cores are free and then keeps them. An event takes `event_us` from the end of the
recorder, a side stream's first kernel starts no earlier than `stream_us`.

A collective is work on the link: its stream only issues it and goes on. The link takes one after the other, in the
order in which they were issued; what waits for a collective starts when that has ended.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from math import inf, nan
from typing import Literal

import attrs
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
    """Cube cores that it fills; a device without any computes everything on its vector cores. A kernel that fills both
    kinds is a mixed one: attention, a product of quantised matrices."""
    vector: int = 0
    bandwidth: float = 0.0
    """Share of the device's memory bandwidth that it takes."""
    gang: bool = False
    """It starts with all its cores or not at all: a collective."""
    link: bool = False
    """It runs on the link: a collective. Its stream goes on at once."""
    awaits: tuple[int, ...] = ()
    """The kernels on the link, by their numbers, that must have ended before this one starts."""
    fixed_us: float = 0.0
    """Of `us`, what no core makes shorter: the launch, a part that is not parallel."""
    divided_us: float | None = None
    """What its cores divide among them; None: all of `us` that is not fixed. Where both are less than `us`, memory is
    what takes that long, and some cores are to spare."""
    tiles: int = 0
    """Equal parts that it comes in; a core takes one at a time. 0: it divides as finely as there are cores."""

    def on(self, cube: int, vector: int) -> Work:
        """The same kernel on at most so many cores of each kind; a mixed one keeps its proportion of them.

        On c of its n cores `us` becomes max(us, fixed_us + divided_us * n / c), for tiles with the rounds that the
        cores go (ceil(tiles / c)) instead of n / c: G. Amdahl 1967 and a roofline. A kernel of T µs, half of them
        fixed, takes 1.5 T on half its cores: `Work(us=10.0, fixed_us=5.0, vector=48).on(24, 24).us` is 15.0.
        """
        if self.cube <= cube and self.vector <= vector:
            return self
        share = min(there / own for there, own in ((cube, self.cube), (vector, self.vector)) if own)
        cubes, vectors = (max(1, math.floor(own * share)) if own else 0 for own in (self.cube, self.vector))
        divided = self.us - self.fixed_us if self.divided_us is None else self.divided_us
        divided *= self._rounds(cubes, vectors) / self._rounds(self.cube, self.vector)
        us = max(self.us, self.fixed_us + divided)
        slower = self.us / us if us else 1.0
        return attrs.evolve(
            self, us=us, divided_us=divided, cube=cubes, vector=vectors, bandwidth=self.bandwidth * slower
        )

    def _rounds(self, cube: int, vector: int) -> float:
        """How long the divided part takes on so many cores, in any unit."""
        cores = cube or vector
        return math.ceil(self.tiles / cores) if self.tiles else 1 / cores


Resource = Literal["cube", "vector", "bandwidth"]


class Load:
    """What the kernels that run at one moment want of a device together, and how fast that lets each of them go."""

    __slots__ = ("bandwidth", "cube", "gang_cube", "gang_vector", "model", "vector")

    def __init__(self, model: DeviceModel) -> None:
        self.model = model
        self.cube = self.vector = self.gang_cube = self.gang_vector = 0
        self.bandwidth = 0.0

    def add(self, work: Work, sign: int = 1) -> None:
        """A kernel starts, or with -1 ends."""
        self.cube += sign * work.cube
        self.vector += sign * work.vector
        self.bandwidth += sign * work.bandwidth
        if work.gang:
            self.gang_cube += sign * work.cube
            self.gang_vector += sign * work.vector

    @property
    def overbooked(self) -> bool:
        return self.cube > self.model.cube or self.vector > self.model.vector or self.bandwidth > 1.0 + _SOON

    def admits(self, work: Work) -> bool:
        """Whether a kernel may start: a gang needs all its cores, any other one that no gang holds of each kind."""
        cube = self.cube if work.gang else self.gang_cube
        vector = self.vector if work.gang else self.gang_vector
        most = inf if work.gang else 1
        fits_cube = cube + min(most, work.cube) <= self.model.cube
        return fits_cube and vector + min(most, work.vector) <= self.model.vector

    def booked_with(self, work: Work) -> float:
        """How often the scarcest resource that a kernel needs would be taken if it started now; 1.0 where none is
        taken more than once."""
        model, most = self.model, 1.0
        if work.cube and self.cube + work.cube > most * model.cube:
            most = (self.cube + work.cube) / max(1, model.cube)
        if work.vector and self.vector + work.vector > most * model.vector:
            most = (self.vector + work.vector) / model.vector
        return max(most, self.bandwidth + work.bandwidth) if work.bandwidth else most

    def idle(self, resource: Resource) -> float:
        """The share of a resource that nothing that runs wants."""
        if resource == "bandwidth":
            return max(0.0, 1.0 - self.bandwidth)
        there = self.model.cube if resource == "cube" else self.model.vector
        taken = self.cube if resource == "cube" else self.vector
        return max(0.0, 1.0 - taken / there) if there else 0.0

    def shares(self) -> tuple[float, float, float]:
        """What there is of cube cores, vector cores and bandwidth for each that is wanted, at most 1."""
        return (
            _share(self.model.cube - self.gang_cube, self.cube - self.gang_cube),
            _share(self.model.vector - self.gang_vector, self.vector - self.gang_vector),
            _share(1.0, self.bandwidth),
        )


def rate(work: Work, shares: tuple[float, float, float]) -> float:
    """How fast a kernel goes with these shares, 1.0 as alone: the scarcest of what it needs decides."""
    cube, vector, memory = shares
    slowest = memory if work.bandwidth else 1.0
    if not work.gang:
        if work.cube and cube < slowest:
            slowest = cube
        if work.vector and vector < slowest:
            slowest = vector
    return slowest


def rates(running: Sequence[Work], model: DeviceModel) -> list[float]:
    """How fast each of the kernels that run together goes: two that want all cube cores [0.5, 0.5]."""
    load = Load(model)
    for work in running:
        load.add(work)
    shares = load.shares()
    return [rate(work, shares) for work in running]


LINK = -1
"""Stands for a stream where a kernel ends that was on the link."""

_SOON = 1e-9
"""Microseconds that count as none: kernels that end together up to rounding."""


class SharedDevice:
    """The kernels that run now, at most one on each stream and one on the link, and when they end.

    Time is `now`: `finish` moves it on, and whoever uses the device may set it forward to any time up to `next_end`.
    """

    def __init__(self, work: Sequence[Work], model: DeviceModel) -> None:
        self.work, self.load = work, Load(model)
        self.now = 0.0
        # {stream: (kernel, when it ends, its rate)}.
        self.running: dict[int, tuple[int, float, float]] = {}
        self.next_end = inf  # when the next kernel ends
        # Whether some kernel runs slower than with the device to itself.
        self._shared = False
        self._issued: deque[int] = deque()

    @property
    def issued(self) -> Sequence[int]:
        """The kernels that the link has not begun with."""
        return tuple(self._issued)

    def start(self, stream: int, index: int) -> bool:
        """The kernel starts now, on a stream where none runs; False where it goes to the link and leaves that free."""
        if self.work[index].link:
            self._issued.append(index)
            self._send()
        else:
            self._run(stream, index)
        return not self.work[index].link

    def _send(self) -> None:
        """The link takes what was issued first, once it is free, and of a gang the cores are."""
        if self._issued and LINK not in self.running and self.load.admits(self.work[self._issued[0]]):
            self._run(LINK, self._issued.popleft())

    def _run(self, stream: int, index: int) -> None:
        wanted = self.work[index]
        end = self.now + wanted.us
        self.running[stream] = (index, end, 1.0)
        self.next_end = min(self.next_end, end)
        self.load.add(wanted)
        if self.load.overbooked:
            self._rebalance()

    def finish(self) -> list[tuple[int, int]]:
        """[(stream or LINK, kernel)] of what ends next; that is `now` from then on."""
        self.now = self.next_end
        until = self.now + _SOON
        done = [(stream, index) for stream, (index, at, _) in self.running.items() if at <= until]
        for stream, index in done:
            del self.running[stream]
            self.load.add(self.work[index], -1)
        if self._shared:
            self._rebalance()
        else:
            self.next_end = min([at for _, at, _ in self.running.values()], default=inf)
        self._send()
        return done

    def _rebalance(self) -> None:
        """What is left of each kernel goes on at the rate that its share of the scarcest resource allows."""
        shares, now = self.load.shares(), self.now
        self._shared, next_end = min(shares) < 1.0, inf
        for stream, (index, at, old) in self.running.items():
            new = rate(self.work[index], shares)
            if new != old:
                at = now + (at - now) * old / new
                self.running[stream] = (index, at, new)
            next_end = min(next_end, at)
        self.next_end = next_end


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


def is_longer(
    order: Sequence[int],
    streams: Sequence[int],
    events: Sequence[tuple[int, int]],
    work: Sequence[Work],
    model: DeviceModel,
    most: float,
    latest: Sequence[float],
) -> bool:
    """Whether the kernels take longer than `most`: known as soon as one starts later than its `latest`."""
    device = _Device(order, streams, events, work, model)
    device.latest = latest
    return device.run().makespan > most or device.late


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
        self.awaiting: dict[int, list[int]] = {}
        for index, item in enumerate(work):
            self.missing[index] += len(item.awaits)
            for collective in item.awaits:
                self.awaiting.setdefault(collective, []).append(index)
        self.start, self.end = [nan] * len(work), [nan] * len(work)
        self.free_at = [0.0, *[model.stream_us] * (width - 1)]
        # (time, stream) of the kernels that only time keeps from starting; streams whose next kernel waits for cores.
        self.soon: list[tuple[float, int]] = []
        self.blocked: list[int] = []
        self.queued: set[int] = set()
        # The run is over when a kernel starts later than so.
        self.latest: Sequence[float] | None = None
        self.late = False

    def run(self) -> Simulation:
        for stream in range(len(self.queues)):
            self._ready(stream)
        while (self.device.running or self.soon) and not self.late:
            self._advance()
        stuck = tuple(sorted([*self.device.issued, *(index for queue in self.queues for index in queue)]))
        return Simulation(start=self.start, end=self.end, makespan=self.device.now, stuck=stuck)

    def _advance(self) -> None:
        device = self.device
        if self.soon and self.soon[0][0] < device.next_end:
            device.now, stream = heapq.heappop(self.soon)
            self._try(stream)
            return
        done = device.finish()
        woken = [other for stream, index in done for other in self._finish(stream, index)]
        for stream in dict.fromkeys([*woken, *[stream for stream, _ in done if stream != LINK]]):
            self._ready(stream)
        blocked, self.blocked = self.blocked, []
        for stream in blocked:
            self._try(stream)

    def _ready(self, stream: int) -> None:
        """The stream's next kernel starts now, soon, or when its last recorder is done."""
        queue = self.queues[stream]
        if not queue or self.missing[queue[-1]] or stream in self.device.running or stream in self.queued:
            return
        at = max(self.free_at[stream], self.earliest[queue[-1]])
        if at > self.device.now:
            heapq.heappush(self.soon, (at, stream))
            self.queued.add(stream)
        else:
            self._try(stream)

    def _try(self, stream: int) -> None:
        self.queued.discard(stream)
        index = self.queues[stream][-1]
        wanted = self.device.work[index]
        if not wanted.link and not self.device.load.admits(wanted):
            self.blocked.append(stream)
            self.queued.add(stream)
            return
        self.queues[stream].pop()
        self.start[index] = self.device.now
        if self.latest is not None and self.device.now > self.latest[index]:
            self.late = True
        if not self.device.start(stream, index):
            for other in (*self._release(stream, self.waiters.get(index, ()), self.model.event_us), stream):
                self._ready(other)

    def _finish(self, stream: int, index: int) -> list[int]:
        """Streams beside this one whose next kernel has waited for this kernel."""
        at = self.end[index] = self.device.now
        if stream != LINK:
            return self._release(stream, self.waiters.get(index, ()), self.model.event_us)
        self.start[index] = at - self.device.work[index].us
        return self._release(LINK, self.awaiting.get(index, ()), 0.0)

    def _release(self, stream: int, waiters: Sequence[int], event_us: float) -> list[int]:
        """One thing less that these kernels wait for; the streams beside this one that have one of them next."""
        through, woken = self.device.now + event_us, []
        for waiter in waiters:
            self.missing[waiter] -= 1
            self.earliest[waiter] = max(self.earliest[waiter], through)
            other = self.stream_of[waiter]
            if other != stream and self.queues[other] and self.queues[other][-1] == waiter:
                woken.append(other)
        return woken


def _share(there: float, wanted: float) -> float:
    return min(1.0, there / wanted) if wanted > 0 else 1.0
