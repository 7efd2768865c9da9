"""How a worker ended, and what it said on its way: the parent's half of the protocol, whoever started the worker.

Events and the last word are lines of JSON in a pipe; nothing is pickled, so a worker that dies in the middle of a word
leaves nothing half understood.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from airflow_free.stage import Event, Tell
from npucompose.errors import ConfigError

OutcomeStatus = Literal["done", "failed", "crashed", "timeout", "config_error"]

LAST_LINES = 20
LAST_BYTES = 16_384
GRACE_S = 3.0
"""How long a worker that was told to end, or that has sent its result, may take before it is killed."""
STACK_S = 0.5
"""How long a worker that hangs gets to write its stack to the log."""
STACK_SIGNAL = signal.SIGUSR1


@frozen(kw_only=True)
class Outcome:
    """How a worker ended. `result` is there exactly when the status is `done`, `error` (a paragraph) when it is not."""

    status: OutcomeStatus
    result: dict[str, Any] | None = None
    error: str | None = None
    error_type: str | None = None
    problems: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    """A sentence for each operator that an adaptation rule rejects."""
    exit_status: int = 0
    """What a command line that ran nothing else should end with."""
    exit_signal: str | None = None
    last_lines: tuple[str, ...] = ()
    seconds: float = 0.0


class Hearing:
    """The reading end of a worker's pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self.ended = False
        """No process holds the other end any more."""
        self.last_word: dict[str, Any] | None = None
        self._buffer = b""

    def read(self, on_event: Tell) -> None:
        """Pass on everything that is in the pipe now; a line without its end waits for the rest."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.pipe, 65536):
                self._buffer += chunk
            self.ended = True
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            word: dict[str, Any] = json.loads(line)
            if word["word"] == "event":
                on_event(Event.of_dict(word["event"]))
            else:
                self.last_word = word

    def close(self) -> None:
        os.close(self.pipe)


def outcome_of(word: dict[str, Any] | None, returncode: int, time_limit_s: float | None) -> Outcome:
    """From the last word, the return code (negative: the signal) and the time limit, if that was reached."""
    if word is not None and word["word"] == "result":
        return Outcome(status="done", result=word["result"])
    if word is not None:
        return Outcome(
            status="config_error" if word["exit_status"] == ConfigError.exit_status else "failed",
            error=word["message"],
            error_type=word["type"],
            problems=tuple(word["problems"]),
            rejected=tuple(word["rejected"]),
            exit_status=word["exit_status"],
        )
    exit_signal = _signal_name(-returncode) if returncode < 0 else None
    if time_limit_s is not None:
        words = f"the worker was killed at its time limit of {time_limit_s:g} s."
        return Outcome(status="timeout", error=words, exit_status=3, exit_signal=exit_signal)
    if exit_signal is None:
        words = f"the worker ended with exit status {returncode} and sent no result."
    else:
        words = f"the worker died of {exit_signal} and sent no result."
        if exit_signal == "SIGKILL":
            words += " Somebody killed it, or the system did because memory ran out."
    return Outcome(status="crashed", error=words, exit_status=3, exit_signal=exit_signal)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(log_path: Path, start: int) -> tuple[str, ...]:
    """The end of what this worker wrote."""
    with log_path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - LAST_BYTES))
        text = log.read().decode(errors="replace")
    return tuple(text.splitlines()[-LAST_LINES:])
