"""A trace: how many rows (sequences, or tokens) each step of a server had."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import frozen

from npucompose.errors import ConfigError
from npucompose.input_safety import read_text

MOST_ROWS = 1_000_000
"""Of one step."""
MOST_STEPS = 10**12
"""Of one line."""
MOST_BYTES = 64 * 2**20
MOST_SIZES = 50_000
"""Different numbers of rows; planning takes some KiB for each."""
NUMBER = re.compile(r"[0-9]{1,13}", re.ASCII)


@frozen
class Trace:
    """`Trace.of([1, 3, 3]).steps` is `{1: 1, 3: 2}`: rows of a step, and how many steps had so many."""

    steps: Mapping[int, int]

    @classmethod
    def of(cls, rows: Iterable[int]) -> Trace:
        return cls(dict(sorted(Counter(rows).items())))

    @classmethod
    def from_csv(cls, path: Path) -> Trace:
        """A line for each step with its number of rows, or `rows,steps`; the first line may be a heading.

        ConfigError with the line of what is neither.
        """
        steps: Counter[int] = Counter()
        for number, cells in enumerate(_cells(path), 1):
            found = [cell.strip() for cell in cells]
            if not any(found) or (number == 1 and not NUMBER.fullmatch(found[0])):
                continue
            steps.update(_entry(found, f"{path}:{number}"))
        if len(steps) > MOST_SIZES:
            raise ConfigError(f"{path} has {len(steps):,} numbers of rows; at most {MOST_SIZES:,} are read.")
        if not steps:
            raise ConfigError(f"{path} has no step: a trace has a line for each, with its number of rows.")
        return cls(dict(sorted(steps.items())))

    def up_to(self, largest: int) -> Trace:
        return Trace({rows: steps for rows, steps in self.steps.items() if rows <= largest})

    @property
    def count(self) -> int:
        return sum(self.steps.values())

    @property
    def rows(self) -> int:
        return sum(rows * steps for rows, steps in self.steps.items())

    def padding(self, sizes: Iterable[int]) -> int:
        """Rows that are added where each step runs at the least size that holds it; steps above all sizes add none."""
        padding, waiting = 0, list(self.steps.items())
        for size in sorted(sizes):
            fits = [(rows, steps) for rows, steps in waiting if rows <= size]
            padding += sum((size - rows) * steps for rows, steps in fits)
            waiting = waiting[len(fits) :]
        return padding

    def share(self, padding: int) -> float:
        """Of so many added rows among all rows that are computed."""
        return padding / (self.rows + padding)


def _cells(path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(read_text(path, MOST_BYTES, named=True).splitlines())
    except csv.Error as error:
        raise ConfigError(f"{path} is no table: {error}.") from error


def _entry(cells: list[str], where: str) -> dict[int, int]:
    if len(cells) > 2 or not all(NUMBER.fullmatch(cell) for cell in cells):
        raise ConfigError(
            f"{where}: {','.join(cells)!r} is no step; a line is a number of rows, or `rows,steps`, as in `8,120`."
        )
    rows, steps = int(cells[0]), int(cells[1]) if len(cells) == 2 else 1
    if not 1 <= rows <= MOST_ROWS or steps > MOST_STEPS:
        raise ConfigError(f"{where}: a step has from 1 to {MOST_ROWS:,} rows, and a line at most {MOST_STEPS:,} steps.")
    return {rows: steps} if steps else {}
