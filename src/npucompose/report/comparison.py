"""What differs between two runs: asked for, compiled, run on, come out; who said so; and which of the two is faster.

A run is laid out as facts, one word of text for each name of each part; two runs differ where their texts do.

The comparison page has many runs in one file that loads nothing: table, Pareto plots, differences between any two.
Without a script it is a table in the order that was asked for, the plots, and the differences between the first two
runs. With the page's own script the table can be sorted, and any two runs can be chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import quantiles
from typing import Any

import attrs
from attrs import frozen
from rich.text import Text

from npucompose.report import html
from npucompose.report.compare import (
    HEADS,
    RunLine,
    by_work,
    columns,
    mark,
    markdown_table,
    memory_is_pool,
    objectives,
    shown,
    timed,
)
from npucompose.report.pictures import Dot, scatter
from npucompose.report.words import STATUS_WORDS, as_count, as_time, written
from npucompose.results.effective import origin
from npucompose.results.measured import Numerics
from npucompose.results.record import CHOICES, MEASURED, Figures, Report, choice_name
from npucompose.schema.sizes import as_bytes
from npucompose.table.structure import facts_of, flat

CUT = 60
"""Characters of a value that are shown; whole values are compared."""
ABSENT = "—"
WORK = ("model", "shapes", "seed", "compile")
"""Fields of an experiment that say what is computed; runs that differ in one of them do not compete."""
NOISE = 0.05
"""Two runs are two processes: differences up to this share count as none."""

MOST_PLOTS = 12
"""Kinds of work that are drawn; a sweep over more models is read in its table."""


@frozen(kw_only=True)
class Fact:
    """`Fact(part="configuration", name="mode.name", text="eager", said_by="command line")`."""

    part: str
    """configuration, in effect, graph, environment or result."""
    name: str
    text: str
    said_by: str = ""
    """Where the value came from; configuration only."""


@frozen(kw_only=True)
class RunDifference:
    """`RunDifference(part="configuration", name="mode.name", one="eager", other="reduce-overhead", …)`."""

    part: str
    name: str
    one: str
    other: str
    said_by: tuple[str, str] = ("", "")


def facts(report: Report) -> tuple[Fact, ...]:
    """Everything of a run that is compared, part for part."""
    environment = flat(facts_of(report.environment)) if report.environment is not None else {}
    parts: dict[str, Iterable[tuple[str, Any]]] = {
        "in effect": ((one.option, f"{written(one.effective)}: {one.why}") for one in report.effective),
        "graph": _graphs(report),
        "environment": environment.items(),
        "result": _result(report),
    }
    options = flat(report.experiment).items()
    return (
        *(
            Fact(part="configuration", name=name, text=written(value), said_by=origin(report.provenance, name))
            for name, value in options
        ),
        *(Fact(part=part, name=name, text=written(v)) for part, values in parts.items() for name, v in values),
    )


def _graphs(report: Report) -> Iterator[tuple[str, Any]]:
    for graph in report.graphs:
        yield from ((f"{graph.id}.{name}", value) for name, value in facts_of(graph).items() if name != "winners")
        yield from ((f"{graph.id}.{one.key}", one.winner) for one in graph.winners)
    for one in report.passes:
        yield f"{one.graph or ''}.{one.name}.matches".lstrip("."), one.matches
    if report.streams is not None:
        yield "streams", report.streams.streams
        yield "events", report.streams.events
    if report.sinking is not None:
        yield "sinking.path", report.sinking.path
        yield from ((f"sinking.{name}", verdict.value) for name, verdict in report.sinking.verdicts().items())


def _result(report: Report) -> Iterator[tuple[str, Any]]:
    yield "status", report.status
    if report.error:
        yield "error", report.error
    if report.numerics is not None:
        yield from (
            (f"numerics.{name}", getattr(report.numerics, name)) for name in ("bitwise", "passed", "max_abs_err")
        )
    line = RunLine(name="", status=report.status, figures=Figures.from_report(report))
    yield from ((name, words) for name in MEASURED if (words := shown(line, name)))


def differences(one: Report, other: Report) -> tuple[RunDifference, ...]:
    """What is not the same in two runs; a name that only one of them has is absent (empty) in the other."""
    a, b = ({(fact.part, fact.name): fact for fact in facts(report)} for report in (one, other))
    parts = tuple(dict.fromkeys(part for part, _ in (*a, *b)))
    found: list[RunDifference] = []
    for part, name in sorted(dict.fromkeys((*a, *b)), key=lambda key: parts.index(key[0])):
        absent = Fact(part=part, name=name, text="")
        x, y = a.get((part, name), absent), b.get((part, name), absent)
        if x.text != y.text:
            text, other_text = beside_each_other(x.text, y.text)
            said_by = (x.said_by, y.said_by)
            found.append(RunDifference(part=part, name=name, one=text, other=other_text, said_by=said_by))
    return tuple(found)


def beside_each_other(one: str, other: str) -> tuple[str, str]:
    """Both cut to where they differ: `("a…a1", "a…a2")` of two long texts that differ at their end."""
    if len(one) <= CUT and len(other) <= CUT:
        return one, other
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - CUT // 2)
    return _window(one, start), _window(other, start)


def _window(text: str, start: int) -> str:
    return f"{'…' if start else ''}{text[start : start + CUT]}{'…' if start + CUT < len(text) else ''}"


def difference_text(found: Sequence[RunDifference]) -> Text:
    """For a terminal: a heading for each part, a line for each difference, below it who said so."""
    text, before = Text(), ""
    for d in found:
        if d.part != before:
            text.append(f"{d.part}\n", style="bold")
        before = d.part
        text.append(f"  {d.name}  {d.one or ABSENT} → {d.other or ABSENT}\n")
        if any(d.said_by):
            text.append(f"    {d.said_by[0] or ABSENT} → {d.said_by[1] or ABSENT}\n", style="dim")
    return text


def difference_markdown(found: Sequence[RunDifference]) -> str:
    rows = [["", "", "one", "other", "said by"], ["---"] * 5]
    rows += [[d.part, d.name, d.one, d.other, " / ".join(d.said_by).strip(" /")] for d in found]
    return markdown_table(rows)


def as_json(found: Sequence[RunDifference]) -> str:
    return json.dumps([attrs.asdict(d) for d in found], indent=2, ensure_ascii=False)


@frozen(kw_only=True)
class Speed:
    """How many times as fast as eager: the median and the quartiles over the rounds of a benchmark."""

    name: str
    report: Report
    low: float
    middle: float
    high: float


def verdict(one: Report, other: Report) -> str | None:
    """`mode=max-autotune is 1.38 × as fast as mode=reduce-overhead: medians 611.0 µs and 842.0 µs, …`.

    The ratio is that of the speed-ups, each measured against eager in its own process, so that a slower hour of the
    machine cancels. None where the two did other work, or one was not measured.
    """
    if any(one.experiment.get(field) != other.experiment.get(field) for field in WORK) or _device(one) != _device(
        other
    ):
        return None
    speeds = [_speed(name, report) for name, report in zip(_names(one, other), (one, other), strict=True)]
    found = sorted((s for s in speeds if s is not None), key=lambda s: -s.middle)
    if len(found) < 2:
        return None
    fast, slow = found
    ratio = fast.middle / slow.middle
    says = f"{fast.name} is {ratio:.2f} × as fast as {slow.name}"
    if ratio <= 1 + NOISE:
        says = f"{fast.name} and {slow.name} are equally fast within {NOISE:.0%} ({ratio:.2f} ×)"
    elif fast.low <= slow.high:
        says = f"{fast.name} and {slow.name} cannot be told apart ({ratio:.2f} ×, and the quartiles overlap)"
    return (
        f"{says}: medians {_median(fast.report)} and {_median(slow.report)}, speed-up over eager "
        f"{fast.middle:.2f} and {slow.middle:.2f}, each against eager in its own process. "
        f"{fast.name} {_agrees(fast.report.numerics)}, {slow.name} {_agrees(slow.report.numerics)}."
    )


def _speed(name: str, report: Report) -> Speed | None:
    """None for a run without a measurement, or with wrong results."""
    times = report.stages.benchmark
    middle = times.speedup.get("eager") if times is not None else None
    if times is None or middle is None or report.status == "numerics_failed":
        return None
    eager = times.baselines["eager"].samples_us if "eager" in times.baselines else ()
    ratios = [e / own for e, own in zip(eager, times.samples_us, strict=False)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
    return Speed(name=name, report=report, low=low, middle=middle, high=high)


def _median(report: Report) -> str:
    return as_time(report.stages.benchmark.p50_us) if report.stages.benchmark is not None else ""


def _device(report: Report) -> tuple[Any, Any]:
    environment = report.environment
    return choice_name(report.experiment, "target"), environment.cpu if environment else None


def _names(one: Report, other: Report) -> tuple[str, str]:
    modes = tuple(choice_name(report.experiment, "mode") for report in (one, other))
    return (f"mode={modes[0]}", f"mode={modes[1]}") if modes[0] != modes[1] else ("the first run", "the second run")


def _agrees(numerics: Numerics | None) -> str:
    if numerics is None:
        return "was not compared with eager"
    if numerics.bitwise:
        return "equals eager bit for bit"
    if numerics.passed and numerics.max_abs_err is not None:
        return f"agrees with eager (largest difference {numerics.max_abs_err:.1e})"
    return "does not agree with eager"


@frozen(kw_only=True)
class ComparedRun:
    """A line of the table with its report, where there is one."""

    line: RunLine
    report: Report | None = None


def render(runs: Sequence[ComparedRun], counts: Mapping[str, int]) -> str:
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
        heads=[
            ("#", True),
            ("run", False),
            ("status", False),
            ("front", False),
            *((HEADS.get(name, name), name not in CHOICES) for name in names),
        ],
        rows=[_row(number, line, names) for number, line in enumerate(lines, start=1)],
        plots=kinds[:MOST_PLOTS],
        left_out=max(len(kinds) - MOST_PLOTS, 0),
        **_differences(runs),
    )


def _row(number: int, line: RunLine, names: Sequence[str]) -> dict[str, Any]:
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


def _rest_of_name(line: RunLine, names: Sequence[str]) -> str:
    """Without the choices that have a column of their own."""
    said = tuple(f"{name}=" for name in names if name in CHOICES)
    return " ".join(word for word in line.name.split(" ") if not word.startswith(said)) if said else line.name


def _kinds(lines: Sequence[RunLine]) -> Iterator[tuple[str, list[Any]]]:
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


def _differences(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    reports = [(n, run.line.name, run.report) for n, run in enumerate(runs, start=1) if run.report is not None]
    if len(reports) < 2:
        return {"reports": []}
    (_, _, first), (_, _, second), *_ = reports
    return {
        "reports": [(number, name) for number, name, _ in reports],
        "differences": [
            (d.part, d.name, d.one or ABSENT, d.other or ABSENT, " → ".join(filter(None, d.said_by)))
            for d in differences(first, second)
        ],
        "facts": _packed({number: facts(report) for number, _, report in reports}),
    }


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
