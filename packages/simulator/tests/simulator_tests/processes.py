"""Scripts of this folder, each run in a process that may become a device without CANN."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.npu import needs


def found_by_path() -> dict[str, str]:
    """The environment of a process that finds the tests' own modules as this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def in_a_process(script: str, *arguments: str) -> Any:
    """The JSON object that a script of this folder prints."""
    return needs.in_a_process(Path(__file__).with_name(script), *arguments)
