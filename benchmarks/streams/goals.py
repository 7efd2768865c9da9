"""What a benchmark has to show, each line met or missed with its figure, and what one part of it found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attrs import field, frozen
from rich.console import Console
from rich.table import Table


@frozen
class Goal:
    """`Goal("never slower than before", met=False, figure="layered on 2 streams: 1.030")`."""

    what: str
    met: bool
    figure: str

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'}: {self.what} ({self.figure})"


@frozen(kw_only=True)
class Part:
    """Tables to print, goals, and the figures as plain data."""

    tables: Sequence[Table] = ()
    goals: Sequence[Goal] = ()
    figures: Any = field(factory=dict)


def at_most(what: str, seconds: float, goal: float) -> Goal:
    """A goal in processor time: milliseconds are printed."""
    return Goal(f"{what}: at most {goal * 1e3:g} ms", seconds <= goal, f"{seconds * 1e3:.0f} ms")


def table_of(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


def say(what: str) -> None:
    """How far a long part is, beside the tables."""
    print(what, file=sys.stderr, flush=True)


def shown(part: Part, console: Console) -> bool:
    """Print it; whether every goal is met."""
    for table in part.tables:
        console.print(table)
    for goal in part.goals:
        console.print(str(goal), style="" if goal.met else "bold red", highlight=False, soft_wrap=True)
    return all(goal.met for goal in part.goals)
