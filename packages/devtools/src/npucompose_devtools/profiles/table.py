"""A table of times made of a profile's rows: quantiles by operator and size, and how far predictions were off.

How far they may be off is found from the rows themselves: each size is left out once and predicted from the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, frozen

from npucompose.errors import ConfigError
from npucompose.results.artefacts import KernelTime
from npucompose.schema.profile_table import COVERAGE, SAME_SIZE, Interval, Line, ProfileTable, SizeTimes
from npucompose.streams.calibrated import PRODUCTS, Feature, of_row, product_flops
from npucompose.vendor.devices import DeviceModel

UNKNOWN_WIDTH = 2
"""Bytes of an element whose type a profile does not say: half precision, as most of what runs on an NPU."""
LOW, HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
ALONE = Interval(low=1.0, high=1.0, rows=0)
MOST_SLOPES = 200
FEWEST = 3
"""Ratios that an interval is taken from."""


@frozen
class Sized:
    """A row with what its time depends on."""

    row: KernelTime
    feature: Feature

    @property
    def kernel(self) -> tuple[str, str, float]:
        return self.feature.family, self.feature.operator, self.feature.size


def flops_per_byte(model: DeviceModel) -> float:
    """Operations of matrix products that the device does while it moves a byte."""
    return (model.cube or model.vector) * model.cube_gflops / model.gbytes_s


def sized(rows: Sequence[KernelTime], ratio: float) -> list[Sized]:
    return [Sized(row, _feature(row, ratio)) for row in rows]


def _feature(row: KernelTime, ratio: float) -> Feature:
    reads = _nbytes(row.inputs, row.input_bytes)
    made = sum(_nbytes(row.outputs, row.output_bytes))
    flops = 0.0
    if row.operator in PRODUCTS and len(row.inputs) > 1 and row.outputs:
        flops = product_flops(row.inputs[0], row.inputs[1], row.outputs[0]) / ratio
    return of_row(row.operator, row.type, reads, made, flops)


def _nbytes(shapes: Sequence[tuple[int, ...]], widths: Sequence[int]) -> list[float]:
    found: list[float] = []
    for shape, width in zip(shapes, widths, strict=True):
        count = 1.0
        for size in shape:
            count *= size
        found.append(count * (width or UNKNOWN_WIDTH))
    return found


def made_of(rows: Sequence[Sized], *, soc: str, cann: str, files: Sequence[str], ratio: float) -> ProfileTable:
    """The table; ConfigError where there is no row."""
    if not rows:
        raise ConfigError(f"{', '.join(files)}: no kernel on the AI cores with a time and shapes.")
    families = _families(rows)
    table = ProfileTable(
        soc=soc,
        cann=cann,
        files=tuple(files),
        rows=len(rows),
        flops_per_byte=ratio,
        families=families,
        lines={family: _line([e for entries in found.values() for e in entries]) for family, found in families.items()},
        repeats=ALONE,
        new_sizes={},
    )
    table = evolve(table, repeats=_interval(_repeats(rows, table)))
    ratios: dict[str, list[float]] = {}
    for family, found in _left_out(rows, table):
        ratios.setdefault(family, []).append(found)
    everything = [one for found in ratios.values() for one in found]
    new = {family: _interval(found if len(found) >= FEWEST else everything) for family, found in ratios.items()}
    return evolve(table, new_sizes=new)


def _families(rows: Sequence[Sized]) -> Mapping[str, Mapping[str, tuple[SizeTimes, ...]]]:
    times: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for one in rows:
        of_family = times.setdefault(one.feature.family, {})
        of_family.setdefault(one.feature.operator, []).append((one.feature.size, one.row.us))
    return {
        family: {operator: tuple(_entries(sorted(found))) for operator, found in operators.items()}
        for family, operators in times.items()
    }


def _entries(found: Sequence[tuple[float, float]]) -> Iterator[SizeTimes]:
    """Of (size, µs), the sizes rising."""
    for size, times in _by_size(found):
        yield SizeTimes(
            size=size,
            low_us=bound(times, LOW),
            middle_us=quantile(times, 0.5),
            high_us=bound(times, HIGH),
            rows=len(times),
        )


def _by_size(found: Sequence[tuple[float, float]]) -> Iterator[tuple[float, list[float]]]:
    """(size, its times, rising) of (size, µs), the sizes rising; what differs by SAME_SIZE at most is one size."""
    size, times = 0.0, list[float]()
    for other, us in found:
        if times and other > size * (1 + SAME_SIZE):
            yield size, sorted(times)
            times = []
        if not times:
            size = other
        times.append(us)
    if times:
        yield size, sorted(times)


def _line(entries: Sequence[SizeTimes]) -> Line:
    """Starts at the family's short kernels; of the slopes through each entry the one whose ratios are least off."""
    start = quantile(sorted(entry.middle_us for entry in entries), LOW)
    slopes = [max(entry.middle_us - start, 0.0) / entry.size for entry in entries]

    def off(slope: float) -> float:
        return sum(abs(math.log((start + slope * entry.size) / entry.middle_us)) for entry in entries)

    return Line(start_us=start, us_per_byte=min(_some(sorted(slopes)), key=off))


def _some(slopes: Sequence[float]) -> Sequence[float]:
    """All, or evenly so many that a large profile does not take its square in time."""
    step = max(1, len(slopes) // MOST_SLOPES)
    return slopes[::step]


def quantile(values: Sequence[float], share: float) -> float:
    """Of values that rise; between two of them a straight line. `quantile((1, 3), 0.5)` is 2."""
    place = share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def bound(values: Sequence[float], share: float) -> float:
    """The same of one more value that nobody has seen: an interval of few values is no narrower than they are."""
    place = min(max(share * (len(values) + 1) - 1, 0.0), len(values) - 1.0)
    return quantile(values, place / (len(values) - 1)) if len(values) > 1 else values[0]


def _repeats(rows: Sequence[Sized], table: ProfileTable) -> list[float]:
    """Each row's time divided by the median of its kernel and size, where that has several rows."""
    found: list[float] = []
    for one in rows:
        guess = table.estimate(*one.kernel)
        if guess is not None and guess.rows > 1:
            found.append(one.row.us / guess.middle_us)
    return found


def _left_out(rows: Sequence[Sized], table: ProfileTable) -> Iterator[tuple[str, float]]:
    """(family, time of a row divided by what is predicted without its size)."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in rows:
        times.setdefault(one.kernel[:2], []).append((one.feature.size, one.row.us))
    for (family, operator), found in times.items():
        entries = table.families[family][operator]
        for at, (size, of_size) in enumerate(_by_size(sorted(found))):
            beside = entries[max(at - 1, 0) : at] + entries[at + 1 : at + 2]  # an estimate looks no further
            rest = {**table.families[family], operator: beside}
            other = evolve(table, families={family: {name: left for name, left in rest.items() if left}})
            guess = other.estimate(family, operator, size)
            if guess is not None:
                yield from ((family, us / guess.middle_us) for us in of_size)


def _interval(ratios: Sequence[float]) -> Interval:
    """Of ratios to a median; it holds 1."""
    values = sorted(ratios)
    if not values:
        return ALONE
    return Interval(low=min(bound(values, LOW), 1.0), high=max(bound(values, HIGH), 1.0), rows=len(values))
