"""`npucompose profile import` and `… check`: a table of kernels' times, and how well a profile predicts."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from npucompose import commands
from npucompose.errors import ConfigError
from npucompose.results.artefacts import KernelTimes, read_artefact
from npucompose.schema.profile_table import COVERAGE, ProfileTable
from npucompose.vendor.devices import soc_of
from npucompose_devtools.profiles.table import Sized, flops_per_byte, made_of, quantile, sized

VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,39}")
OUT = "kernel_times.json"
FEWEST_ROWS = 20
"""Below that nothing is said of how well a profile predicts."""


@frozen
class Profile:
    """The kernels of one device's files."""

    soc: str
    ratio: float
    files: tuple[KernelTimes, ...]
    rows: tuple[Sized, ...]

    @property
    def left_out(self) -> Counter[str]:
        return sum((Counter(one.left_out) for one in self.files), Counter[str]())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.files)


def act_import(arguments: argparse.Namespace) -> int:
    """Write the table; exit status 2 and one paragraph where a file is no profile."""
    if not VERSION.fullmatch(arguments.cann):
        raise ConfigError(f"--cann {arguments.cann!r} is no version of CANN: write it as in 8.5.0.")
    profile = profile_of(arguments.files, arguments.soc)
    table = made_of(profile.rows, soc=profile.soc, cann=arguments.cann, files=profile.names, ratio=profile.ratio)
    out = Path(arguments.out or OUT)
    commands.write(out, table.as_text())
    print("\n".join(_table_lines(table, profile, out)))
    return 0


def act_check(arguments: argparse.Namespace) -> int:
    """Print how far predictions of held-out rows are off; 0 whatever comes out."""
    profile = profile_of(arguments.files, arguments.soc)
    if len(profile.rows) < FEWEST_ROWS:
        raise ConfigError(
            f"{', '.join(profile.names)}: {len(profile.rows)} kernels on the AI cores are too few to hold some out; "
            f"{FEWEST_ROWS} are needed."
        )
    found = held_out(profile.rows, profile.ratio)
    if arguments.json:
        answer = {"files": profile.names, "soc": profile.soc, "rows": len(profile.rows), "left_out": profile.left_out}
        print(json.dumps({**answer, "held_out": [_whole(one) for one in found]}, indent=2))
    else:
        print("\n".join(_check_lines(profile, found)))
    return 0


def profile_of(files: Sequence[str], soc: str) -> Profile:
    known = soc_of(soc)
    assert known is not None
    read: list[KernelTimes] = []
    for file in files:
        times = read_artefact(file).times
        if times is None:
            raise ConfigError(f"{file} is no profile of kernels: kernel_details.csv or op_summary_*.csv is read here.")
        read.append(times)
    ratio = flops_per_byte(known.model())
    rows = [row for one in read for row in one.rows]
    if not rows:
        raise ConfigError(f"{', '.join(one.name for one in read)}: no kernel on the AI cores with a time and shapes.")
    return Profile(known.name, ratio, tuple(read), tuple(sized(rows, ratio)))


def _table_lines(table: ProfileTable, profile: Profile, out: Path) -> Iterator[str]:
    yield f"{out}: {table.words}"
    yield from _left_out(profile)
    yield f"{'family':16} {'operators':>9} {'sizes':>6} {'rows':>6}   interval of a new size"
    for family, operators in sorted(table.families.items()):
        entries = [entry for rows in operators.values() for entry in rows]
        interval = table.new_sizes.get(family, table.new_operators)
        rows = sum(entry.rows for entry in entries)
        factors = f"x {interval.low:.2f} to x {interval.high:.2f} ({interval.rows} rows)"
        yield f"{family:16} {len(operators):9} {len(entries):6} {rows:6}   {factors}"
    repeats = table.repeats
    yield f"one kernel from call to call: x {repeats.low:.2f} to x {repeats.high:.2f} ({repeats.rows} rows)"
    yield f"use it: passes=stream_plan streams.profile={out}"


def _left_out(profile: Profile) -> Iterator[str]:
    if profile.left_out:
        words = ", ".join(f"{count} {why}" for why, count in profile.left_out.most_common())
        yield f"left out: {words}"


def _check_lines(profile: Profile, found: Sequence[HeldOut]) -> Iterator[str]:
    files = ", ".join(profile.names)
    yield f"{len(profile.rows)} rows of {files}, {profile.soc}; held out in {FOLDS} parts, each row once"
    yield from _left_out(profile)
    for one in found:
        yield ""
        yield f"{one.what}: {len(one.predicted)} of {one.rows} rows predicted"
        yield f"{'family':16} {'rows':>6} {'median error':>13} {'p90':>8} {'in the interval':>16}"
        for family in one.families:
            yield _row(family, one.of_family(family))
        yield _row("all", one)
        total = one.total_error
        if total is not None:
            yield f"all of them together: off by {total:.1%}; {COVERAGE:.0%} should lie in the interval"


def _row(name: str, one: HeldOut) -> str:
    if one.median_error is None or one.p90_error is None or one.coverage is None:
        return f"{name:16} {0:6}"
    return f"{name:16} {len(one.predicted):6} {one.median_error:13.1%} {one.p90_error:8.1%} {one.coverage:16.1%}"


def _whole(one: HeldOut) -> dict[str, object]:
    return {**one.as_dict(), "families": {family: one.of_family(family).as_dict() for family in one.families}}


# How well a profile predicts itself: rows are held out, predicted from the others and compared with their times.

FOLDS = 5


@frozen
class Predicted:
    family: str
    us: float
    """Measured."""
    guess_us: float
    covered: bool

    @property
    def error(self) -> float:
        """Share by which the prediction is off."""
        return abs(self.guess_us / self.us - 1)


@frozen(kw_only=True)
class HeldOut:
    """What came of one way to hold rows out."""

    what: str
    """`kernels that ran before` or `sizes that never ran`."""
    rows: int
    """Held out, each once."""
    predicted: tuple[Predicted, ...]
    """Of those for which something could be said."""

    @property
    def median_error(self) -> float | None:
        errors = sorted(one.error for one in self.predicted)
        return quantile(errors, 0.5) if errors else None

    @property
    def p90_error(self) -> float | None:
        errors = sorted(one.error for one in self.predicted)
        return quantile(errors, 0.9) if errors else None

    @property
    def coverage(self) -> float | None:
        """Share of the predicted rows whose time lies in the interval."""
        return sum(one.covered for one in self.predicted) / len(self.predicted) if self.predicted else None

    @property
    def total_error(self) -> float | None:
        """Share by which the sum of all predictions is off."""
        measured = sum(one.us for one in self.predicted)
        return abs(sum(one.guess_us for one in self.predicted) / measured - 1) if measured else None

    def of_family(self, family: str) -> HeldOut:
        return HeldOut(what=self.what, rows=self.rows, predicted=tuple(p for p in self.predicted if p.family == family))

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted({one.family for one in self.predicted}))

    def as_dict(self) -> dict[str, Any]:
        return {
            "held_out": self.what,
            "rows": self.rows,
            "predicted": len(self.predicted),
            "median_error": self.median_error,
            "p90_error": self.p90_error,
            "coverage": self.coverage,
            "total_error": self.total_error,
        }


def held_out(rows: Sequence[Sized], ratio: float) -> tuple[HeldOut, HeldOut]:
    """Two questions to one profile, each row held out once in one of five parts: single rows, whose kernels ran at that
    size in the other parts too; and all rows of a kernel and size together, which the other parts have never seen."""
    return (
        _by("single rows", rows, ratio, lambda at, one: f"row {one.row.line}"),
        _by("whole sizes", rows, ratio, lambda at, one: repr((one.row.type, one.row.inputs, one.row.outputs))),
    )


def _by(what: str, rows: Sequence[Sized], ratio: float, key: Callable[[int, Sized], str]) -> HeldOut:
    part = [_part(key(at, one)) for at, one in enumerate(rows)]
    predicted: list[Predicted] = []
    for fold in range(FOLDS):
        known = [one for one, of in zip(rows, part, strict=True) if of != fold]
        asked = [one for one, of in zip(rows, part, strict=True) if of == fold]
        if known and asked:
            predicted += _predictions(known, asked, ratio)
    return HeldOut(what=what, rows=len(rows), predicted=tuple(predicted))


def _part(key: str) -> int:
    """The same for the same key on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % FOLDS


def _predictions(known: Sequence[Sized], asked: Sequence[Sized], ratio: float) -> Iterator[Predicted]:
    table = made_of(known, soc="", cann="", files=("held out",), ratio=ratio)
    for one in asked:
        guess = table.estimate(*one.kernel)
        if guess is not None:
            us = one.row.us
            yield Predicted(one.feature.family, us, guess.middle_us, guess.low_us <= us <= guess.high_us)
