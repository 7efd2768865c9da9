"""What a person sees of a sweep while it runs: lines in a log, a table on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from airflow_free.stage import Event
from airflow_free.sweep import SweepEvent
from npucompose.compose.tree import Composer
from npucompose.experiment.sweep import command as view_module
from npucompose.experiment.sweep.command import SweepView
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointEntry
from npucompose.results.record import Figures


@pytest.fixture(scope="module")
def plan() -> SweepPlan:
    return SweepPlan.from_overrides(["model=add", "seed=1,2,3"], Composer())


def shown(plan: SweepPlan, *, terminal: bool) -> tuple[str, SweepView]:
    """The text after: one point kept, one that crashed, one under way."""
    text = io.StringIO()
    kept, dies, runs = plan.points
    console = Console(file=text, force_terminal=terminal, width=100, color_system=None)
    with SweepView(console, 3, plan.name) as view:
        ok = PointEntry(key=kept.key, status="ok", overrides=kept.overrides, figures=Figures(p50_us=12.34))
        view.listen(SweepEvent(kind="kept", point=kept, entry=ok))
        crashed = PointEntry(key=dies.key, status="crashed", overrides=dies.overrides, error="it died of SIGKILL.")
        view.listen(SweepEvent(kind="started", point=dies))
        view.listen(SweepEvent(kind="ended", point=dies, entry=crashed))
        view.listen(SweepEvent(kind="started", point=runs))
        view.listen(SweepEvent(kind="stage", point=runs, event=Event(kind="started", stage="capture")))
    return text.getvalue(), view


def test_a_log_gets_a_line_for_each_end_that_is_new(plan: SweepPlan) -> None:
    text, view = shown(plan, terminal=False)
    assert text == "2/3  crashed  seed=2 · it died of SIGKILL.\n"
    assert view.summary() == "3 jobs: 1 ok, 1 crashed, 1 left · 1 were done before"


def test_a_terminal_gets_a_table_of_the_last_ends_and_of_what_runs(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "REFRESH_S", 0.0)
    text, view = shown(plan, terminal=True)
    for words in (
        "ok  seed=1 · p50 12.3 µs",
        "crashed  seed=2 · it died of SIGKILL.",
        "capture … seed=3",
        view.summary(),
    ):
        assert words in text
