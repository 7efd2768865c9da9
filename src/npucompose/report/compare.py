"""Runs beside each other: one table in three forms. What differs between two of them: see differences."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from rich.table import Table
from rich.text import Text

from npucompose.report.words import STATUS_STYLES, STATUS_WORDS, as_bytes, as_time
from npucompose.results.figures import CHOICES, MEASURED, Figures
from npucompose.results.record import Status

FRONT = "front"
"""The column that marks runs no other run beats, and what stands in it."""
HEADS: Mapping[str, str] = {
    "p50_us": "p50",
    "p99_us": "p99",
    "speedup": "× eager",
    "compile_s": "compile",
    "pool_bytes": "pool",
    "peak_rss_bytes": "peak",
}


@frozen(kw_only=True)
class Line:
    """One run in a table; `name` is what a person calls it: its folder, or what tells it from the others."""

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


def columns(lines: Sequence[Line]) -> tuple[str, ...]:
    """Choices that are not the same everywhere, and figures that somebody has."""
    values = {name: {getattr(line.figures, name) for line in lines} for name in (*CHOICES, *MEASURED)}
    varying = [name for name in CHOICES if len(values[name]) > 1]
    return (*varying, *(name for name in MEASURED if values[name] - {None}))


def as_table(lines: Sequence[Line]) -> Table:
    """For a terminal, where room is scarce: no choice that the names say already, and no process peak."""
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


def as_markdown(lines: Sequence[Line]) -> str:
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


def as_csv(lines: Sequence[Line]) -> str:
    """For a spreadsheet: every column, numbers in the units that their names say."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "status", FRONT, *CHOICES, *MEASURED, "error"])
    for line in lines:
        figures = attrs.asdict(line.figures)
        values = [figures[name] for name in (*CHOICES, *MEASURED)]
        writer.writerow([_harmless(v) for v in (line.name, line.status, mark(line), *values, line.error)])
    return text.getvalue()


def mark(line: Line) -> str:
    return FRONT if line.front else ""


def shown(line: Line, name: str) -> str:
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
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("\n", " "), ("[", "\\[")):
        text = text.replace(sign, safe)
    return text


def _harmless(value: Any) -> Any:
    """A spreadsheet takes a text that begins like this for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
