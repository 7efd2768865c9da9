from __future__ import annotations

import io

from rich.console import Console

from airflow_free.progress import Progress
from airflow_free.stage import Event

EVENTS = (
    Event(kind="reused", stage="compile", seconds=3.0),
    Event(kind="started", stage="benchmark"),
    Event(kind="progress", stage="benchmark", fraction=0.5),
    Event(kind="note", text="[not markup]"),
    Event(kind="finished", stage="benchmark", seconds=1.25),
    Event(kind="failed", stage="replay", text="why"),
)


def shown(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
    with Progress(console) as progress:
        for event in EVENTS:
            progress.show(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_gets_one_line_for_each_change() -> None:
    assert shown(terminal=False).splitlines() == [
        "compile: nothing changed, taken from the store",
        "benchmark: started",
        "[not markup]",
        "benchmark: done in 1.2 s",
        "replay: failed",
    ]


def test_a_terminal_gets_a_bar_for_each_stage() -> None:
    text = shown(terminal=True)
    assert "benchmark" in text
    assert "━" in text
    assert "[not markup]" in text


def test_events_survive_their_journey() -> None:
    for event in EVENTS:
        assert Event.from_dict(event.as_dict()) == event
