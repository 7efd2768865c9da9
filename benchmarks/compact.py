"""JSON that is committed: whatever fits into a line is one, so that a diff shows which row is another."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 480


def compact(value: Any, indent: int = 0) -> str:
    """`value` as JSON; lists and objects that are longer than a line have a line for each item."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= WIDTH or not isinstance(value, (list, dict)):
        return line
    inside = " " * (indent + 1)
    if isinstance(value, list):
        items, ends = [compact(item, indent + 1) for item in value], "[]"
    else:
        items = [f"{json.dumps(name, ensure_ascii=False)}: {compact(item, indent + 1)}" for name, item in value.items()]
        ends = "{}"
    return f"{ends[0]}\n{inside}" + f",\n{inside}".join(items) + f"\n{' ' * indent}{ends[1]}"
