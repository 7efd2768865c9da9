"""The comparison page: many runs in one file that loads nothing. Table, Pareto plots, differences between any two.

Without a script it is a table in the order that was asked for, the plots, and the differences between the first two
runs. With the page's own script the table can be sorted, and any two runs can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from npucompose.report.compare import HEADS, Line, columns, mark, shown
from npucompose.report.comparison_script import SCRIPT
from npucompose.report.differences import ABSENT, Difference, Fact, differences, facts
from npucompose.report.html import status_chip
from npucompose.report.markup import Html, data_block, page, table, tag
from npucompose.report.pareto import by_work, memory_is_pool, objectives, timed
from npucompose.report.scatter import Dot, scatter
from npucompose.report.style import STYLE, WIDE
from npucompose.report.words import STATUS_WORDS, as_bytes, as_count, as_time
from npucompose.schema.figures import CHOICES
from npucompose.schema.record import Report

MOST_PLOTS = 12
"""Kinds of work that are drawn; a sweep over more models is read in its table."""


@frozen(kw_only=True)
class Compared:
    """A line of the table with its report, where there is one."""

    line: Line
    report: Report | None = None


def render(runs: Sequence[Compared], counts: Mapping[str, int]) -> str:
    """The whole document; `counts` are those of all runs, of which `runs` may be the first few."""
    lines = [run.line for run in runs]
    total = sum(counts.values())
    words = ", ".join(f"{counts[s]} {name}" for s, name in STATUS_WORDS.items() if s in counts)
    said = as_count(len(runs), "run") if len(runs) == total else f"{len(runs)} of {total} runs"
    head = tag("header", tag("h1", said), tag("p", words, class_="dim"))
    sections = (
        ("Runs", [_table(lines)]),
        ("Latency, memory and compile time", list(_plots(lines))),
        ("What differs between two runs", list(_differences(runs))),
    )
    shown_sections = (tag("section", tag("h2", name), *content) for name, content in sections if content)
    return page(said, STYLE + WIDE, head, *shown_sections, script=SCRIPT)


def _table(lines: Sequence[Line]) -> Html:
    names = columns(lines)
    heads = ["#", "run", "status", "front", *(HEADS.get(name, name) for name in names)]
    numeric = {"#", *(HEADS.get(name, name) for name in names if name not in CHOICES)}
    head = tag("tr", *(tag("th", name, scope="col", class_="number" if name in numeric else None) for name in heads))
    rows = (_row(number, line, names) for number, line in enumerate(lines, start=1))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows), id="runs"), class_="scroll")


def _row(number: int, line: Line, names: Sequence[str]) -> Html:
    """Each cell has in data-v what it is sorted by; nothing where it has no value."""
    name = _rest_of_name(line, names)
    cells = [
        tag("td", number, data_v=number, class_="number"),
        tag("td", name, tag("div", line.error, class_="dim") if line.error else None, data_v=name),
        tag("td", status_chip(line.status, STATUS_WORDS[line.status]), data_v=line.status),
        tag("td", mark(line), data_v=0 if line.front else 1),
    ]
    for name in names:
        value = getattr(line.figures, name)
        class_ = None if name in CHOICES else "number"
        cells.append(tag("td", shown(line, name), data_v=_sorted_by(value), class_=class_))
    return tag("tr", *cells)


def _rest_of_name(line: Line, names: Sequence[str]) -> str:
    """Without the choices that have a column of their own."""
    said = tuple(f"{name}=" for name in names if name in CHOICES)
    return " ".join(word for word in line.name.split(" ") if not word.startswith(said)) if said else line.name


def _sorted_by(value: object) -> str | None:
    """Numbers whole: `tag` would round them."""
    return None if value is None else str(value)


def _plots(lines: Sequence[Line]) -> Iterator[Html]:
    runs = timed(lines)
    points = objectives(runs)
    kinds = {work: [n for n in numbers if n in points] for work, numbers in by_work(runs).items()}
    kinds = {work: numbers for work, numbers in kinds.items() if len(numbers) > 1}
    if not kinds:
        return
    yield tag(
        "p",
        "Filled: on the front, no other run of the same work is as good in all three and better in one. Numbers are "
        "those of the table. A figure within 5 % of the smallest of its work is as good as that. Each picture shows "
        "two of the three figures, so that a run on the front may lie behind another in one of them.",
        class_="dim",
    )
    for work, numbers in list(kinds.items())[:MOST_PLOTS]:
        memory = "pool" if memory_is_pool(runs[n] for n in numbers) else "process peak"
        dots = [
            Dot(label=str(n + 1), name=lines[n].name, front=lines[n].front, at=points[n]) for n in numbers
        ]  # fmt: skip
        yield tag("h3", work)
        yield tag(
            "div",
            scatter(dots, (0, 1), ("median latency", memory), (as_time, _bytes)),
            scatter(dots, (0, 2), ("median latency", "compile time"), (as_time, _seconds)),
            scatter(dots, (1, 2), (memory, "compile time"), (_bytes, _seconds)),
            class_="plots",
        )
    if len(kinds) > MOST_PLOTS:
        yield tag("p", f"{len(kinds) - MOST_PLOTS} more kinds of work are in the table.", class_="dim")


def _bytes(value: float) -> str:
    return as_bytes(int(value))


def _seconds(value: float) -> str:
    return as_time(value * 1e6)


def _differences(runs: Sequence[Compared]) -> Iterator[Html]:
    told = [(number, run.line.name, run.report) for number, run in enumerate(runs, start=1) if run.report is not None]
    if len(told) < 2:
        return
    first, second = told[0], told[1]
    yield tag(
        "form", *(_choice(side, told, at) for at, side in enumerate(("one", "other"))), id="choose", hidden="hidden"
    )
    yield tag("p", f"{first[0]} {first[1]} → {second[0]} {second[1]}", id="pair")
    yield tag("div", difference_table(differences(first[2], second[2])), id="differences")
    yield tag(
        "noscript",
        tag(
            "p",
            "Any other two: npucompose report --diff RUN RUN. With scripts on they can be chosen here.",
            class_="dim",
        ),
    )
    yield data_block("facts", _packed({number: facts(report) for number, _, report in told}))


def _choice(side: str, told: Sequence[tuple[int, str, Report]], chosen: int) -> Html:
    options = (
        tag("option", f"{number} {name}", value=number, selected="selected" if at == chosen else None)
        for at, (number, name, _) in enumerate(told)
    )
    return tag("label", f"{side} ", tag("select", *options, id=side))


def difference_table(found: Sequence[Difference]) -> Html:
    """Part, name, both values, who said them; one sentence where nothing differs."""
    if not found:
        return tag("p", "Nothing differs.")
    rows = [
        (d.part, tag("code", d.name), d.one or ABSENT, d.other or ABSENT, " → ".join(filter(None, d.said_by)))
        for d in found
    ]
    return table(("part", "name", "one", "other", "said by"), rows, class_="prose")


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
