"""How long kernels take on an NPU, as profiles of it say: times of each operator by size, with an interval.

Made by `npucompose profile import`, read for `streams.profile`. A table is a stranger's file: it is JSON, and
every number of it is checked.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from attrs import asdict, frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import read_text

SCHEMA = "npucompose.profile_table/1"
MOST_BYTES = 16 * 2**20
SAME_SIZE = 1e-3
"""Two sizes that differ by no more than this share are one."""
ENOUGH_ROWS = 5
"""From so many rows of one size on its own quantiles are its interval."""
COVERAGE = 0.8
"""The share of rows that lie in the interval, if the table is right: from the 10th to the 90th percentile."""


@frozen(kw_only=True)
class SizeTimes:
    """Times of one operator at one size, in microseconds: 10th percentile, median, 90th percentile."""

    size: float
    """Bytes; of a matrix product at least its operations divided by the table's `flops_per_byte`."""
    low_us: float
    middle_us: float
    high_us: float
    rows: int


@frozen(kw_only=True)
class Interval:
    """By which factors a time may differ from the median: `Interval(low=0.9, high=1.3, rows=80)`."""

    low: float
    high: float
    rows: int
    """From how many rows it was taken."""


@frozen(kw_only=True)
class Line:
    """A family's time by size: `start_us + us_per_byte * size`."""

    start_us: float
    us_per_byte: float

    def at(self, size: float) -> float:
        return self.start_us + self.us_per_byte * size


@frozen
class ProfileEstimate:
    low_us: float
    middle_us: float
    high_us: float
    samples: tuple[tuple[str, float], ...]
    """(operator, size) of the entries that it was made of."""
    rows: int
    """Rows of the profile in those entries."""


@frozen(kw_only=True, slots=False)
class ProfileTable:
    """One device's kernels."""

    soc: str
    cann: str
    """Version of CANN, as the person who made the profile says."""
    files: tuple[str, ...]
    rows: int
    """Kernels of the profile that the table was made of."""
    flops_per_byte: float
    families: Mapping[str, Mapping[str, tuple[SizeTimes, ...]]]
    """{family: {operator: entries, the sizes rising}}."""
    lines: Mapping[str, Line]
    """{family: of all its kernels together}."""
    repeats: Interval
    """Of one kernel at one size, from call to call."""
    new_sizes: Mapping[str, Interval]
    """{family: of a size that was not measured}: found by leaving each size out."""

    @property
    def words(self) -> str:
        """`591 rows of kernel_details.csv, ascend910b1, CANN 8.5.0`."""
        return f"{self.rows} rows of {', '.join(self.files)}, {self.soc}, CANN {self.cann}"

    @cached_property
    def new_operators(self) -> Interval:
        """Where the family has no interval of its own: the widest of all."""
        every = list(self.new_sizes.values()) or [self.repeats]
        return Interval(
            low=min(one.low for one in every), high=max(one.high for one in every), rows=sum(one.rows for one in every)
        )

    def estimate(self, family: str, operator: str, size: float) -> ProfileEstimate | None:
        """Of an operator that was profiled its own times, of another one the line of its family.

        Between two sizes of an operator on the straight line between their medians, beyond them with the slope of the
        family. None for a family without entries.
        """
        of_family = self.families.get(family)
        if not of_family:
            return None
        series = of_family.get(operator)
        if series is None:
            used = [(name, entry) for name, entries in of_family.items() for entry in entries]
            return self._estimate(self.lines[family].at(size), self.new_sizes.get(family, self.new_operators), used)
        measured = _same(series, size)
        if measured is None:
            used = [(operator, entry) for entry in _beside(series, size)]
            middle = _at(series, size, self.lines[family])
            return self._estimate(middle, self.new_sizes.get(family, self.new_operators), used)
        if measured.rows < ENOUGH_ROWS:
            return self._estimate(measured.middle_us, self.repeats, [(operator, measured)])
        samples = ((operator, measured.size),)
        return ProfileEstimate(measured.low_us, measured.middle_us, measured.high_us, samples, measured.rows)

    def _estimate(self, middle: float, interval: Interval, used: Sequence[tuple[str, SizeTimes]]) -> ProfileEstimate:
        return ProfileEstimate(
            middle * interval.low,
            middle,
            middle * interval.high,
            tuple((name, entry.size) for name, entry in used),
            sum(entry.rows for _, entry in used),
        )

    def as_text(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_text(cls, text: str, name: str) -> ProfileTable:
        """What `as_text` wrote; ConfigError for anything else."""
        try:
            data: Any = json.loads(text, parse_constant=_no_number)
            if not isinstance(data, dict) or cast("dict[str, Any]", data).get("schema") != SCHEMA:
                raise ConfigError(f"{name} is no table of a profile: `npucompose profile import` writes one.")
            table = _structured(cast("dict[str, Any]", data))
            problem = _problem(table)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"{name} is no whole table of a profile ({type(error).__name__}): import it again."
            ) from error
        if problem:
            raise ConfigError(f"{name}: {problem}. Import the profile again.")
        return table

    @classmethod
    def from_file(cls, path: Path) -> ProfileTable:
        return cls.from_text(read_text(path, MOST_BYTES), str(path))

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.as_text().encode()).hexdigest()[:16]


def _no_number(word: str) -> float:
    raise ValueError(word)


def _structured(data: Mapping[str, Any]) -> ProfileTable:
    families = {
        str(family): {
            str(name): tuple(SizeTimes(**{**row, "rows": int(row["rows"])}) for row in rows)
            for name, rows in operators.items()
        }
        for family, operators in data["families"].items()
    }
    return ProfileTable(
        soc=str(data["soc"]),
        cann=str(data["cann"]),
        files=tuple(map(str, data["files"])),
        rows=int(data["rows"]),
        flops_per_byte=float(data["flops_per_byte"]),
        families=families,
        lines={str(family): Line(**one) for family, one in data["lines"].items()},
        repeats=Interval(**data["repeats"]),
        new_sizes={str(family): Interval(**one) for family, one in data["new_sizes"].items()},
    )


def _problem(table: ProfileTable) -> str | None:
    """What of the numbers cannot be, in a few words."""
    entries = [rows for operators in table.families.values() for rows in operators.values()]
    if not entries or not all(entries):
        return "it has no times of kernels, or an operator without any"
    for rows in entries:
        times = [time for row in rows for time in (row.size, row.low_us, row.middle_us, row.high_us)]
        if not all(0 < time < 1e15 for time in times) or any(row.rows < 1 for row in rows):
            return "a size, a time or a number of rows is not positive"
        if any(not row.low_us <= row.middle_us <= row.high_us for row in rows):
            return "a median lies outside of its interval"
        if any(before.size >= after.size for before, after in pairwise(rows)):
            return "the sizes of an operator do not rise"
    if set(table.lines) != set(table.families):
        return "a family has no line"
    if not all(0 < one.start_us < 1e15 and 0 <= one.us_per_byte < 1e15 for one in table.lines.values()):
        return "a line has no positive time"
    intervals = (table.repeats, *table.new_sizes.values())
    if not all(0 < one.low <= 1 <= one.high < 1e6 for one in intervals) or not 0 < table.flops_per_byte < 1e9:
        return "an interval does not hold its median"
    return None


def _same(entries: Sequence[SizeTimes], size: float) -> SizeTimes | None:
    """The entry of that size."""
    return next((one for one in _beside(entries, size) if abs(one.size - size) <= SAME_SIZE * one.size), None)


def _beside(entries: Sequence[SizeTimes], size: float) -> Sequence[SizeTimes]:
    """The entries that an estimate for the size is made of: one, or the two around it."""
    after = bisect_left([entry.size for entry in entries], size)
    return entries[max(after - 1, 0) : after + 1]


def _at(entries: Sequence[SizeTimes], size: float, line: Line) -> float:
    """For a size that is none of the entries'."""
    first, last = entries[0], entries[-1]
    if size < first.size:
        return max(first.middle_us - line.us_per_byte * (first.size - size), min(line.start_us, first.middle_us))
    if size > last.size:
        return last.middle_us + line.us_per_byte * (size - last.size)
    after = bisect_left([entry.size for entry in entries], size)
    before, next_one = entries[after - 1], entries[after]
    share = (size - before.size) / (next_one.size - before.size)
    return before.middle_us * (1 - share) + next_one.middle_us * share
