"""Runs beside each other: a table in three forms, and what differs between two of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen
from rich.table import Table
from rich.text import Text

from npucompose.report.words import STATUS_STYLES, STATUS_WORDS, as_bytes, as_time
from npucompose.schema.figures import CHOICES, MEASURED, Figures
from npucompose.schema.flat import flat
from npucompose.schema.record import Report, Status, facts_of

CUT = 60
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
    figures: Figures
    error: str | None = None


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
        table.add_row(Text(line.name), status, *(Text(_shown(line, name)) for name in names))
    return table


def as_markdown(lines: Sequence[Line]) -> str:
    """For a pull request."""
    names = columns(lines)
    rows = [["run", "status", *(HEADS.get(name, name) for name in names)]]
    rows.append(["---", "---", *("---" if name in CHOICES else "---:" for name in names)])
    rows += [[line.name, STATUS_WORDS[line.status], *(_shown(line, name) for name in names)] for line in lines]
    return "".join(f"| {' | '.join(map(_in_markdown, row))} |\n" for row in rows)


def as_csv(lines: Sequence[Line]) -> str:
    """For a spreadsheet: every column, numbers in the units that their names say."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "status", *CHOICES, *MEASURED, "error"])
    for line in lines:
        figures = attrs.asdict(line.figures)
        values = [figures[name] for name in (*CHOICES, *MEASURED)]
        writer.writerow([_harmless(v) for v in (line.name, line.status, *values, line.error)])
    return text.getvalue()


def _shown(line: Line, name: str) -> str:
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


@frozen(kw_only=True)
class Difference:
    """`Difference(part="configuration", name="mode.name", one="eager", other="reduce-overhead", …)`."""

    part: str
    """configuration, graph, environment or result."""
    name: str
    one: str
    other: str
    said_by: tuple[str, str] = ("", "")
    """Where each value came from; configuration only."""


def differences(one: Report, other: Report) -> tuple[Difference, ...]:
    """What is not the same in two runs: asked for, compiled, run on, come out."""
    return (*_configuration(one, other), *_graphs(one, other), *_environment(one, other), *_result(one, other))


def _configuration(one: Report, other: Report) -> Iterator[Difference]:
    for name, a, b in _unequal(flat(one.experiment), flat(other.experiment)):
        said_by = (origin(one.provenance, name), origin(other.provenance, name))
        yield Difference(part="configuration", name=name, one=a, other=b, said_by=said_by)


def origin(provenance: Mapping[str, str], name: str) -> str:
    """Of the value itself, or of what it lies in."""
    while name:
        if name in provenance:
            return provenance[name]
        name = name.rpartition(".")[0]
    return "default"


def _graphs(one: Report, other: Report) -> Iterator[Difference]:
    a, b = (
        {f"{g.id}.{f.name}": getattr(g, f.name) for g in r.graphs for f in attrs.fields(type(g))} for r in (one, other)
    )
    for name, x, y in _unequal(a, b):
        yield Difference(part="graph", name=name, one=x, other=y)
    c, d = ({f"{p.graph or ''}.{p.name}.matches".lstrip("."): p.matches for p in r.passes} for r in (one, other))
    for name, x, y in _unequal(c, d):
        yield Difference(part="graph", name=name, one=x, other=y)


def _environment(one: Report, other: Report) -> Iterator[Difference]:
    a, b = (flat(facts_of(r.environment)) if r.environment is not None else {} for r in (one, other))
    for name, x, y in _unequal(a, b):
        yield Difference(part="environment", name=name, one=x, other=y)


def _result(one: Report, other: Report) -> Iterator[Difference]:
    if one.status != other.status:
        yield Difference(part="result", name="status", one=one.status, other=other.status)
    a, b = (Line(name="", status=r.status, figures=Figures.of(r)) for r in (one, other))
    for name in MEASURED:
        if getattr(a.figures, name) != getattr(b.figures, name):
            yield Difference(part="result", name=name, one=_shown(a, name), other=_shown(b, name))


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys([*one, *other]):
        a, b = (_written(side[name]) if name in side else "" for side in (one, other))
        if a != b:
            yield name, a, b


def _written(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def difference_text(found: Sequence[Difference]) -> Text:
    """For a terminal: a heading for each part, a line for each difference, below it who said so."""
    text, before = Text(), ""
    for d in found:
        if d.part != before:
            text.append(f"{d.part}\n", style="bold")
        before = d.part
        text.append(f"  {d.name}  {d.one or '—'} → {d.other or '—'}\n")
        if any(d.said_by):
            text.append(f"    {d.said_by[0]} → {d.said_by[1]}\n", style="dim")
    return text


def difference_markdown(found: Sequence[Difference]) -> str:
    rows = [["", "", "one", "other", "said by"], ["---"] * 5]
    rows += [[d.part, d.name, d.one, d.other, " / ".join(d.said_by).strip(" /")] for d in found]
    return "".join(f"| {' | '.join(map(_in_markdown, row))} |\n" for row in rows)
