"""What a test of target=npu_offline needs, and the way it runs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.npu.place import Place, missing

WHY = missing("npu_offline")
offline = pytest.mark.skipif(WHY is not None, reason=WHY or "")


def run(folder: Path, *overrides: str) -> tuple[int, dict[str, Any], str]:
    """One experiment on the simulated runtime, compared and not measured: exit status, report, stderr."""
    ran = Place(target="npu_offline", folder=folder).run(*overrides)
    return ran.status, dict(ran.report), ran.error


def in_a_process(script: Path, *arguments: str) -> Any:
    """The JSON object that a script prints, run in a process that may become a device without CANN."""
    return Place(target="npu_offline", folder=script.parent).printed(script, *arguments)
