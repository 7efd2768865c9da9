"""Answers in JSON: for programs, and laid out so that people can read them."""

from __future__ import annotations

import json
from typing import Any


def answer(printed: str, indent: int = 2) -> Any:
    """What a printed answer, or a file, says; each step inwards is so many blanks, and a line ends it."""
    inwards = printed.splitlines()[1]
    assert len(inwards) - len(inwards.lstrip()) == indent, printed[:80]
    assert printed.endswith(("}\n", "]\n", "}", "]"))
    return json.loads(printed)
