"""`make test-npu` is one command on a host with its own torch_npu, and red where a device is there and nothing ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nursery import command

from tests.npu.place import ROOT
from tests.npu.results import visible


def test_make_takes_the_host_s_own_python_and_keeps_its_pythonpath() -> None:
    told = subprocess.run(
        ["make", "--dry-run", "--what-if=.bundle", "test-npu", "PYTHON=/opt/host/python3"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (line,) = [line for line in told.stdout.splitlines() if "pytest" in line]
    assert "/opt/host/python3 -m pytest" in line
    assert ".venv" not in line
    assert "${PYTHONPATH:+:$PYTHONPATH}" in line, "CANN's set_env.sh puts its own folder there"
    assert "numpy" in "".join(line for line in told.stdout.splitlines() if line.startswith("rm -rf .host/numpy"))


@pytest.mark.parametrize("name", ["ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"])
def test_who_chose_a_device_has_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(name, "3")
    assert visible() is not None


def test_a_visible_device_on_which_nothing_runs_is_red_at_once(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = subprocess.run(
        command(
            str(Path(pytest.__file__).with_name("__main__.py")), "-p", "no:cacheprovider", "-m", "npu",
            "tests/npu/test_claims.py", "--npu-result", str(file), "--basetemp", str(tmp_path / "pt"),
        ),
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "ASCEND_RT_VISIBLE_DEVICES": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 1
    assert "a device is visible" in done.stdout
    assert "and nothing ran" in done.stdout
    data = json.loads(file.read_text())
    assert {claim["verdict"] for claim in data["claims"]} == {"not run"}
    assert len(data["claims"]) > 60
