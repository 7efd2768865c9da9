"""Dispatch in simulated time: a stream that is free takes, of all kernels that may start now, the one that pays most.

List scheduling (R. Graham, "Bounds on multiprocessing timing anomalies", 1969) in the time of the simulated device:
what runs beside a kernel slows it down, and a kernel that would overbook the device loses urgency by the time that this
costs, so that kernels run side by side which want different things. The same idea on GPUs: the launch order by demand
of A. Chen et al., "Opara: Exploiting Operator Parallelism for Expediting DNN Inference on GPUs", 2023.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from math import inf

from attrs import define, field, frozen

from npucompose.streams.simulate import LINK, SharedDevice
from npucompose.streams.strategies.instance import Assignment, Instance

LOOKED_AT = 24
"""So many of the most urgent kernels are weighed for a free stream; more cost time and change little."""


@frozen(kw_only=True)
class Policy:
    """What counts beside a kernel's urgency, which is microseconds to the end."""

    overbooking: float = 0.5
    """Price of each microsecond that the kernel would take longer than alone."""
    most_booked: float = inf
    """A kernel that would book a resource more often than so waits, unless nothing runs."""
    feeding: float = 0.0
    """Price of each microsecond until the kernel asks for the scarcest resource, as far as that lies idle: the short
    way to the machine that has most to do comes first, as in S. Johnson's rule for two machines, 1954."""


def dispatch(instance: Instance, policy: Policy, on: Sequence[int] | None = None) -> Assignment:
    """Kernels in the order in which they were started; with `on` each stays on that stream, and only order is chosen.

    A kernel's urgency is its heaviest path to the end.
    """
    return _Dispatch(instance, policy, on).run()


Ranked = list[tuple[float, int]]


@define
class _Ready:
    """Kernels that may start as soon as their events are through."""

    by_urgency: Ranked = field(factory=list)
    """(urgency with a minus, kernel)"""
    by_feeding: Ranked = field(factory=list)
    """(how long until it asks for the scarcest resource, kernel); empty where nobody asks."""

    def first(self, feeding: bool) -> list[int]:
        """Those to look at, the most urgent ones first."""
        found = [index for _, index in self.by_urgency[:LOOKED_AT]]
        return found + [index for _, index in self.by_feeding[:LOOKED_AT]] if feeding else found


class _Dispatch:
    def __init__(self, instance: Instance, policy: Policy, on: Sequence[int] | None) -> None:
        count, model = len(instance.work), instance.model
        self.instance, self.policy, self.on, self.urgency = instance, policy, on, instance.urgency
        self.device, self.event_us = SharedDevice(instance.work, model), model.event_us
        self.missing = [
            len(sources) + len(item.awaits) for sources, item in zip(instance.before, instance.work, strict=True)
        ]
        # {kernel on the link: those that await its end}.
        self.awaiting: dict[int, list[int]] = {}
        for index, item in enumerate(instance.work):
            for sent in item.awaits:
                self.awaiting.setdefault(sent, []).append(index)
        # One for all streams, or one for each where kernels have their streams.
        self.ready = [_Ready() for _ in range(instance.streams if on else 1)]
        self.free = list(range(instance.streams))
        self.awake = [0.0, *[model.stream_us] * (instance.streams - 1)]
        self.tail: list[int | None] = [None] * instance.streams
        self.stream_of, self.end, self.order = [0] * count, [0.0] * count, list[int]()
        # Of what is ready: from when it may start on any stream, and on which one from when on earlier.
        self.anywhere, self.home, self.at_home = [0.0] * count, [0] * count, [0.0] * count
        # When something that is ready can start that cannot now.
        self.soonest = inf

    def run(self) -> Assignment:
        self._release(index for index, missing in enumerate(self.missing) if not missing)
        while len(self.order) < len(self.missing):
            found = self._best()
            if found is None:
                self._wait()
            else:
                self._start(*found)
        return Assignment(streams=self.stream_of, ranked=self.order)

    def _release(self, indices: Iterable[int]) -> None:
        """Kernels all of whose predecessors are done."""
        for index in indices:
            ended = [(self.end[source], self.stream_of[source]) for source in self.instance.before[index]]
            if ended:
                last, home = max(ended)
                through = self.event_us
                self.home[index], self.anywhere[index] = home, last + through
                self.at_home[index] = max([at if stream == home else at + through for at, stream in ended])
            ready = self._ready_with(index)
            insort(ready.by_urgency, (-self.urgency[index], index))
            if self.policy.feeding:
                insort(ready.by_feeding, (self.instance.until_scarcest[index], index))

    def _ready_with(self, index: int) -> _Ready:
        return self.ready[self.on[index] if self.on else 0]

    def _best(self) -> tuple[int, int] | None:
        """(kernel, stream) of the highest score among what may start now."""
        self.soonest = inf
        if self.on is None:
            found = self._best_of(self.ready[0], self.free) if self.free else None
            return found and found[1:]
        each = [found for stream in self.free if (found := self._best_of(self.ready[stream], [stream]))]
        return max(each)[1:] if each else None

    def _best_of(self, ready: _Ready, streams: Sequence[int]) -> tuple[float, int, int] | None:
        """(score, kernel, stream); a price is never negative, so whoever is less urgent than the best score is not."""
        policy, load, work, urgency = self.policy, self.device.load, self.instance.work, self.urgency
        feeding = policy.feeding and policy.feeding * load.idle(self.instance.scarcest)
        best: tuple[float, int, int] | None = None
        for index in ready.first(bool(feeding)):
            least = best[0] if best else -inf
            if urgency[index] <= least:
                continue
            wanted = work[index]
            booked = load.booked_with(wanted)
            score = urgency[index] - policy.overbooking * wanted.us * (booked - 1.0)
            if feeding:
                score -= feeding * self.instance.until_scarcest[index]
            held = booked > policy.most_booked and self.device.running
            if score <= least or held or not (wanted.link or load.admits(wanted)):
                continue
            stream = self._place(index, streams)
            if stream is not None:
                best = score, index, stream
        return best

    def _place(self, index: int, streams: Sequence[int]) -> int | None:
        """The free stream that has the most predecessors, and one of them last."""
        now, sources = self.device.now, self.instance.before[index]
        best: tuple[int, bool, int] | None = None
        for stream in streams:
            at = max(self.at_home[index] if stream == self.home[index] else self.anywhere[index], self.awake[stream])
            if at > now:
                self.soonest = min(self.soonest, at)
                continue
            away = sum([self.stream_of[source] != stream for source in sources])
            rank = away, self.tail[stream] not in sources, stream
            if best is None or rank < best:
                best = rank
        return best and best[-1]

    def _start(self, index: int, stream: int) -> None:
        ready = self._ready_with(index)
        _drop(ready.by_urgency, (-self.urgency[index], index))
        if self.policy.feeding:
            _drop(ready.by_feeding, (self.instance.until_scarcest[index], index))
        self.free.remove(stream)
        self.stream_of[index], self.tail[stream] = stream, index
        self.order.append(index)
        if not self.device.start(stream, index):
            self._ended(stream, index)  # issued to the link, which leaves the stream free

    def _wait(self) -> None:
        """Until something ends, or can start."""
        if self.soonest < self.device.next_end:
            self.device.now = self.soonest
            return
        for stream, index in self.device.finish():
            if stream == LINK:
                self._reach(self.awaiting.get(index, ()))
            else:
                self._ended(stream, index)

    def _ended(self, stream: int, index: int) -> None:
        self.end[index] = self.device.now
        insort(self.free, stream)
        self._reach(self.instance.then[index])

    def _reach(self, targets: Iterable[int]) -> None:
        """One thing less that these kernels wait for."""
        released: list[int] = []
        for target in targets:
            self.missing[target] -= 1
            if not self.missing[target]:
                released.append(target)
        self._release(released)


def _drop(ranked: Ranked, entry: tuple[float, int]) -> None:
    del ranked[bisect_left(ranked, entry)]
