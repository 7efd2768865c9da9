"""An exception as words for a person."""

from __future__ import annotations

from npucompose.errors import NpuComposeError

LONGEST = 1500


def paragraph(error: BaseException) -> str:
    """Our own errors say it already; of others the type and the message, on one line and not endless.

    `ValueError("too much\\n  salt")` reads `ValueError: too much salt`.
    """
    if isinstance(error, NpuComposeError):
        return str(error)
    words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}… (the rest is in the log)"
