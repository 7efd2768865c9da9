"""The fastest plan of a few kernels: every plan in simulated time, as far as it may still become the fastest.

Depth-first branch and bound (A. Land, A. Doig, "An automatic method of solving discrete programming problems", 1960)
over the starts of kernels. A stream starts its next kernel as soon as that may start, so that a plan is told from all
others by one answer at each moment at which a kernel could start on a free stream: it does, or another kernel comes
first there. Time passes on the device that simulations run on, where what runs side by side shares cores and bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from attrs import define

from npucompose.streams import dag
from npucompose.streams.simulate import SharedDevice
from npucompose.streams.strategies.instance import Assignment, Instance, TimedPlan

KERNELS, STATES = 9, 8_000
"""So many kernels a graph has at most, and so many states are looked at, whatever the clock says: the same graph gets
the same plan."""
EXACT = 1e-9
"""Share of its time by which a plan has to be faster: less is rounding."""
WAITING, EMPTY, EMPTY_AND_AWAKE = -1, -2, -3
"""Stand for streams: that of a kernel that has not started, and any on which none has."""


def fastest(instance: Instance, known: TimedPlan, most_events: float = inf, states: int = STATES) -> TimedPlan:
    """The fastest plan of at most so many events; `known` where none is faster, or none was found in so many states.

    Kernels that start with all their cores or not at all, and those on a link, are not for it: `known`.
    """
    if len(instance.work) > KERNELS or any(item.gang or item.link for item in instance.work):
        return known
    return _Search(instance, known, most_events).run(states)


@define
class _State:
    """What has started by now, where, and what has ended."""

    device: SharedDevice
    on: list[int]
    """Of each kernel its stream, or WAITING."""
    end: list[float]
    """Of each kernel when it ended; inf until then."""
    order: list[int]
    """The kernels that have started."""
    refused: set[tuple[int, int]]
    """(kernel, stream): another kernel comes first there; an empty stream is the same as any other one."""

    def with_start(self, index: int, stream: int) -> _State:
        """The kernel starts now; whoever was refused there may come next."""
        other = self.with_refusals(pair for pair in self.refused if pair[1] != stream)
        other.device.start(stream, index)
        other.on[index] = stream
        other.order.append(index)
        return other

    def with_refusals(self, refused: Iterable[tuple[int, int]]) -> _State:
        return _State(self.device.copy(), [*self.on], [*self.end], [*self.order], set(refused))


class _Search:
    def __init__(self, instance: Instance, known: TimedPlan, most_events: float) -> None:
        self.instance, self.best, self.most_events = instance, known, most_events
        model, work = instance.model, instance.work
        self.event_us = model.event_us
        self.awake = [0.0, *[model.stream_us] * (instance.streams - 1)]
        asked = [(item.cube / max(1, model.cube), item.vector / model.vector, item.bandwidth) for item in work]
        # How many times as long a kernel takes that asks for more than there is, and the part of each resource that it
        # takes meanwhile.
        self.stretch = [max(1.0, *parts) for parts in asked]
        self.shares = [[part[kind] / most for part, most in zip(asked, self.stretch, strict=True)] for kind in range(3)]
        self.alone = [item.us * most for item, most in zip(work, self.stretch, strict=True)]
        self.tail = dag.longest_paths(self.alone, instance.then)
        self.shortest = min(self.alone)
        self.behind = [tail - us for tail, us in zip(self.tail, self.alone, strict=True)]
        self.by_urgency = sorted(range(len(work)), key=lambda index: (-self.tail[index], index))

    def run(self, states: int) -> TimedPlan:
        count = len(self.instance.work)
        device = SharedDevice(self.instance.work, self.instance.model)
        stack = [_State(device, [WAITING] * count, [inf] * count, [], set())]
        while stack and states:
            states -= 1
            # The kernel that starts comes first, the one that is refused later: good plans are found early.
            stack += self._branches(stack.pop())
        return self.best

    def _branches(self, state: _State) -> Iterator[_State]:
        """What may be answered at the next moment at which a kernel could start; none where no plan is left."""
        found = self._next_start(state)
        if found is None:
            if len(state.order) == len(self.alone):
                self._keep(state)
            return
        index, stream, kind = found
        for other in (state.with_refusals({*state.refused, (index, kind)}), state.with_start(index, stream)):
            if self._bound(other) < self._enough:
                yield other

    @property
    def _enough(self) -> float:
        return self.best.makespan * (1 - EXACT)

    def _keep(self, state: _State) -> None:
        plan = self.instance.realised(Assignment(streams=state.on, ranked=state.order))
        if len(plan.events) <= self.most_events and plan.makespan < self._enough:
            self.best = plan

    def _next_start(self, state: _State) -> tuple[int, int, int] | None:
        """(kernel, stream, what that is called in refusals) of what may start now, after time has passed if need be.

        None where nothing can start any more.
        """
        device = state.device
        while True:
            starts = list(self._starts(state))
            soonest = min([at for at, _ in starts], default=inf)
            if soonest <= device.now:
                return next(found for at, found in starts if at <= device.now)
            if soonest < device.next_end:
                device.now = soonest
            elif device.running:
                for _, index in device.finish():
                    state.end[index] = device.now
            else:
                return None

    def _starts(self, state: _State) -> Iterator[tuple[float, tuple[int, int, int]]]:
        """(when, what) of each kernel that waits for nothing that has not ended, the most urgent first."""
        streams = [pair for pair in self._streams(state) if pair[0] not in state.device.running]
        for index in self.by_urgency:
            missing = [source for source in self.instance.before[index] if state.end[source] == inf]
            if state.on[index] == WAITING and not missing:
                for stream, kind in streams:
                    if (index, kind) not in state.refused:
                        yield self._earliest(state, index, stream), (index, stream, kind)

    def _streams(self, state: _State) -> Iterator[tuple[int, int]]:
        """(stream, what it is called in refusals): of empty streams that wake at one time only the first.

        A kernel that was refused on an empty stream is refused on all that are like it: it would start at that time.
        """
        used, seen = set(state.on), set[float]()
        for stream, awake in enumerate(self.awake):
            if stream in used:
                yield stream, stream
            elif awake not in seen:
                seen.add(awake)
                yield stream, EMPTY if awake else EMPTY_AND_AWAKE

    def _earliest(self, state: _State, index: int, stream: int) -> float:
        """When the kernel may start on a stream where nothing runs; all that it needs has ended."""
        at = self.awake[stream]
        for source in self.instance.before[index]:
            through = state.end[source] + (self.event_us if state.on[source] != stream else 0.0)
            if through > at:
                at = through
        return at

    def _bound(self, state: _State) -> float:
        """A time that no plan beats which begins so: of paths, of streams, of cores and bandwidth."""
        now, running = state.device.now, state.device.running
        free = [max(now, awake) for awake in self.awake]
        head = [now] * len(self.alone)
        left = [0.0] * len(self.alone)
        for stream, (index, at, speed) in running.items():
            left[index] = (at - now) * speed * self.stretch[index]
            free[stream] = now + left[index]
        most = now
        for index, on in enumerate(state.on):
            if on == WAITING:
                left[index] = self.alone[index]
                head[index] = self._head(state, index, free, head, left)
            if left[index]:
                most = max(most, head[index] + left[index] + self.behind[index])
        waiting = sum([us for us, on in zip(left, state.on, strict=True) if on == WAITING])
        return max(most, (sum(free) + waiting) / len(free), *self._loads(head, left))

    def _head(
        self, state: _State, index: int, free: Sequence[float], head: Sequence[float], left: Sequence[float]
    ) -> float:
        """The earliest start of a kernel that waits; those that it needs have theirs."""
        sources = self.instance.before[index]
        through = max([head[source] + left[source] for source in sources if left[source]], default=state.device.now)
        if any(state.on[source] == WAITING for source in sources):
            return through
        found = inf
        for stream, kind in self._streams(state):
            at = free[stream] + (self.shortest if (index, kind) in state.refused else 0.0)
            for source in sources:
                ended = head[source] + left[source] if left[source] else state.end[source]
                at = max(at, ended + (self.event_us if state.on[source] != stream else 0.0))
            found = min(found, at)
        return found

    def _loads(self, head: Sequence[float], left: Sequence[float]) -> Iterator[float]:
        """Of each resource: from when it can be asked for, until what is behind those that ask for it can begin."""
        for shares in self.shares:
            users = [index for index, share in enumerate(shares) if share and left[index]]
            if users:
                taken = sum([shares[index] * left[index] for index in users])
                yield taken + min([head[index] for index in users]) + min([self.behind[index] for index in users])
