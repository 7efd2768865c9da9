"""The patterns in which a configuration names things: arguments, nodes, modules, streams. One grammar for all."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

REGEX = "re:"


def fits(pattern: str, text: str) -> bool:
    """Exact text, an fnmatch glob, or `re:` and a regular expression for the whole text; re.error where it is none."""
    if pattern.startswith(REGEX):
        return re.fullmatch(pattern.removeprefix(REGEX), text) is not None
    return pattern == text or fnmatchcase(text, pattern)
