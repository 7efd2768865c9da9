"""Result files of scripts that are stopped and started again: JSON, a line for each entry, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_free.store import write_atomically


def write(path: Path, head: Mapping[str, Any], **entries: Sequence[Mapping[str, Any]]) -> None:
    """`head`, and behind it each list of `entries` under its name, one line for each, so that a diff can be read."""
    parts = [f" {json.dumps(key)}: {_indented(value)}" for key, value in head.items()]
    for name, lines in entries.items():
        inside = ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in lines)
        parts.append(f" {json.dumps(name)}: [\n{inside}\n ]")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _indented(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n ")
