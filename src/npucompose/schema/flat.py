"""A tree of plain data as dotted paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`flat({"a": {"b": 1}, "c": {}})` is `{"a.b": 1, "c": {}}`: lists and empty mappings are leaves."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= flat(cast("Mapping[str, Any]", value), f"{path}.")
        else:
            found[path] = value
    return found
