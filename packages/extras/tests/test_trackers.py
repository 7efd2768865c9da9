"""A whole run with a tracker that fails: the run is complete, and the failure is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npucompose.report import json as report_json

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [False, True])
def test_a_failing_tracker_loses_no_run(sweep: bool, tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "mlflow.py").write_text("raise ImportError('a broken installation')\n")
    paths = [str(tmp_path / "fake"), str(ROOT / "src"), str(ROOT)]
    command = [sys.executable, str(ROOT / "run.py"), "model=add", "pipeline=check", "tracker=mlflow"]
    command += ["-m", "seed=0,1"] if sweep else []
    done = subprocess.run(
        command,
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a broken installation") == 1
    reports = [report_json.load(path) for path in tmp_path.rglob("report.json")]
    assert [report.status for report in reports] == ["ok"] * (2 if sweep else 1)
