"""Kernels that run on a device at one time, and how they share its cores and memory bandwidth. Knows only numbers.

Kernels slow one another down by as much as the resource that each needs most is overbooked (`rates`, which everything
that simulates or schedules asks). A gang (a collective) starts when all its cores are free and then keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

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

    @property
    def demand(self) -> tuple[int, int, float, bool]:
        """All of it that `rates` reads: kernels of one demand that run at one time run at one rate."""
        return self.cube, self.vector, self.bandwidth, self.gang


def rates(running: Sequence[Work], model: DeviceModel) -> list[float]:
    """How fast each of these kernels runs beside the others; 1.0 is as fast as alone.

    Two that each fill all cube cores: [0.5, 0.5]. A gang's cores are its own; the others share what it leaves.
    """
    gangs = [work for work in running if work.gang]
    others = [work for work in running if not work.gang]
    cube = _share(model.cube - sum(work.cube for work in gangs), sum(work.cube for work in others))
    vector = _share(model.vector - sum(work.vector for work in gangs), sum(work.vector for work in others))
    memory = _share(1.0, sum(work.bandwidth for work in running))
    found: list[float] = []
    for work in running:
        needs = ((cube, work.cube and not work.gang), (vector, work.vector and not work.gang), (memory, work.bandwidth))
        found.append(min((share for share, needed in needs if needed), default=1.0))
    return found


def _share(there: float, wanted: float) -> float:
    return min(1.0, there / wanted) if wanted > 0 else 1.0


SOON = 1e-9
"""Microseconds, and shares of the bandwidth, that count as none: kernels that end together up to rounding."""


class SharedDevice:
    """The kernels that run now, one for each stream, from start to end.

    Time is `now`, which goes on with `finish` and may be set forward to any time before `next_end`.
    """

    def __init__(self, work: Sequence[Work], model: DeviceModel) -> None:
        self.work, self.model = work, model
        self.now = 0.0
        # {stream: [kernel, when it ends, its rate]}.
        self.running: dict[int, list[float]] = {}
        self.cube = self.vector = self.gang_cube = self.gang_vector = 0
        self.bandwidth = 0.0
        # Whether some kernel runs slower than with the device to itself.
        self._shared = False
        numbers: dict[tuple[int, int, float, bool], int] = {}
        self._demand = [numbers.setdefault(item.demand, len(numbers)) for item in work]
        # {the demands of all that runs, sorted: {demand: its rate}}: models repeat themselves.
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    def has_room(self, index: int) -> bool:
        """Whether the kernel may start: a gang needs its cores free, others a core that no gang keeps."""
        wanted = self.work[index]
        cube = self.cube if wanted.gang else self.gang_cube
        vector = self.vector if wanted.gang else self.gang_vector
        most = inf if wanted.gang else 1
        fits_cube = cube + min(most, wanted.cube) <= self.model.cube
        return fits_cube and vector + min(most, wanted.vector) <= self.model.vector

    def overbooking(self, index: int) -> float:
        """How often the scarcest resource that the kernel needs would be taken if it started now; 1.0 or more."""
        wanted, model, most = self.work[index], self.model, 1.0
        if wanted.cube and model.cube:
            most = max(most, (self.cube + wanted.cube) / model.cube)
        if wanted.vector:
            most = max(most, (self.vector + wanted.vector) / model.vector)
        return max(most, self.bandwidth + wanted.bandwidth) if wanted.bandwidth else most

    @property
    def next_end(self) -> float:
        """When the next kernel ends; inf where none runs."""
        return min([at for _, at, _ in self.running.values()], default=inf)

    def start(self, stream: int, index: int) -> None:
        """The kernel starts now on a stream where none runs."""
        wanted = self.work[index]
        self.running[stream] = [index, self.now + wanted.us, 1.0]
        self._book(wanted, 1)
        self._rebalance()

    def finish(self) -> list[tuple[int, int]]:
        """[(stream, kernel)] of what ends next; `now` is that time, and what is left goes on at its new rate."""
        self.now = self.next_end
        until = self.now + SOON
        done = [(stream, int(entry[0])) for stream, entry in self.running.items() if entry[1] <= until]
        for stream, index in done:
            del self.running[stream]
            self._book(self.work[index], -1)
        self._rebalance()
        return done

    def _book(self, wanted: Work, sign: int) -> None:
        self.cube += sign * wanted.cube
        self.vector += sign * wanted.vector
        self.bandwidth += sign * wanted.bandwidth
        if wanted.gang:
            self.gang_cube += sign * wanted.cube
            self.gang_vector += sign * wanted.vector

    def _rebalance(self) -> None:
        """What is left of each kernel goes on at its rate beside those that run now."""
        model = self.model
        over = self.cube > model.cube or self.vector > model.vector or self.bandwidth > 1.0 + SOON
        if not over and not self._shared:
            return
        self._shared, now, demand = over, self.now, self._demand
        rate_of = self._rates()
        for entry in self.running.values():
            rate = rate_of[demand[int(entry[0])]]
            if rate != entry[2]:
                entry[1] = now + (entry[1] - now) * entry[2] / rate
                entry[2] = rate

    def _rates(self) -> dict[int, float]:
        demand = self._demand
        indices = [int(entry[0]) for entry in self.running.values()]
        key = tuple(sorted([demand[index] for index in indices]))
        found = self._known.get(key)
        if found is None:
            fresh = rates([self.work[index] for index in indices], self.model)
            found = self._known[key] = {demand[index]: rate for index, rate in zip(indices, fresh, strict=True)}
        return found
