"""report.json: a Report on disk. Knows the file and nothing of what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from airflow_free.store import write_atomically
from npucompose.errors import ConfigError
from npucompose.results.record import Report
from npucompose.untrusted import read_text

FILE_NAME = "report.json"
MOST_BYTES = 100_000_000
"""Read of a file that may be a stranger's."""


def write(report: Report, folder: Path) -> Path:
    """Put report.json in the folder, whole or not at all, and return its path."""
    path = folder / FILE_NAME
    text = json.dumps(report.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text + "\n")
    return path


def load(place: Path) -> Report:
    """The report in a file, or in a run directory; ConfigError says what is wrong with it."""
    path = place / FILE_NAME if place.is_dir() else place
    try:
        if not path.exists():
            raise ConfigError(f"there is no {FILE_NAME} at {place}; give a run directory or the file itself.")
        data: Any = json.loads(read_text(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a report: {error}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is not a report: a mapping is wanted, not a {type(data).__name__}.")
    try:
        return Report.of_dict(cast("dict[str, Any]", data))
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {problem}" for problem in error.problems)) from error
