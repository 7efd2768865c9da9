"""The comparison page: many runs in one file that loads nothing. Table, Pareto plots, differences between any two.

Without a script it is a table in the order that was asked for, the plots, and the differences between the first two
runs. With the page's own script the table can be sorted, and any two runs can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from npucompose.report import html
from npucompose.report.compare import HEADS, Line, columns, mark, shown
from npucompose.report.differences import ABSENT, Difference, Fact, differences, facts
from npucompose.report.pareto import by_work, memory_is_pool, objectives, timed
from npucompose.report.pictures import Dot, scatter
from npucompose.report.words import STATUS_WORDS, as_bytes, as_count, as_time
from npucompose.results.figures import CHOICES
from npucompose.results.record import Report

MOST_PLOTS = 12
"""Kinds of work that are drawn; a sweep over more models is read in its table."""


@frozen(kw_only=True)
class Compared:
    """A line of the table with its report, where there is one."""

    line: Line
    report: Report | None = None


def render(runs: Sequence[Compared], counts: Mapping[str, int]) -> str:
    """The whole document; `counts` are those of all runs, of which `runs` may be the first few."""
    lines, total = [run.line for run in runs], sum(counts.values())
    names = columns(lines)
    kinds = list(_kinds(lines))
    return html.page(
        "comparison.html",
        as_count(len(runs), "run") if len(runs) == total else f"{len(runs)} of {total} runs",
        style="page.css wide.css",
        script="comparison.js",
        words=", ".join(f"{counts[s]} {name}" for s, name in STATUS_WORDS.items() if s in counts),
        heads=[("#", True), ("run", False), ("status", False), ("front", False), *map(_head, names)],
        rows=[_row(number, line, names) for number, line in enumerate(lines, start=1)],
        plots=kinds[:MOST_PLOTS],
        left_out=max(len(kinds) - MOST_PLOTS, 0),
        **_differences(runs),
    )


def _head(name: str) -> tuple[str, bool]:
    return HEADS.get(name, name), name not in CHOICES


def _row(number: int, line: Line, names: Sequence[str]) -> dict[str, Any]:
    """Figures are (words, what the column is sorted by, is it a number); nothing to sort by where there is no value."""
    return {
        "number": number,
        "name": _rest_of_name(line, names),
        "error": line.error,
        "status": line.status,
        "status_words": STATUS_WORDS[line.status],
        "mark": mark(line),
        "figures": [(shown(line, name), getattr(line.figures, name), name not in CHOICES) for name in names],
    }


def _rest_of_name(line: Line, names: Sequence[str]) -> str:
    """Without the choices that have a column of their own."""
    said = tuple(f"{name}=" for name in names if name in CHOICES)
    return " ".join(word for word in line.name.split(" ") if not word.startswith(said)) if said else line.name


def _kinds(lines: Sequence[Line]) -> Iterator[tuple[str, list[Any]]]:
    """(kind of work, its pictures) of those that two runs or more have in common."""
    runs = timed(lines)
    points = objectives(runs)
    for work, numbers in by_work(runs).items():
        known = [n for n in numbers if n in points]
        if len(known) < 2:
            continue
        memory = "pool" if memory_is_pool(runs[n] for n in known) else "process peak"
        axes = (("median latency", as_time), (memory, _bytes), ("compile time", _seconds))
        dots = [Dot(label=str(n + 1), name=lines[n].name, front=lines[n].front, at=points[n]) for n in known]
        yield (
            work,
            [
                scatter(dots, (x, y), (axes[x][0], axes[y][0]), (axes[x][1], axes[y][1]))
                for x, y in ((0, 1), (0, 2), (1, 2))
            ],
        )


def _bytes(value: float) -> str:
    return as_bytes(int(value))


def _seconds(value: float) -> str:
    return as_time(value * 1e6)


def _differences(runs: Sequence[Compared]) -> dict[str, Any]:
    reports = [(n, run.line.name, run.report) for n, run in enumerate(runs, start=1) if run.report is not None]
    if len(reports) < 2:
        return {"reports": []}
    (_, _, first), (_, _, second), *_ = reports
    return {
        "reports": [(number, name) for number, name, _ in reports],
        "differences": difference_rows(differences(first, second)),
        "facts": _packed({number: facts(report) for number, _, report in reports}),
    }


def difference_rows(found: Sequence[Difference]) -> list[tuple[str, ...]]:
    """Part, name, both values, who said them."""
    return [(d.part, d.name, d.one or ABSENT, d.other or ABSENT, " → ".join(filter(None, d.said_by))) for d in found]


def _packed(runs: Mapping[int, Sequence[Fact]]) -> dict[str, object]:
    """Every text and every name once: {texts: […], names: [[part, name], …], runs: {number: [[name, text, by], …]}}.

    Runs of one sweep have nearly everything in common; the page would be tens of times as large with all written out.
    """
    texts: dict[str, int] = {}
    names: dict[tuple[str, str], int] = {}
    packed: dict[int, list[list[int]]] = {}
    for number, found in runs.items():
        packed[number] = [
            [
                names.setdefault((fact.part, fact.name), len(names)),
                texts.setdefault(fact.text, len(texts)),
                texts.setdefault(fact.said_by, len(texts)),
            ]
            for fact in found
        ]
    return {"texts": list(texts), "names": [list(name) for name in names], "runs": packed}
