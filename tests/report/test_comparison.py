"""The comparison page: what it shows without a script and with its own, and that nothing else runs in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attrs import evolve
from hostile import HOSTILE, filled
from report_examples import CRASHED, EXAMPLES, FULL, INDUCTOR

from npucompose.report.compare import RunLine, with_front
from npucompose.report.comparison import ABSENT, ComparedRun, differences, render
from npucompose.results.measured import MemoryFacts
from npucompose.results.record import Figures, Report
from tools.chromium import Chromium


def line(name: str, report: Report) -> RunLine:
    return RunLine(
        name=name,
        status=report.status,
        figures=Figures.from_report(report),
        error=report.error,
        work=f"{Figures.from_report(report).model}",
    )


def compared(**reports: Report) -> list[ComparedRun]:
    lines = with_front([line(name, report) for name, report in reports.items()])
    return [ComparedRun(line=one, report=report) for one, report in zip(lines, reports.values(), strict=True)]


assert FULL.stages.benchmark is not None
FAST = evolve(FULL, stages=evolve(FULL.stages, benchmark=evolve(FULL.stages.benchmark, p50_us=100.0)))
SMALL = evolve(
    FULL,
    experiment={**FULL.experiment, "seed": 7},
    provenance={**FULL.provenance, "seed": "command line"},
    stages=evolve(FULL.stages, benchmark=evolve(FULL.stages.benchmark, p50_us=2000.0)),
    memory=MemoryFacts(peak_rss_bytes=1 << 20),
)
ALL = compared(fast=FAST, small=SMALL, **EXAMPLES)
COUNTS = {"ok": 4, "numerics_failed": 1, "expect_failed": 1, "crashed": 1, "illegal": 1}


def written(runs: list[ComparedRun], folder: Path, counts: dict[str, int] = COUNTS) -> Path:
    path = folder / "comparison.html"
    path.write_text(render(runs, counts))
    return path


def column(chromium: Chromium, number: int) -> list[str]:
    return chromium.ask(f"[...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[{number}].innerText)")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("script", [True, False])
def test_a_browser_shows_it_without_a_complaint(width: int, script: bool, chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(written(ALL, tmp_path), width=width, script=script)
    assert chromium.complaints() == []
    assert not chromium.scrolls_sideways()


def test_without_a_script_everything_is_there_but_the_choice(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(written(ALL, tmp_path), script=False)
    text = chromium.ask("document.body.innerText")
    for words in (
        "8 runs",
        "fast",
        "seed",
        "process peak over median latency",
        "1 fast → 2 small",
        "npucompose report",
    ):
        assert words in text, words
    assert not chromium.ask("document.getElementById('choose').checkVisibility()")


def test_every_column_can_be_sorted_both_ways(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(written(ALL, tmp_path))
    heads = chromium.ask("[...document.querySelectorAll('#runs th')].map(h => h.innerText)")
    at = heads.index("p50")
    for order, first in (("ascending", "100.0 µs"), ("descending", "2.00 ms")):
        chromium.ask(f"document.querySelectorAll('#runs th button')[{at}].click()")
        assert chromium.ask(f"document.querySelectorAll('#runs th')[{at}].getAttribute('aria-sort')") == order
        cells = column(chromium, at)
        assert cells[0] == first
        assert cells[-1] == ""  # what was not measured is last, either way
    assert sorted(column(chromium, 0), key=int) == [str(n) for n in range(1, len(ALL) + 1)]


def test_any_two_runs_can_be_chosen_and_differ_as_on_the_terminal(chromium: Chromium, tmp_path: Path) -> None:
    """The page's script and `npucompose report --diff` read the same facts; here they are held together."""
    chromium.open(written(ALL, tmp_path))
    for one, other in ((1, 2), (2, 1), (1, 4), (3, 7), (6, 8), (5, 5)):
        for side, number in (("one", one), ("other", other)):
            place = f"document.getElementById('{side}')"
            chromium.ask(f"{place}.value = '{number}', {place}.dispatchEvent(new Event('change'))")
        cells = chromium.ask(
            "[...document.querySelectorAll('#differences tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        )
        a, b = ALL[one - 1].report, ALL[other - 1].report
        assert a is not None
        assert b is not None
        assert cells == [
            [d.part, d.name, d.one or ABSENT, d.other or ABSENT, " → ".join(filter(None, d.said_by))]
            for d in differences(a, b)
        ]


def test_the_front_is_marked_in_table_and_pictures(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(written(ALL, tmp_path))
    marked = [n for n, cell in zip(column(chromium, 0), column(chromium, 3), strict=True) if cell == "front"]
    assert {"1", "2"} <= set(marked)
    dots = chromium.ask("document.querySelectorAll('svg[aria-label$=\"over median latency\"] .dot.front').length")
    assert dots == 2 * len(marked)


def test_a_run_without_a_report_is_in_the_table_and_cannot_be_chosen() -> None:
    text = render(
        [*ALL, ComparedRun(line=RunLine(name="gone", status="illegal", error="'seed' must be >= 0"))], {"ok": 9}
    )
    assert "&#39;seed&#39; must be &gt;= 0" in text
    assert 'value="9"' not in text


def test_nothing_to_compare_makes_a_page_too(chromium: Chromium, tmp_path: Path) -> None:
    chromium.open(written(compared(only=CRASHED), tmp_path, {"crashed": 3}))
    assert chromium.ask("document.querySelector('h1').innerText") == "1 of 3 runs"
    assert chromium.complaints() == []


def test_a_browser_runs_nothing_of_hostile_runs(chromium: Chromium, tmp_path: Path) -> None:
    bad = filled(Report)
    other = evolve(bad, experiment={HOSTILE: HOSTILE + "2"}, key="")
    hostile = [
        ComparedRun(line=evolve(line(HOSTILE, report), error=HOSTILE, work=HOSTILE), report=report)
        for report in (bad, other, FULL)
    ]
    path = written(hostile, tmp_path)
    assert path.read_text().count("<script") == 2
    chromium.open(path)
    chromium.ask("document.getElementById('other').selectedIndex = 2")
    chromium.ask("document.getElementById('other').dispatchEvent(new Event('change'))")
    chromium.ask("document.querySelectorAll('#runs th button').forEach(button => button.click())")
    assert "window.ran=1" in chromium.ask("document.getElementById('differences').innerText")
    assert chromium.ask("window.ran") is None
    assert chromium.ask("document.querySelectorAll('img, svg[onload]').length") == 0
    assert chromium.ask("document.querySelectorAll('script').length") == 2
    assert chromium.complaints() == []


def test_equal_runs_are_packed_once() -> None:
    one = len(render(compared(**{f"run{n}": INDUCTOR for n in range(2)}), {"ok": 2}))
    many = len(render(compared(**{f"run{n}": INDUCTOR for n in range(102)}), {"ok": 102}))
    assert (many - one) / 100 < 2500


def test_it_loads_nothing() -> None:
    text = render(ALL, COUNTS)
    assert re.findall(r"https?://|url\(|@import", text) == []
    assert "unsafe-inline" not in text
