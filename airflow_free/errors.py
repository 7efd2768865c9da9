"""Exceptions of the orchestrator, and any exception as words for a person. Knows nothing but words.

An exception written for people carries an `exit_status`, what a command line should end with: 2 nothing was run, 3 it
failed. One with `problems` has a sentence for each mistake. Stages may raise such exceptions of their own.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import ClassVar

LONGEST = 1500
_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Characters that Python calls printable and that show nothing: Unicode's Default_Ignorable_Code_Point (16.0) as far as
it has letters, marks and symbols, and the blanks of Braille, Hangul and musical notation."""


class OrchestratorError(Exception):
    """str(e) is one paragraph that a person can act on."""

    exit_status: ClassVar[int] = 3


class InvalidRequest(OrchestratorError):
    """What was asked for cannot be done, and nothing was run. `problems` holds one sentence for each mistake."""

    exit_status: ClassVar[int] = 2

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__("\n".join(problems))


def exit_status_of(error: BaseException) -> int | None:
    """Of an exception written for people; None for every other."""
    status = getattr(error, "exit_status", None)
    return status if isinstance(status, int) else None


def problems_of(error: BaseException) -> tuple[str, ...]:
    """The sentences of an exception that says that nothing was run; none for every other."""
    return tuple(getattr(error, "problems", ())) if exit_status_of(error) == InvalidRequest.exit_status else ()


def paragraph(error: BaseException) -> str:
    """An exception written for people says it already; of others the type and the message, on one line and not endless.

    `ValueError("too much\\n  salt")` reads `ValueError: too much salt`.
    """
    if exit_status_of(error) is not None:
        return str(error)
    words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}… (the rest is in the log)"


def first_line(error: BaseException) -> str:
    """Of what it says; its type where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def unknown(kind: str, name: str, choices: Sequence[str], where: str = "") -> str:
    """`unknown stage 'bak' @ the order. Did you mean 'bake'? Choices: knead, bake.`"""
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    at = f" @ {where}" if where else ""
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"unknown {kind} '{name}'{at}. {hint}Choices: {', '.join(choices)}."


def visible(text: str) -> str:
    """Without what a terminal would obey or hide: `\\x1b` for an escape character; lines stay lines."""
    if text.isascii():
        return text if text.isprintable() else _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    text = _BLANK.sub(lambda found: ascii(found[0])[1:-1], text)
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
