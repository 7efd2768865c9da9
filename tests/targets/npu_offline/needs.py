"""What a test of target=npu_offline needs, and the way it runs one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npucompose.errors import ConfigError
from npucompose.targets.npu_offline import NpuOfflineTarget

ROOT = Path(__file__).resolve().parents[3]


def missing() -> str | None:
    """Why it cannot run here, in the words that a person gets."""
    try:
        NpuOfflineTarget().check("max-autotune")
    except ConfigError as error:
        return str(error)
    return None


WHY = missing()
offline = pytest.mark.skipif(WHY is not None, reason=WHY or "")


def run(folder: Path, *overrides: str) -> tuple[int, dict[str, Any], str]:
    """`python run.py target=npu_offline …` in `folder`: exit status, report (empty when there is none), stderr.

    Flags such as `-m` come first, where Hydra wants them.
    """
    flags = [word for word in overrides if word.startswith("-")]
    rest = [word for word in overrides if word not in flags]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *flags, "target=npu_offline", "hydra.run.dir=out", *rest],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    report = folder / "out" / "report.json"
    return done.returncode, json.loads(report.read_text()) if report.is_file() else {}, done.stderr


def in_a_process(script: str, *arguments: str) -> Any:
    """The JSON object that a script of this folder prints, run in a process that may become a device without CANN."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *arguments],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            **NpuOfflineTarget().environment(),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
