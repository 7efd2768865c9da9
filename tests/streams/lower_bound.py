"""A time that no plan of a graph can beat on so many streams: a plan is judged without knowing the best one.

Two parts, each a bound by itself. Paths: a kernel starts after what it needs; of several that it needs at most those
on its own stream spare the event, and those run one after the other (the argument by which A. Gerasoulis and T. Yang,
"DSC: scheduling parallel tasks on an unbounded number of processors", 1994, bound a join). Load: kernels that cannot
start before a time and have a time left behind them share the streams, cores and bandwidth of the window between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from npucompose.streams import dag
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import DeviceModel

WINDOWS = 32
"""So many earliest starts are tried as the beginning of a window; every end is."""


def lower_bound(then: dag.Successors, work: Sequence[Work], streams: int, model: DeviceModel) -> float:
    """Microseconds; edges go forward, kernels run on cores as they are given (no limits of cores, no collectives on a
    link). Two kernels of 5 µs on two streams that wake in 1 µs: 5.5."""
    alone = [_alone(item, model) for item in work]
    head = _heads(then, alone, model.event_us)
    tail = _tails(then, alone, model.event_us)
    paths = max((before + us + behind for before, us, behind in zip(head, alone, tail, strict=True)), default=0.0)
    return max(paths, _windows(alone, work, head, tail, streams, model))


def _alone(item: Work, model: DeviceModel) -> float:
    """With the device to itself; longer than it says where it wants more than there is."""
    most = max(_share(item.cube, model.cube), _share(item.vector, model.vector), item.bandwidth)
    return item.us * max(1.0, most)


def _share(wanted: int, there: int) -> float:
    return wanted / there if wanted else 0.0


def _heads(then: dag.Successors, alone: Sequence[float], event_us: float) -> list[float]:
    """The earliest start of each kernel."""
    head: list[float] = []
    for index, sources in enumerate(dag.predecessors(then)):
        ended = sorted({(head[source] + alone[source], source) for source in sources}, reverse=True)
        head.append(_joined(ended, head, alone, event_us))
        assert len(head) == index + 1
    return head


def _tails(then: dag.Successors, alone: Sequence[float], event_us: float) -> list[float]:
    """The least time from the end of each kernel to the end of all: its earliest start in the graph turned round."""
    last = len(then) - 1
    turned = [[last - source for source in sources] for sources in reversed(dag.predecessors(then))]
    return _heads(turned, alone[::-1], event_us)[::-1]


def _joined(
    ended: Sequence[tuple[float, int]], head: Sequence[float], alone: Sequence[float], event_us: float
) -> float:
    """The earliest start behind all of `ended` (end, kernel), latest first: the first so many on the same stream."""
    best = ended[0][0] + event_us if ended else 0.0
    for count in range(1, len(ended) + 1):
        at = 0.0
        for start, us in sorted((head[source], alone[source]) for _, source in ended[:count]):
            at = max(at, start) + us
        if at >= best:
            break  # more kernels on the stream end later still
        best = min(best, max(at, ended[count][0] + event_us) if count < len(ended) else at)
    return best


def _windows(
    alone: Sequence[float],
    work: Sequence[Work],
    head: Sequence[float],
    tail: Sequence[float],
    streams: int,
    model: DeviceModel,
) -> float:
    begins = sorted(set(head))
    by_tail = sorted(range(len(work)), key=lambda index: -tail[index])
    return max((
        _window(begin, [index for index in by_tail if head[index] >= begin], alone, work, tail, streams, model)
        for begin in begins[:: max(1, len(begins) // WINDOWS)]
    ), default=0.0)  # fmt: skip


def _window(
    begin: float,
    members: Sequence[int],
    alone: Sequence[float],
    work: Sequence[Work],
    tail: Sequence[float],
    streams: int,
    model: DeviceModel,
) -> float:
    """From `begin` to the least tail of each first part of `members`, which come longest tail first."""
    busy = accumulate(alone[index] for index in members)
    cube = accumulate(work[index].us * _share(work[index].cube, model.cube) for index in members)
    vector = accumulate(work[index].us * _share(work[index].vector, model.vector) for index in members)
    memory = accumulate(work[index].us * work[index].bandwidth for index in members)
    awake = max(begin, model.stream_us)
    best = 0.0
    for index, time, *loads in zip(members, busy, cube, vector, memory, strict=True):
        shared = min((time + begin + side * awake) / (side + 1) for side in range(streams))
        best = max(best, tail[index] + max(shared, begin + max(loads)))
    return best
