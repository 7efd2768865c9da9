"""The line of the model that a node came from."""

from __future__ import annotations

import re

from torch import fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n\s*(?P<code>[^\n]*)')


def source_line(node: fx.Node) -> str:
    """`model.py:12: idx = mask.nonzero()`, the innermost call's file as it was named; '' when nothing is known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    last = frames[-1]
    return f"{last['file']}:{last['line']}: {last['code'].strip()}"
