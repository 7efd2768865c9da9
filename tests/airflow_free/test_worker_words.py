"""What a worker says to its parent: events, its result or its error, each as one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_free import forkserver
from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.stage import Event

# Note [Private names]
# What a worker sends of an error is looked at without a process.


class Rejected(OrchestratorError):
    """Not one that says that nothing was run, and with problems all the same."""

    @property
    def problems(self) -> tuple[str, ...]:
        return (str(self),)


# The worker's words.


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Call an entry as a worker does; what it said, line by line."""
    out, into = os.pipe()
    os.set_inheritable(into, True)
    monkeypatch.setattr(forkserver, "os", SimpleNamespace(**{**vars(os), "dup2": lambda *handles: None}))
    monkeypatch.setattr(sys, "argv", ["pytest"])

    def said(entry: Callable[..., Any]) -> list[dict[str, Any]]:
        module: Any = ModuleType("made_for_this_test")
        module.entry = entry
        monkeypatch.setitem(sys.modules, "made_for_this_test", module)
        forkserver.handle({"entry": "made_for_this_test:entry", "payload": {"x": 1}}, into)
        assert sys.argv == ["made_for_this_test:entry"]
        assert not os.get_inheritable(into)
        return [json.loads(line) for line in os.read(out, 65536).splitlines()]

    yield said
    os.close(out)
    os.close(into)


def test_events_come_first_and_the_result_last(said: Any) -> None:
    def entry(payload: Any, notify: Any) -> Any:
        notify(Event(kind="progress", stage="a", fraction=0.5))
        return {"got": payload}

    assert said(entry) == [
        {"word": "event", "event": {"kind": "progress", "stage": "a", "fraction": 0.5}},
        {"word": "result", "result": {"got": {"x": 1}}},
    ]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidRequest("one", "two"),
         {"type": "InvalidRequest", "message": "one\ntwo", "exit_status": 2, "problems": ["one", "two"]}),
        (Rejected("no mode"), {"type": "Rejected", "message": "no mode", "exit_status": 3, "problems": ["no mode"]}),
        (OrchestratorError("broken"),
         {"type": "OrchestratorError", "message": "broken", "exit_status": 3, "problems": []}),
        (ValueError("too\n much"),
         {"type": "ValueError", "message": "ValueError: too much", "exit_status": 3, "problems": []}),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_an_error_travels_in_words_and_its_traceback_goes_to_the_log(
    error: Exception, told: dict[str, Any], said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def entry(payload: Any, notify: Any) -> Any:
        raise error

    assert said(entry) == [{"word": "error", "facts": {}, **told}]
    assert "in entry" in capsys.readouterr().err


def test_what_a_stage_raised_keeps_its_exit_status_and_a_stranger_s_problems_stay_here() -> None:
    from airflow_free.stage import StageFailed

    words = forkserver._error_words(StageFailed("compile", Rejected("a")))
    assert (words["message"], words["exit_status"]) == ("stage 'compile' failed: a", 3)
    assert words["problems"] == ["stage 'compile' failed: a"]
    stranger: Any = ValueError("x")
    stranger.problems = ("p",)
    assert forkserver._error_words(stranger) == {
        "type": "ValueError", "message": "ValueError: x", "exit_status": 3, "problems": [], "facts": {},
    }  # fmt: skip


def test_what_a_stage_that_failed_knows_travels_with_its_failure_and_no_stranger_s() -> None:
    from airflow_free.stage import StageFailed

    failed = StageFailed("compile", OrchestratorError("a"))
    failed.facts = {"sinking": {"path": None}}
    assert forkserver._error_words(failed)["facts"] == {"sinking": {"path": None}}
    stranger: Any = ValueError("x")
    stranger.facts = {"sinking": 1}
    assert forkserver._error_words(stranger)["facts"] == {}


def test_a_result_that_is_no_json_is_an_error_and_nothing_of_it_is_sent(
    said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (word,) = said(lambda payload, tell: {"value": float("nan")})
    assert (word["word"], word["type"]) == ("error", "ValueError")


def test_a_word_is_written_whole_however_little_a_pipe_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = bytearray()

    def write(pipe: int, data: Any) -> int:
        assert pipe == 5
        written.extend(data[:3])
        return min(3, len(data))

    monkeypatch.setattr(forkserver, "os", SimpleNamespace(write=write))
    forkserver._sender(5)({"word": "long enough"})
    assert bytes(written) == b'{"word": "long enough"}\n'


def test_words_of_several_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    held: list[bool] = []
    lock = threading.Lock()
    monkeypatch.setattr(forkserver, "threading", SimpleNamespace(Lock=lambda: lock))
    monkeypatch.setattr(
        forkserver, "os", SimpleNamespace(write=lambda pipe, data: held.append(lock.locked()) or len(data))
    )
    forkserver._sender(5)({})
    assert (held, lock.locked()) == ([True], False)
