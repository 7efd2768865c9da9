from __future__ import annotations

import io
import re
import time

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


def log_of(*events: Event, silent_s: float, lines: int = 0) -> list[str]:
    """What is written by the time that there are so many lines, on a machine of any speed."""
    console = Console(file=io.StringIO(), width=80)
    assert isinstance(console.file, io.StringIO)
    with Progress(console, silent_s) as progress:
        for event in events:
            progress.show(event)
        while len(console.file.getvalue().splitlines()) < lines:
            time.sleep(0.01)
    return console.file.getvalue().splitlines()


def test_a_log_that_was_silent_for_a_while_says_what_is_being_done() -> None:
    events = (Event(kind="started", stage="compile"), Event(kind="progress", text="tracing the model"))
    lines = log_of(*events, silent_s=0.02, lines=3)
    assert lines[0] == "compile: started"
    assert {re.sub(r"\d+ s$", "N s", line) for line in lines[1:]} == {"compile: tracing the model … N s"}
    assert log_of(*events, silent_s=60.0) == lines[:1]


def test_before_the_first_stage_a_log_says_that_a_worker_starts() -> None:
    assert {re.sub(r"\d+ s$", "N s", line) for line in log_of(silent_s=0.02, lines=1)} == {"starting a worker … N s"}


def test_the_words_of_one_stage_do_not_stand_beside_the_next() -> None:
    events = (
        Event(kind="started", stage="compile"), Event(kind="progress", text="tracing the model"),
        Event(kind="started", stage="replay"),
    )  # fmt: skip
    said = [line for line in log_of(*events, silent_s=0.02, lines=3) if "…" in line]
    assert {re.sub(r"\d+ s$", "N s", line) for line in said} == {"replay … N s"}


def test_a_terminal_says_what_is_being_done_beside_the_bar() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with Progress(console) as progress:
        assert progress.bars is not None
        assert [task.fields["words"] for task in progress.bars.tasks] == ["starting a worker"]
        progress.show(Event(kind="started", stage="compile"))
        progress.show(Event(kind="progress", text="tracing the model"))
        assert [(task.description, task.fields["words"]) for task in progress.bars.tasks] == [
            ("compile", "tracing the model")
        ]


def test_what_has_no_share_yet_is_a_bar_without_an_end() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with Progress(console) as progress:
        assert progress.bars is not None
        progress.show(Event(kind="started", stage="compile"))
        progress.show(Event(kind="progress", text="tracing the model"))
        assert [task.total for task in progress.bars.tasks] == [None]
        progress.show(Event(kind="progress", fraction=0.5))
        assert [(task.total, task.completed) for task in progress.bars.tasks] == [(1.0, 0.5)]


def test_no_line_is_written_into_another_that_is_just_being_written() -> None:
    console = Console(file=io.StringIO(), width=80)
    assert isinstance(console.file, io.StringIO)
    with Progress(console, silent_s=0.02) as progress:
        assert progress.log is not None
        with progress.log.lock:
            before = console.file.getvalue()
            time.sleep(0.1)
            assert console.file.getvalue() == before
