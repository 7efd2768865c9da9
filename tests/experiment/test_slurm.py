"""executor=slurm through submitit, with programs that stand for Slurm's: what is asked of it, and what comes back."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_slurm import install
from sweeping import ROOT, by_factory, check_folders, entries, none_left, statuses, sweep, write_factories

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("submitit") is None, reason="needs submitit: pip install 'npucompose[slurm]'"
    ),
]
POINTS = ["model=python", "trust=true", "pipeline=check", "executor=slurm", "executor.poll_s=0.2"]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the jobs; their scripts stay there."""
    queue = tmp_path / "queue"
    queue.mkdir()
    install(queue)
    monkeypatch.setenv("FAKE_SLURM", str(queue))
    monkeypatch.setenv("PATH", f"{queue}{os.pathsep}{os.environ['PATH']}")
    return queue


def test_points_are_jobs_with_what_the_yaml_asks_for_and_end_as_everywhere(queue: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    factories = "points:fine,points:kills,points:raises"
    asked = ["executor.partition=npu", "executor.gres=npu:1", "+executor.parameters.account=me"]
    swept = [*POINTS, f"model.factory={factories}", *asked]
    done = sweep(folder, *swept)
    assert done.returncode == 3, done.stdout + done.stderr
    assert statuses(folder) == {"ok": 1, "crashed": 1, "failed": 1}, done.stdout
    check_folders(folder)
    told = by_factory(folder)
    assert told["kills"].exit_signal == "SIGKILL"
    assert "RuntimeError: out of tea" in str(told["raises"].error)
    script = (queue / "1.script").read_text()
    for line in ("--partition=npu", "--gres=npu:1", "--account=me", "--no-requeue", "--time=40", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in script, script
    assert "--exclusive" not in script
    healed = sweep(folder, *swept, "retry=failed")
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert "1 were done before" in healed.stdout
    assert statuses(folder) == {"ok": 3}


def test_a_job_that_slurm_kills_is_crashed_and_ctrl_c_cancels_the_others(queue: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    write_factories(folder)
    swept = [*POINTS, "model.factory=points:hangs,points:fine", "executor.jobs=1"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run.py"), "-m", *swept], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    _wait_for(folder / "hangs")
    os.killpg(int((queue / "1.pid").read_text()), signal.SIGKILL)
    _wait_for(queue / "2.pid")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told
    (crashed,) = entries(folder)
    assert crashed.status == "crashed"
    assert "Slurm ended job 1 before it sent a result" in str(crashed.error)
    assert none_left(folder)


def test_the_same_without_slurm_by_submitits_own_processes(tmp_path: Path) -> None:
    swept = ["executor=slurm", "executor.cluster=local", "executor.poll_s=0.2", "model=add", "pipeline=compile_only"]
    done = sweep(tmp_path, *swept, "seed=1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(tmp_path) == {"ok": 2}
    assert none_left(tmp_path)


def test_without_slurm_the_refusal_is_a_paragraph(tmp_path: Path) -> None:
    done = sweep(tmp_path, "executor=slurm", "model=add", "seed=1,2")
    assert done.returncode == 3
    assert "executor=slurm: " in done.stderr
    assert "Traceback" not in done.stderr


def _wait_for(file: Path) -> None:
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{file.name} did not come")
