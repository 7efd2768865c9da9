"""Where the times of kernels on this machine are kept: a file for each processor, torch, replayer and thread count.

They lie in the cache of the machine, beside the native replayer whose kernels they are of. Loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import suppress
from pathlib import Path

from npucompose import private
from npucompose.machine import cache_dir, cpu_model, cpu_quota, thread_settings, usable_cores
from npucompose.replay.executor import build
from npucompose.schema.cost_table import CostTable

VERSION = 1
"""Of what a table holds; with another one it is measured anew."""


def folder() -> Path:
    """Of the tables that hold here."""
    replayer = build.state()
    identity = (
        VERSION,
        cpu_model(),
        platform.machine(),
        usable_cores(),
        cpu_quota(),
        replayer.words if replayer.kind == "built" else None,
        tuple(sorted(thread_settings().items())),
    )
    return cache_dir() / "calibration" / hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def read(threads: int) -> CostTable | None:
    """The table that is kept; None for none, and for a file that is none or that others could have written."""
    file = folder() / f"{threads}.json"
    if not file.is_file() or private.doubt(file, cache_dir()) is not None:
        return None
    try:
        return CostTable.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # it is measured anew, and replaced


def kept() -> list[CostTable]:
    """All that hold here, by their threads."""
    counts = sorted(int(file.stem) for file in folder().glob("*.json") if file.stem.isdecimal())
    return [table for table in map(read, counts) if table is not None]


def keep(table: CostTable) -> None:
    """Written whole or not at all; where nothing can be kept the next process measures again."""
    file = folder() / f"{table.threads}.json"
    with suppress(OSError):
        private.make(file.parent, cache_dir())
        beside = file.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(table.as_dict()), encoding="utf-8")
        private.close(file.parent)
        beside.replace(file)
