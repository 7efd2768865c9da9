"""Cases of tables that were made of profiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from npucompose.schema.profile_table import Interval, Line, ProfileTable, SizeTimes
from tests.refusals.case import Case

Reading = Callable[[Path], Any]
TABLE = "npucompose.schema.profile_table"

ENTRY = SizeTimes(size=8.0, low_us=1.0, middle_us=2.0, high_us=3.0, rows=4)
KNOWN = ProfileTable(
    soc="a", cann="b", files=("p.csv",), rows=4, flops_per_byte=195.0, families={"pointwise": {"abs": (ENTRY,)}},
    lines={"pointwise": Line(start_us=1.0, us_per_byte=0.0)}, repeats=Interval(low=0.9, high=1.1, rows=4), new_sizes={},
)  # fmt: skip


def table(text: str) -> Reading:
    return lambda folder: ProfileTable.from_text(text, "t.json")


def changed(**fields: Any) -> Reading:
    return table(attrs.evolve(KNOWN, **fields).as_text())


def entries(*of_abs: SizeTimes) -> Reading:
    return changed(families={"pointwise": {"abs": of_abs}})


CASES = (
    Case(
        TABLE,
        "is no table of a profile",
        table('{"schema": 1}'),
        "t.json is no table of a profile",
        "is no whole table",
    ),
    Case(TABLE, "is no whole table", table("{"), "t.json is no whole table", "JSONDecodeError"),
    Case(
        TABLE,
        "_no_number :: raise ValueError",
        table(KNOWN.as_text().replace('"start_us": 1.0', '"start_us": NaN')),
        "is no whole table of a profile (ValueError)",
        "is no whole table of a profile (TypeError)",
    ),
    Case(TABLE, "Import the profile again", changed(families={}, lines={}), "t.json: it has no times of kernels"),
    Case(TABLE, "it has no times", changed(families={}, lines={}), "it has no times of kernels"),
    Case(
        TABLE,
        "a size, a time",
        entries(attrs.evolve(ENTRY, low_us=-1.0)),
        "a size, a time or a number of rows is not positive",
    ),
    Case(TABLE, "a median lies", entries(attrs.evolve(ENTRY, middle_us=4.0)), "a median lies outside of its interval"),
    Case(TABLE, "do not rise", entries(ENTRY, ENTRY), "the sizes of an operator do not rise"),
    Case(TABLE, "has no line", changed(lines={}), "a family has no line"),
    Case(
        TABLE,
        "a line has no positive time",
        changed(lines={"pointwise": Line(start_us=0.0, us_per_byte=0.0)}),
        "a line has no positive time",
    ),
    Case(
        TABLE,
        "does not hold its median",
        changed(repeats=Interval(low=2.0, high=3.0, rows=1)),
        "does not hold its median",
    ),
)
