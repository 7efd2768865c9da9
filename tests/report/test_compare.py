"""Runs beside each other: what a table has, in three forms."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from report_examples import CRASHED, EXAMPLES, FULL, INDUCTOR, WRONG
from rich.console import Console

from npucompose.report.compare import (
    RunLine,
    as_csv,
    as_markdown,
    as_table,
    columns,
)
from npucompose.results.record import CHOICES, MEASURED, Figures, Report


def line(name: str, report: Report) -> RunLine:
    return RunLine(name=name, status=report.status, figures=Figures.from_report(report), error=report.error)


LINES = [line(name, report) for name, report in EXAMPLES.items()]


def test_figures_are_those_of_the_report_and_wrong_results_have_no_speed() -> None:
    assert FULL.stages.benchmark is not None
    figures = Figures.from_report(FULL)
    assert (figures.model, figures.mode, figures.p50_us) == ("gpt_decode", "reduce-overhead", 517.04)
    assert figures.speedup == FULL.stages.benchmark.speedup["eager"]
    assert (Figures.from_report(WRONG).p50_us, Figures.from_report(WRONG).speedup) == (None, None)
    assert set(CHOICES) | set(MEASURED) == {f.name for f in Figures.__attrs_attrs__}


def test_a_table_has_what_varies_and_what_was_measured() -> None:
    assert columns([line("a", FULL), line("b", INDUCTOR)])[:2] == ("mode", "shapes")
    assert "pool_bytes" not in columns([line("b", INDUCTOR)])
    assert columns([line("c", CRASHED)]) == ()


def test_the_table_of_a_terminal(golden: Callable[[str, str], None]) -> None:
    console = Console(width=120, record=True, file=io.StringIO(), color_system=None)
    console.print(as_table(LINES))
    golden("report/compare.txt", console.export_text())


def test_markdown_for_a_pull_request(golden: Callable[[str, str], None]) -> None:
    golden("report/compare.md", as_markdown(LINES))


def test_text_does_not_break_out_of_a_markdown_cell() -> None:
    (row,) = as_markdown([line("a|b\n<img src=x>[x](y)`", FULL)]).splitlines()[2:]
    assert row.startswith(r"| a\|b &lt;img src=x>\[x](y)\` | ok |")


def test_csv_has_every_column_and_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([line("=cmd|' /C calc'!A0", FULL), line("b", CRASHED)]))))
    assert rows[0]["run"] == "'=cmd|' /C calc'!A0"
    assert float(rows[0]["p50_us"]) == 517.04
    assert rows[1]["p50_us"] == ""
    assert "SIGKILL" in rows[1]["error"]
