"""Text as it may be shown: nothing in it moves a cursor, turns a line around or rings a bell."""

from __future__ import annotations

import re

_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def visible(text: str) -> str:
    """Without what a terminal would obey or hide: `\\x1b` for an escape character; lines stay lines."""
    if text.isprintable():
        return text
    if text.isascii():
        return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
