"""Where the times of kernels on this machine are kept: a file for each processor, torch, replayer and thread count.

They lie in the cache of the machine, beside the native replayer whose kernels they are of. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from npucompose import private
from npucompose.machine import cache_dir, processor, thread_settings
from npucompose.schema.cost_table import CostTable
from npucompose_replay.executor import build

VERSION = 1
"""Of what a table holds; with another one it is measured anew."""


def folder() -> Path:
    """Of the tables that hold here."""
    replayer = build.state()
    identity = (
        VERSION,
        *processor(),
        replayer.words if replayer.kind == "built" else None,
        tuple(sorted(thread_settings().items())),
    )
    return cache_dir() / "calibration" / hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def read(threads: int) -> CostTable | None:
    """The table that is kept; None for none, and for a file that is none or that others could have written."""
    file = folder() / f"{threads}.json"
    try:
        text = private.read(file, cache_dir())
        return None if text is None else CostTable.from_dict(json.loads(text))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # it is measured anew, and replaced


def kept() -> list[CostTable]:
    """All that hold here, by their threads."""
    counts = sorted(int(file.stem) for file in folder().glob("*.json") if file.stem.isdecimal())
    return [table for table in map(read, counts) if table is not None]


def keep(table: CostTable) -> None:
    """Written whole or not at all; where nothing can be kept the next process measures again."""
    private.keep(folder() / f"{table.threads}.json", cache_dir(), json.dumps(table.as_dict()))
