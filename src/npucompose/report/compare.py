"""Runs beside each other: one table in three forms, and which of them no other run beats.

A run that is slower and needs half the memory is on the front, too: nobody can say for another which counts more. A run
counts only when all three figures are known, and against runs of the same work. Differences of some percent count as
none: measured again, the same run would differ by as much, and each of many equal runs would come out as best once.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import attrs
from attrs import field, frozen
from rich.table import Table
from rich.text import Text

from npucompose.report.words import STATUS_STYLES, STATUS_WORDS, as_time
from npucompose.results.record import CHOICES, MEASURED, Figures, Status
from npucompose.schema.sizes import as_bytes

FRONT = "front"
"""The column that marks runs no other run beats, and what stands in it."""
HEADS: Mapping[str, str] = {
    "p50_us": "p50",
    "p99_us": "p99",
    "speedup": "speed-up over eager",
    "compile_s": "compile",
    "pool_bytes": "pool",
    "peak_rss_bytes": "peak",
    "token_rate": "tokens/s",
    "first_token_us": "first token",
    "per_token_us": "per token",
}

ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", "|": "\\|", "`": "\\`", "\n": " ", "[": "\\["})
K = TypeVar("K", bound=Hashable)
Point = tuple[float, float, float]

RIGHT: tuple[Status, ...] = ("ok", "expect_failed")
"""Statuses of runs whose speed says something."""
SAME = 1.05
"""Ratio below which a figure is as good as the smallest of its work; above, figures are compared in such steps."""
LEAST: Point = (1e-3, 1.0, 1e-3)
"""µs, bytes and seconds below which a figure counts as nothing (mode eager compiles in 0.1 µs)."""
STEPS = 1 / math.log(SAME)


@frozen(kw_only=True)
class RunLine:
    """One run in a table; `name` is what a person calls it: its folder, or what sets it apart from the others."""

    name: str
    status: Status
    figures: Figures = field(factory=Figures)
    error: str | None = None
    work: str = ""
    """What was computed: only runs of the same work compete. Empty: not known."""
    front: bool = False
    """No other run of the same work is as good in latency, memory and compile time and better in one."""
    folder: Path | None = None
    """Where its report.json lies."""


def columns(lines: Sequence[RunLine]) -> tuple[str, ...]:
    """Choices that are not the same everywhere, and figures that somebody has."""
    values = {name: {getattr(line.figures, name) for line in lines} for name in (*CHOICES, *MEASURED)}
    varying = [name for name in CHOICES if len(values[name]) > 1]
    return (*varying, *(name for name in MEASURED if values[name] - {None}))


def as_table(lines: Sequence[RunLine]) -> Table:
    """For a terminal, where space is scarce: no choice that the names say already, and no process peak."""
    said = {name for name in CHOICES if all(f"{name}=" in line.name for line in lines)}
    names = [name for name in columns(lines) if name not in said and name != "peak_rss_bytes"]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold", min_width=16)
    table.add_column("status", no_wrap=True)
    marked = any(line.front for line in lines)
    if marked:
        table.add_column(FRONT)
    for name in names:
        choice = name in CHOICES
        table.add_column(
            HEADS.get(name, name),
            overflow="fold",
            justify="left" if choice else "right",
            no_wrap=not choice,
            min_width=None if choice else 7,
        )
    for line in lines:
        status = Text(line.status, style=STATUS_STYLES.get(line.status, "bold red"))
        table.add_row(
            Text(line.name),
            status,
            *([Text(mark(line))] if marked else []),
            *(Text(shown(line, name)) for name in names),
        )
    return table


def as_markdown(lines: Sequence[RunLine]) -> str:
    """For a pull request."""
    names = columns(lines)
    marked = any(line.front for line in lines)
    front, rule = ([FRONT], ["---"]) if marked else ([], [])
    rows = [["run", "status", *front, *(HEADS.get(name, name) for name in names)]]
    rows.append(["---", "---", *rule, *("---" if name in CHOICES else "---:" for name in names)])
    rows += [
        [line.name, STATUS_WORDS[line.status], *([mark(line)] if marked else []), *(shown(line, n) for n in names)]
        for line in lines
    ]
    return markdown_table(rows)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, the head and its rule among them, with everything escaped that Markdown would act on."""
    return "".join(f"| {' | '.join(map(_in_markdown, row))} |\n" for row in rows)


def as_csv(lines: Sequence[RunLine]) -> str:
    """For a spreadsheet: every column, numbers in the units that their names say."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "status", FRONT, *CHOICES, *MEASURED, "error"])
    for line in lines:
        figures = attrs.asdict(line.figures)
        values = [figures[name] for name in (*CHOICES, *MEASURED)]
        writer.writerow([_harmless(v) for v in (line.name, line.status, mark(line), *values, line.error)])
    return text.getvalue()


def mark(line: RunLine) -> str:
    return FRONT if line.front else ""


def shown(line: RunLine, name: str) -> str:
    """A figure or a choice of a run in words, empty where it has none: `shown(line, "p50_us")` is `517.0 µs`."""
    value = getattr(line.figures, name)
    if value is None:
        return ""
    if name.endswith("_us"):
        return as_time(value)
    if name.endswith("_s"):
        return as_time(value * 1e6)
    if name.endswith("_bytes"):
        return as_bytes(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _in_markdown(text: str) -> str:
    return text.translate(ESCAPED)


def _harmless(value: Any) -> Any:
    """A spreadsheet takes a text that begins like this for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def front(points: Mapping[K, Point]) -> frozenset[K]:
    """Names of the points that no other one is at most as large as in all three and smaller in one.

    Equal points are on the front together. By the first objective, with a staircase of those that no earlier one beats
    in the other two, of which one rises and one falls: n log n.
    """
    found: list[K] = []
    second, third, steps = list[float](), list[float](), list[Point]()
    for name, point in sorted(points.items(), key=lambda item: item[1]):
        _, y, z = point
        at = bisect_right(second, y) - 1
        if at < 0 or third[at] > z:
            begin = end = bisect_left(second, y)
            while end < len(second) and third[end] >= z:
                end += 1
            second[begin:end], third[begin:end], steps[begin:end] = [y], [z], [point]
        elif steps[at] != point:
            continue
        found.append(name)
    return frozenset(found)


def rounded(points: Mapping[K, Point]) -> dict[K, Point]:
    """The points in steps of 5 % from the smallest of each figure: what is within 5 % of the best is as good as it."""
    if not points:
        return {}
    figures = zip(*points.values(), strict=True)
    small = [max(min(values), least) for values, least in zip(figures, LEAST, strict=True)]

    def steps(n: int, value: float) -> float:
        return float(int(math.log(max(value, small[n]) / small[n]) * STEPS))

    return {name: (steps(0, us), steps(1, memory), steps(2, s)) for name, (us, memory, s) in points.items()}


class Timed(NamedTuple):
    """What competes of a run that was timed and came out right."""

    work: str
    p50_us: float
    pool_bytes: int | None
    peak_rss_bytes: int | None
    compile_s: float | None


def timed(lines: Sequence[RunLine]) -> dict[int, Timed]:
    """{number of a line: its figures} of those that did their work right and were timed."""
    return {
        n: Timed(line.work, f.p50_us, f.pool_bytes, f.peak_rss_bytes, f.compile_s)
        for n, (line, f) in enumerate((line, line.figures) for line in lines)
        if line.status in RIGHT and f.p50_us is not None
    }


def by_work(runs: Mapping[K, Timed]) -> dict[str, list[K]]:
    """{work: who did it}, in the order given."""
    found: dict[str, list[K]] = {}
    for name, run in runs.items():
        found.setdefault(run.work, []).append(name)
    return found


def memory_is_pool(runs: Iterable[Timed]) -> bool:
    """The planned pool where every run of the same work has one, else the peak of the process: one of them for all."""
    return all(run.pool_bytes is not None for run in runs)


def objectives(runs: Mapping[K, Timed]) -> dict[K, Point]:
    """{name: (p50 in µs, bytes, compile in s)} of those of which all three are known."""
    found: dict[K, Point] = {}
    for names in by_work(runs).values():
        planned = memory_is_pool(runs[name] for name in names)
        for name in names:
            _, p50_us, pool, peak, compile_s = runs[name]
            memory = pool if planned else peak
            if memory is not None and compile_s is not None:
                found[name] = (p50_us, float(memory), compile_s)
    return found


def best(runs: Mapping[K, Timed]) -> frozenset[K]:
    """Those on the front of their work."""
    points = objectives(runs)
    works = by_work(runs).values()
    fronts = (front(rounded({name: points[name] for name in names if name in points})) for names in works)
    return frozenset[K]().union(*fronts)


def with_front(lines: Sequence[RunLine]) -> tuple[RunLine, ...]:
    """The lines, those on the front of their work marked."""
    marked = best(timed(lines))
    return tuple(attrs.evolve(line, front=n in marked) for n, line in enumerate(lines))
