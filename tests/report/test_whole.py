"""Every part of a report in each of its forms, as it was reviewed: what the examples of single claims leave out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve
from report_examples import CRASHED, EXAMPLES, FULL, INDUCTOR, JUDGED, TIMELINES
from whole_examples import (
    LINES,
    RICH,
    WHOLE,
    on_lines,
    parts,
    plain,
)

from npucompose.console import console
from npucompose.report import (
    compare,
    comparison,
    html,
    pictures,
    terminal,
)
from npucompose.report.comparison import (
    CUT as WINDOW,
)
from npucompose.report.comparison import (
    ComparedRun,
    as_json,
    beside_each_other,
    difference_markdown,
    difference_text,
    differences,
    facts,
    render,
)
from npucompose.report.html import source
from npucompose.report.json import Tracked, trace_entries, trace_text
from npucompose.report.pictures import Axis, timeline_drawings
from npucompose.report.words import (
    as_time,
)
from npucompose.results.record import Figures, Report
from npucompose.results.streams import Timeline


@pytest.mark.parametrize("name", WHOLE)
def test_a_run_with_everything_reads_like_this(name: str, golden: Any) -> None:
    styled = console(width=100, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    terminal.render(WHOLE[name], styled, "/runs/report.json")
    golden(f"report/whole_{name}.txt", styled.export_text(styles=True).replace("\x1b", "^"))


def page_of(report: Report, lines: Sequence[Timeline] = ()) -> str:
    return html.render(report, lines).replace(source("page.css"), "STYLE")


def test_the_page_of_a_run_with_everything_is_this(golden: Any) -> None:
    golden("report/whole_rich.html", on_lines(page_of(RICH, LINES)))


OTHERS = ("full", "predicted", "weighed", "inductor", "wrong", "crashed", "unsteady")


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_pages_show_beside_is_this(name: str, golden: Any) -> None:
    """Of each page the parts that neither the page with everything has nor another before it."""
    pages = {one: page_of({**WHOLE, **EXAMPLES, **JUDGED}[one], TIMELINES if one == "full" else ()) for one in OTHERS}
    before = [page_of(RICH, LINES), *(pages[one] for one in OTHERS[: OTHERS.index(name)])]
    there = {part for page in before for part in parts(page)}
    golden(f"report/parts_{name}.html", "".join(part for part in parts(pages[name]) if part not in there))


def test_all_that_is_compared_of_a_run(golden: Any) -> None:
    told = [f"{f.part} | {f.name} | {f.text} | {f.said_by}" for f in facts(RICH)]
    found = differences(RICH, evolve(INDUCTOR, provenance={"mode": "conf/mode/x.yaml"}))
    assert "—" in as_json(differences(RICH, evolve(RICH, error="—")))
    forms = [
        as_json(found)[:300],
        difference_text(found).plain,
        difference_markdown(found),
        difference_text(found).markup,
    ]
    golden("report/differences.txt", "\n\n".join(["\n".join(told), *forms]) + "\n")


def test_long_texts_are_cut_around_their_first_difference() -> None:
    for length in (WINDOW, WINDOW + 1):
        one, other = "a" * length, "a" * (length - 1) + "b"
        shown = beside_each_other(one, other)
        assert (shown == (one, other)) == (length == WINDOW)
    assert beside_each_other("a" * 100 + "x" + "b" * 100, "a" * 100 + "y") == (
        "…" + "a" * 30 + "x" + "b" * 29 + "…",
        "…" + "a" * 30 + "y",
    )
    assert beside_each_other("c" * 70, "c" * 65) == ("…" + "c" * 35, "…" + "c" * 30)
    assert beside_each_other("x" * 90, "y") == ("x" * 60 + "…", "y")
    assert beside_each_other("y", "x" * 90) == ("y", "x" * 60 + "…")


def compared(reports: dict[str, Report]) -> Iterator[ComparedRun]:
    lines = [
        compare.RunLine(
            name=f"{name} mode=x",
            status=report.status,
            figures=Figures.from_report(report),
            error=report.error,
            work="the work" if "model" in report.experiment else "",
        )
        for name, report in reports.items()
    ]
    for line, report in zip(compare.with_front(lines), reports.values(), strict=True):
        yield ComparedRun(line=line, report=None if report.status == "illegal" else report)


def test_the_page_of_many_runs_is_this(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list(compared({**EXAMPLES, "rich": RICH}))
    page = render(runs, {"ok": 3, "crashed": 1, "illegal": 1, "numerics_failed": 1, "expect_failed": 9})
    golden(
        "report/comparison.html",
        on_lines(
            page.replace(source("comparison.js"), "SCRIPT").replace(source("page.css") + source("wide.css"), "STYLE")
        ),
    )
    lines = [run.line for run in runs]
    shown = [plain(lambda made, width=width: made.print(compare.as_table(lines)), width) for width in (160, 70, 50)]
    styled = console(width=160, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    styled.print(compare.as_table(lines))
    shown.append(styled.export_text(styles=True).replace("\x1b", "^"))
    golden("report/compared.txt", "\n".join([*shown, compare.as_markdown(lines), compare.as_csv(lines)]))
    assert render([], {}).count("<tr>") == 1
    assert "more kinds of work" not in page
    assert "process peak over median latency" in page
    planned = render(list(compared({"full": FULL, "disappointing": EXAMPLES["disappointing"]})), {"ok": 2})
    assert "<figcaption>pool over median latency" in planned
    monkeypatch.setattr(comparison, "MOST_PLOTS", 0)
    assert '<p class="dim">1 more kinds of work are in the table.</p>' in render(runs, {"ok": 3})


def test_what_a_tracker_is_told(golden: Any, tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-01" / "12-00-00"
    folder.mkdir(parents=True)
    for name in ("report.json", "trace.json", "other"):
        (folder / name).touch()
    told = [attrs.asdict(Tracked.from_report(report, folder)) for report in (RICH, CRASHED, EXAMPLES["wrong"])]
    for one in told:
        one["files"] = [path.name for path in one["files"]]
    golden("report/tracked.json", json.dumps(told, indent=1, default=str) + "\n")


def drawn(name: str, drawing: pictures.Drawing) -> str:
    return str(getattr(html.environment().get_template("pictures.html").module, name)(drawing))


def figures() -> list[str]:
    return [drawn("timeline", drawing) for drawing in timeline_drawings(LINES)]


def dots(*given: Any) -> str:
    return drawn("scatter", pictures.scatter(*given))


def test_pictures_are_these(golden: Any) -> None:
    many = [100.0 + n for n in range(200)] + [100_000.0]
    nodes = {f"n{k}": "default" if k % 3 else f"s{k % 4}" for k in range(9)}
    shapes = {
        "histogram": drawn(
            "distributions", pictures.distributions({"replay": many, "a name of some length": [120.0, 130.0, 5000.0]})
        ),
        "few": drawn("distributions", pictures.distributions({"replay": [5.0] * 30, "eager": [5.0] * 31})),
        "stacked": drawn("stacked", pictures.stacked("compilation", {f"part {k}": float(k) for k in range(8)})),
        "nothing stacked": drawn("stacked", pictures.stacked("compilation", {"none": 0.0})),
        "lanes": drawn("lanes", pictures.lanes(nodes)),
        "no lanes": drawn("lanes", pictures.lanes({})),
        "timelines": "".join(figures()),
        "scatter": dots(
            [
                pictures.Dot(label="1", name="one", front=True, at=(1.0, 5.0, 3.0)),
                pictures.Dot(label="2", name="two", front=False, at=(100.0, 6.0, 3.0)),
                pictures.Dot(label="3", name="three", front=True, at=(90.0, 5.5, 3.0)),
            ],
            (0, 1),
            ("x", "y"),
            (as_time, lambda value: f"{value:.1f}"),
        ),
        "one dot": dots(
            [pictures.Dot(label="1", name="one", front=True, at=(1.0, 0.0, 3.0))],
            (2, 1),
            ("x", "y"),
            (as_time, as_time),
        ),
    }
    golden("report/pictures.txt", "\n\n".join(f"# {name}\n{on_lines(text)}" for name, text in shapes.items()) + "\n")


def test_the_slowest_sample_is_in_the_last_bin_and_the_fastest_in_the_first() -> None:
    bins = pictures._histogram([0.0, 0.0, 50.0, 100.0], Axis.between(0, 100), 60, "c0")
    width = (pictures.WIDTH - pictures.LABEL) / pictures.BINS
    assert [x for x, *_ in bins] == [pictures.LABEL + n * width for n in (0, 30, 59)]
    assert [height for _, _, _, height, _ in bins] == [
        pictures.ROW - 14,
        (pictures.ROW - 14) / 2,
        (pictures.ROW - 14) / 2,
    ]


def test_only_so_much_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_NODES", 2)
    monkeypatch.setattr(pictures, "MOST_EVENTS", 1)
    (figure,) = [text for text in figures() if "measured" in text]
    assert "4 kernels · the first 2 drawn · 2 events · 1 drawn" in figure
    assert (figure.count('class="kernel'), figure.count('class="event"')) == (2, 0)
    monkeypatch.setattr(pictures, "MOST_NODES", 3)
    assert next(text for text in figures() if "measured" in text).count('class="event"') == 1
    monkeypatch.setattr(pictures, "MOST_NODES", 2)
    assert drawn("lanes", pictures.lanes({"a": "s", "b": "s", "c": "t"})).count("<rect") == 2


def test_a_trace_has_every_entry_in_the_order_of_time(golden: Any) -> None:
    golden("report/trace.txt", "\n".join(map(str, trace_entries(LINES))) + "\n" + trace_text(LINES[:1])[:60] + "\n")


@pytest.mark.parametrize(
    ("made", "value", "place"),
    [
        (lambda: Axis.between(1, 100), 10, 0.5),
        (lambda: Axis.between(0, 9), 3, 1 / 3),
        (lambda: Axis.between(1, 10), 10**0.5, 0.5),
        (lambda: Axis.between(1, 9.99), 5.495, 0.5),
        (lambda: Axis.between(-1, 100), 49.5, 0.5),
        (lambda: Axis.between(10, 10), 10, 0.5),
        (lambda: Axis.between(0, 0), 0.5, 0.5),
    ],
)
def test_an_axis_places_values_and_finds_them_again(made: Callable[[], Axis], value: float, place: float) -> None:
    axis = made()
    assert axis.place(value) == pytest.approx(place)
    assert axis.value(place) == pytest.approx(value)
    assert list(axis.marks(3)) == pytest.approx([axis.low, axis.value(0.5), axis.high])
