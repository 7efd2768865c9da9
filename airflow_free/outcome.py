"""How a worker ended, and what it said on its way: the parent's half of the protocol, whoever started the worker.

Events and the last word are lines of JSON in a pipe; nothing is pickled, so a worker that dies in the middle of a word
leaves nothing half understood.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from airflow_free.errors import InvalidRequest, visible
from airflow_free.stage import Event, Notify

OutcomeStatus = Literal["done", "failed", "crashed", "timeout", "memory_limit", "config_error"]

MIB = 2**20
AT_ONCE = MIB
"""Bytes of one worker that are read before others are asked."""
LONGEST_LINE = 256 * MIB
LAST_LINES = 40
"""Enough for the stack of a worker that hung: its own frames, and the twenty of those who run it below them."""
LAST_BYTES = 16_384
GRACE_S = 3.0
"""How long a worker that was told to end, or that has sent its result, may take before it is killed."""
STACK_S = 0.5
"""How long a worker that hangs gets to write its stack to the log."""
STACK_SIGNAL = signal.SIGUSR1


@frozen(kw_only=True)
class Limits:
    """What a job may use beside its time."""

    log_bytes: int = 64 * MIB
    memory_bytes: int | None = None
    """Of all processes of the job together: memory that belongs to no file."""
    memory_name: str = "its limit"
    """What that is called where a person set it."""

    @staticmethod
    def from_mib(log_mib: float, memory_mib: float | None, memory_name: str = "its limit") -> Limits:
        memory = None if memory_mib is None else int(memory_mib * MIB)
        return Limits(log_bytes=int(log_mib * MIB), memory_bytes=memory, memory_name=memory_name)


@frozen(kw_only=True)
class Outcome:
    """How a worker ended. `result` is there exactly when the status is `done`, `error` (a paragraph) when it is not."""

    status: OutcomeStatus
    result: dict[str, Any] | None = None
    error: str | None = None
    error_type: str | None = None
    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(factory=dict[str, Any])
    """What a stage that failed knows all the same."""
    exit_status: int = 0
    """What a command line that ran nothing else should end with."""
    exit_signal: str | None = None
    last_lines: tuple[str, ...] = ()
    log_cut_bytes: int = 0
    """What the worker printed beyond its limit and its last lines."""
    seconds: float = 0.0


class WorkerChannel:
    """The reading end of a worker's pipe. Whatever comes through it, `read` raises nothing."""

    def __init__(self, pipe: int, program: str) -> None:
        os.set_blocking(pipe, False)
        self.pipe, self.program = pipe, program
        self.ended = False
        """No process holds the other end any more."""
        self.final: FinalMessage | None = None
        self.broken: str | None = None
        """What the worker did instead of answering, as the end of a sentence; nothing after it is read."""
        self._begun: list[bytes] = []
        self._length = 0

    def read(self, on_event: Notify) -> None:
        """Pass on what is in the pipe now, or AT_ONCE of it; a line without its end waits for the rest."""
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < AT_ONCE and self.broken is None:
                chunk = os.read(self.pipe, 65536)
                if not chunk:
                    self.ended = True
                    return
                taken += len(chunk)
                self._take(chunk, on_event)

    def _take(self, chunk: bytes, on_event: Notify) -> None:
        head, *more = chunk.split(b"\n")
        self._begun.append(head)
        self._length += len(head)
        for rest in more:
            line = b"".join(self._begun)
            self._begun, self._length = [rest], len(rest)
            try:
                message = _message(line)
            except (ValueError, RecursionError):
                self.broken = f"wrote {_shortly(line)} where it answers {self.program}"
                return
            if isinstance(message, Event):
                on_event(message)
            elif self.final is None:
                self.final = message
        if self._length > LONGEST_LINE:
            self.broken = f"wrote more than {LONGEST_LINE} bytes in one line where it answers {self.program}"

    def close(self) -> None:
        os.close(self.pipe)


@frozen
class FinalMessage:
    """A result, or the error in its place."""

    result: dict[str, Any] | None = None
    error: Mapping[str, Any] | None = None


def _message(line: bytes) -> Event | FinalMessage:
    """ValueError for a line that `airflow_free.forkserver` would not write."""
    match json.loads(line, parse_constant=_refuse):
        case {"word": "event", "event": dict(event), **none} if not none:
            return Event.from_dict(event)
        case {"word": "result", "result": dict(result), **none} if not none:
            return FinalMessage(result=result)
        case {
            "word": "error", "type": str(), "message": str(), "exit_status": int(),
            "problems": list(problems), "facts": dict(), **none,
        } as error if not none and all(isinstance(one, str) for one in problems):  # fmt: skip
            return FinalMessage(error=error)
        case _:
            raise ValueError


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _shortly(line: bytes) -> str:
    return repr(line if len(line) <= 40 else line[:40] + b"...")


@frozen(kw_only=True)
class ExitReport:
    """How a worker's process ended, as its supervisor reports it."""

    returncode: int | None
    """Negative: the signal; None where the supervisor was killed with it."""
    memory: int | None = None
    """Bytes in use when the limit was passed."""
    cut: int = 0
    """Bytes that the worker printed and that are not in its log."""


def outcome_of(channel: WorkerChannel, report: ExitReport, limits: Limits, time_limit_s: float | None) -> Outcome:
    """From what it said, how it ended, and the time limit, if that was reached."""
    final, returncode = channel.final, report.returncode
    if channel.broken is not None and time_limit_s is None:
        words = f"the worker {visible(channel.broken)}, and was ended."
        return Outcome(status="crashed", error=words, exit_status=3)
    if final is not None and final.result is not None:
        return Outcome(status="done", result=final.result)
    if final is not None and final.error is not None:
        return _failure(final.error)
    exit_signal = _signal_name(-returncode) if returncode is not None and returncode < 0 else None
    status, words = "crashed", f"the worker died of {exit_signal} and sent no result."
    if report.memory is not None:
        used, limit = report.memory / MIB, (limits.memory_bytes or 0) / MIB
        status = "memory_limit"
        words = f"the worker was killed: it used {used:.0f} MiB, and {limits.memory_name} is {limit:g}."
    elif time_limit_s is not None:
        status, words = "timeout", f"the worker was killed at its time limit of {time_limit_s:g} s."
    elif returncode is None:
        words = "the process that watches the worker was killed, and the worker with it."
    elif exit_signal is None:
        words = f"the worker ended with exit status {returncode} and sent no result."
    elif exit_signal == "SIGKILL":
        words += " Somebody killed it, or the system did because memory ran out."
    return Outcome(status=status, error=words, exit_status=3, exit_signal=exit_signal)


def _failure(error: Mapping[str, Any]) -> Outcome:
    return Outcome(
        status="config_error" if error["exit_status"] == InvalidRequest.exit_status else "failed",
        error=visible(error["message"]),
        error_type=visible(error["type"]),
        problems=tuple(map(visible, error["problems"])),
        facts=error["facts"],
        exit_status=error["exit_status"],
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(log_path: Path, start: int) -> tuple[str, ...]:
    """The end of what this worker wrote, as it may be shown; nothing where a job took its log away."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - LAST_BYTES))
            text = log.read(LAST_BYTES).decode(errors="replace")
    except OSError:
        return ()
    return tuple(visible(line) for line in text.splitlines()[-LAST_LINES:])
