"""What a worker said and how it ended become one outcome; the log's end becomes lines; numbers keep their units."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

from airflow_free import outcome
from airflow_free.errors import LONGEST, InvalidRequest, paragraph
from airflow_free.outcome import MIB, ExitReport, FinalMessage, Limits, Outcome, WorkerChannel, last_lines, outcome_of
from airflow_free.stage import Event

ERROR: dict[str, Any] = {
    "type": "Value\x1bError", "message": "a\x1bb", "exit_status": 3, "problems": ["p\x1b"],
    "facts": {"sinking": {"path": None}},
}  # fmt: skip
LIMITS = Limits(memory_bytes=int(2.5 * MIB), memory_name="the oven's limit")
RESULT = FinalMessage(result={"a": 1})
NOBODY = " Somebody killed it, or the system did because memory ran out."


@pytest.fixture
def channel() -> Any:
    out, into = os.pipe()
    found = WorkerChannel(out, "airflow_free")
    found.far_end = into  # type: ignore[attr-defined]
    yield found
    found.close()
    os.close(into)


def crashed(error: str, exit_signal: str | None = None, status: Any = "crashed") -> Outcome:
    return Outcome(status=status, error=error, exit_status=3, exit_signal=exit_signal)


def test_of_an_outcome_nothing_is_known_but_what_is_said() -> None:
    assert attrs.asdict(Outcome(status="done")) == {
        "status": "done", "result": None, "error": None, "error_type": None, "problems": (), "facts": {},
        "exit_status": 0, "exit_signal": None, "last_lines": (), "log_cut_bytes": 0, "seconds": 0.0,
    }  # fmt: skip
    assert Limits() == Limits(log_bytes=64 * MIB, memory_bytes=None, memory_name="its limit")
    assert Limits.from_mib(1.5, None) == Limits(log_bytes=3 * MIB // 2)
    assert Limits.from_mib(2, 0.5, "a limit") == Limits(log_bytes=2 * MIB, memory_bytes=MIB // 2, memory_name="a limit")


@pytest.mark.parametrize(
    ("word", "broken", "report", "limit", "expected"),
    [
        (RESULT, None, ExitReport(returncode=0), None, Outcome(status="done", result={"a": 1})),
        (RESULT, None, ExitReport(returncode=-9, memory=5), 60.0, Outcome(status="done", result={"a": 1})),
        (FinalMessage(result={}), None, ExitReport(returncode=0), None, Outcome(status="done", result={})),
        (RESULT, "wrote \x1b", ExitReport(returncode=0), None, crashed(r"the worker wrote \x1b, and was ended.")),
        (None, "wrote", ExitReport(returncode=-9), 1.5,
         crashed("the worker was killed at its time limit of 1.5 s.", "SIGKILL", "timeout")),
        (FinalMessage(error=ERROR), None, ExitReport(returncode=1), 60.0,
         Outcome(status="failed", error=r"a\x1bb", error_type=r"Value\x1bError", problems=(r"p\x1b",),
                 facts={"sinking": {"path": None}}, exit_status=3)),
        (FinalMessage(error={**ERROR, "exit_status": 2}), None, ExitReport(returncode=1), None,
         Outcome(status="config_error", error=r"a\x1bb", error_type=r"Value\x1bError", problems=(r"p\x1b",),
                 facts={"sinking": {"path": None}}, exit_status=2)),
        (None, None, ExitReport(returncode=-9, memory=300 * MIB), 60.0,
         crashed("the worker was killed: it used 300 MiB, and the oven's limit is 2.5.", "SIGKILL",
                 "memory_limit")),
        (None, None, ExitReport(returncode=None), None,
         crashed("the process that watches the worker was killed, and the worker with it.")),
        (None, None, ExitReport(returncode=0), None,
         crashed("the worker ended with exit status 0 and sent no result.")),
        (None, None, ExitReport(returncode=7), None,
         crashed("the worker ended with exit status 7 and sent no result.")),
        (None, None, ExitReport(returncode=-6), None,
         crashed("the worker died of SIGABRT and sent no result.", "SIGABRT")),
        (None, None, ExitReport(returncode=-9), None,
         crashed("the worker died of SIGKILL and sent no result." + NOBODY, "SIGKILL")),
        (None, None, ExitReport(returncode=-120), None,
         crashed("the worker died of signal 120 and sent no result.", "signal 120")),
        (None, None, ExitReport(returncode=None), 60.0,
         crashed("the worker was killed at its time limit of 60 s.", None, "timeout")),
    ],
)  # fmt: skip
def test_an_outcome_is_what_was_said_before_how_it_ended(
    word: FinalMessage | None, broken: str | None, report: ExitReport, limit: float | None, expected: Outcome,
    channel: WorkerChannel,
) -> None:  # fmt: skip
    channel.final, channel.broken = word, broken
    assert outcome_of(channel, report, LIMITS, limit) == expected


def test_without_a_known_limit_of_memory_it_is_none(channel: WorkerChannel) -> None:
    found = outcome_of(channel, ExitReport(returncode=-9, memory=MIB), Limits(), None)
    assert (found.error or "").endswith("and its limit is 0.")


def test_limits_are_given_in_mib() -> None:
    assert Limits.from_mib(1.5, None) == Limits(log_bytes=3 * 2**19)
    assert Limits.from_mib(2, 0.5) == Limits(log_bytes=2**21, memory_bytes=2**19)
    assert Limits() == Limits(log_bytes=64 * 2**20, memory_bytes=None)


def heard(channel: Any, *pieces: bytes) -> list[str]:
    events: list[Event] = []
    for piece in pieces:
        os.write(channel.far_end, piece)
        channel.read(events.append)
    return [event.text for event in events]


NOTE = b'{"word": "event", "event": {"kind": "note", "text": "%s"}}\n'


def test_what_follows_a_broken_word_is_not_read_and_the_first_final_counts(channel: Any) -> None:
    assert heard(channel, NOTE % b"a", b'{"word": "result", "result": {"a": 1}}\n' + NOTE % b"b") == ["a", "b"]
    assert heard(channel, b'{"word": "result", "result": {"a": 2}}\nno word\n' + NOTE % b"c") == []
    assert (channel.final, channel.broken) == (RESULT, "wrote b'no word' where it answers airflow_free")
    assert heard(channel, NOTE % b"d") == []
    assert not channel.ended


@pytest.mark.parametrize(("length", "shown"), [(40, "x" * 40), (41, "x" * 40 + "...")])
def test_of_what_is_no_word_forty_bytes_are_told(length: int, shown: str, channel: Any) -> None:
    heard(channel, b"x" * length + b"\n")
    assert channel.broken == f"wrote b'{shown}' where it answers airflow_free"


@pytest.mark.parametrize(("pieces", "broken"), [((5, 5), False), ((5, 6), True)])
def test_a_word_may_be_as_long_as_the_longest(
    pieces: tuple[int, ...], broken: bool, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "LONGEST_LINE", 10)
    heard(channel, *(b"x" * size for size in pieces))
    assert (channel.broken is not None) is broken
    assert not broken or channel.broken == "wrote more than 10 bytes in one line where it answers airflow_free"


def test_short_words_do_not_add_up_to_a_long_one(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "LONGEST_LINE", 80)
    assert heard(channel, *[NOTE % b"a"] * 5, NOTE[:40], NOTE[40:] % b"b") == ["a"] * 5 + ["b"]
    assert channel.broken is None


def test_others_are_asked_after_a_megabyte(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome.AT_ONCE == 2**20
    monkeypatch.setattr(outcome, "AT_ONCE", 65536)
    monkeypatch.setattr(os, "read", reads := Reads())
    channel.read(lambda event: None)
    assert reads.count == 1
    monkeypatch.setattr(outcome, "AT_ONCE", 65537)
    channel.read(lambda event: None)
    assert reads.count == 3


class Reads:
    """A pipe that never ends."""

    count = 0

    def __call__(self, pipe: int, size: int) -> bytes:
        self.count += 1
        return b" " * size


def test_the_end_of_a_log_is_what_this_worker_wrote(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 0) == ()
    log.write_bytes(b"before\n" + b"".join(b"%d\n" % n for n in range(50)))
    assert last_lines(log, 7) == tuple(str(n) for n in range(10, 50))
    assert last_lines(log, 7 + 20 + 3 * 38) == ("48", "49")
    log.write_bytes(b"old\n\x1b[2J\xff new\n")
    assert last_lines(log, 4) == ("\\x1b[2J\ufffd new",)
    log.write_bytes(b"y" * 20_000)
    assert last_lines(log, 0) == ("y" * 16_384,)
    assert last_lines(log, 19_990) == ("y" * 10,)


def test_an_error_is_a_paragraph_and_not_endless() -> None:
    assert paragraph(InvalidRequest("one", "two")) == "one\ntwo"
    assert paragraph(ValueError()) == "ValueError"
    assert paragraph(ValueError("a\n  b")) == "ValueError: a b"
    longest = LONGEST - len("ValueError: ")
    assert paragraph(ValueError("x" * longest)) == "ValueError: " + "x" * longest
    cut = paragraph(ValueError("x" * (longest + 1)))
    assert cut == "ValueError: " + "x" * longest + "… (the rest is in the log)"
    assert LONGEST == 1500


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "no"}, {}, {"kind": "note", "more": 1}, {"kind": "note", "text": 1}, {"kind": "note", "stage": None},
        {"kind": "progress", "fraction": float("inf")}, {"kind": "progress", "fraction": True},
        {"kind": "finished", "seconds": "1"}, {"kind": "finished", "seconds": float("nan")},
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no event"):
        Event.from_dict(data)


def test_an_event_s_texts_are_shown_safely_and_only_what_it_has_travels() -> None:
    assert Event.from_dict({"kind": "note", "text": "\x1b", "stage": "\x07"}) == Event(
        kind="note", text=r"\x1b", stage=r"\x07"
    )
    assert Event(kind="progress", fraction=0.0).as_dict() == {"kind": "progress", "fraction": 0.0}
    assert Event.from_dict({"kind": "finished", "seconds": 2}).seconds == 2
