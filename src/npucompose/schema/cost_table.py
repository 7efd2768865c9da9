"""How long kernels take on this machine, as measured once: samples of each operator by size, and how sure they are."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from operator import attrgetter
from statistics import geometric_mean
from typing import Any

from attrs import asdict, frozen

from npucompose.vendor.devices import DeviceModel

WORTH_ANOTHER = timedelta(hours=1)
BUSY = 0.5
"""Where the middle times of kernels are longer than the low ones by this share, the machine had other work to do."""


@frozen(kw_only=True)
class Sample:
    """One kernel in microseconds, on one thread and on all that torch takes: low and middle quantiles."""

    size: float
    """What its time depends on: operations of a product, bytes of anything else."""
    one_us: float
    all_us: float
    one_middle_us: float
    all_middle_us: float

    def shortest(self, other: Sample) -> Sample:
        """Of the same kernel, measured twice: the shorter of each time."""
        return Sample(**{name: min(value, getattr(other, name)) for name, value in asdict(self).items()})


@frozen
class Estimate:
    """`one_us` and `all_us` may each be longer by the share `doubt`."""

    one_us: float
    all_us: float
    doubt: float


_one_us, _all_us = attrgetter("one_us"), attrgetter("all_us")
_one_middle_us, _all_middle_us = attrgetter("one_middle_us"), attrgetter("all_middle_us")


@frozen(kw_only=True, slots=False)
class CostTable:
    """What was measured on this machine with so many threads for a kernel on one stream."""

    threads: int
    created: str
    """When, in ISO 8601 and UTC."""
    stream_us: float
    """Until the first kernel of a side stream starts."""
    event_us: float
    families: Mapping[str, Mapping[str, tuple[Sample, ...]]]
    """{family: {operator: samples, the sizes rising}}."""

    def estimate(self, family: str, operator: str, size: float) -> Estimate | None:
        """Of a kernel that was measured itself its own samples, of another one the geometric mean of its family's.

        Between two sizes a straight line on logarithmic scales; below the smallest its time (a call costs what it
        costs), beyond the largest in proportion. None for a family without samples.
        """
        of_family = self.families.get(family, {})
        own = of_family.get(operator)
        if not of_family:
            return None
        series = [own] if own is not None else list(of_family.values())
        one, every, one_middle, all_middle = (
            [_at(samples, size, time) for samples in series]
            for time in (_one_us, _all_us, _one_middle_us, _all_middle_us)
        )
        low, high = (geometric_mean(one), geometric_mean(every)), (max(one_middle), max(all_middle))
        return Estimate(*low, max(after / before - 1 for before, after in zip(low, high, strict=True)))

    @cached_property
    def spread(self) -> float:
        """By which share the middle times of all samples are longer than the low ones, on one thread or on all."""
        samples = [one for operators in self.families.values() for series in operators.values() for one in series]
        low = (sum(one.one_us for one in samples), sum(one.all_us for one in samples))
        middle = (sum(one.one_middle_us for one in samples), sum(one.all_middle_us for one in samples))
        return max((after / before - 1 for before, after in zip(low, middle, strict=True) if before), default=0.0)

    def is_doubtful(self, now: datetime) -> bool:
        """Whether it was measured on a busy machine, and so long ago that this may be over."""
        return self.spread > BUSY and now - datetime.fromisoformat(self.created) > WORTH_ANOTHER

    def onto(self, model: DeviceModel) -> DeviceModel:
        """`model` with the figures that were measured; what lies between two kernels is in their times."""
        return model.measured(f"CPU with {max(model.vector, 1)} cores, calibrated", self.stream_us, self.event_us)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostTable:
        """What `as_dict` made; ValueError, TypeError or KeyError for anything else."""
        families = {
            family: {name: tuple(Sample(**row) for row in rows) for name, rows in operators.items()}
            for family, operators in data["families"].items()
        }
        if not all(rows for operators in families.values() for rows in operators.values()):
            raise ValueError("an operator without samples")
        values: dict[str, Any] = {**data, "families": families}
        return cls(**values)


def _at(samples: Sequence[Sample], size: float, time: Callable[[Sample], float]) -> float:
    times = [max(time(sample), 1e-3) for sample in samples]
    after = bisect_left([sample.size for sample in samples], size)
    if after == 0:
        return times[0]
    before = samples[after - 1]
    if after == len(samples):
        return times[-1] * size / before.size
    share = math.log(size / before.size) / math.log(samples[after].size / before.size)
    return math.exp(math.log(times[after - 1]) * (1 - share) + math.log(times[after]) * share)


MakeCostTable = Callable[[], CostTable | None]
"""The table of this machine, measured where there is none; None where nothing can be measured."""
