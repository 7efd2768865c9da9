"""Whole runs through the command line, in a folder of their own, with a small model."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nursery import cold, command

from npucompose.errors import NpuComposeError
from npucompose.experiment.run import ActiveRun

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["benchmark=quick", "model=python", "trust=true", "model.factory=small:make"]

FACTORY = """
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from npucompose.models.base import Built


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return torch.relu(x @ x.T) + self.total


def compared():
    return any(Path(".npucompose/records/replay").glob("*.json"))


def make():
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(4, 4, generator=generator) for _ in range(3)]

    def inputs(step):
        if Path("kill").exists() and compared():
            os.kill(os.getpid(), signal.SIGKILL)
        if Path("hang").exists() and compared():
            time.sleep(600)
        if Path("raise").exists() and compared():
            raise RuntimeError("out of tea")
        return {"x": values[step].clone()}

    return Built(module=Small().eval(), inputs=inputs, steps=3)
"""


def launch(
    folder: Path, *overrides: str, started: Callable[..., list[str]] = command
) -> subprocess.CompletedProcess[str]:
    (folder / "small.py").write_text(FACTORY)
    return subprocess.run(
        started("run.py", *QUICK, *overrides), cwd=folder, capture_output=True, text=True, check=False
    )


def report_of(folder: Path) -> dict[str, Any]:
    """The newest report below the folder."""
    newest = max(folder.glob("outputs/*/*/report.json"), key=lambda p: p.stat().st_mtime_ns)
    return json.loads(newest.read_text())


def records(folder: Path) -> dict[str, int]:
    """{stage: when its record was written}."""
    return {p.parent.name: p.stat().st_mtime_ns for p in folder.glob(".npucompose/records/*/*.json")}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left below `outputs`."""
    folder = tmp_path_factory.mktemp("finished")
    done = launch(folder, "mode=reduce-overhead", "passes=stream_plan", started=cold)
    assert done.returncode == 0, done.stderr + done.stdout
    (left,) = folder.glob("outputs/*/*")
    return left


@pytest.fixture(scope="module")
def finished(left: Path) -> Path:
    """The folder of that run, in which other tests start it again."""
    return left.parents[2]


def test_a_run_leaves_its_report_its_timeline_and_a_lock(left: Path) -> None:
    assert {"report.json", "report.html", "trace.json", "recipe.lock.yaml", "run.log"} <= {
        p.name for p in left.iterdir()
    }


def test_a_run_reports_what_it_did(left: Path) -> None:
    report = json.loads((left / "report.json").read_text())
    assert report["status"] == "ok"
    assert report["numerics"]["bitwise"] is True
    assert report["stages"]["benchmark"]["speedup"]["eager"] > 0
    assert len(report["stages"]["benchmark"]["samples_us"]) >= 5
    assert report["passes"][0]["name"] == "stream_plan"
    assert report["provenance"]["mode.name"].endswith("chosen on the command line")
    assert report["reused"] is False
    assert report["recompiles"] == []
    assert {p.name for p in (left / "graphs").iterdir()} == {"graph_0.before.txt", "graph_0.after.txt", "graph_0.json"}


def test_a_finished_run_does_nothing(finished: Path) -> None:
    before = records(finished)
    done = launch(finished, "mode=reduce-overhead", "passes=stream_plan")
    assert done.returncode == 0, done.stderr
    assert report_of(finished)["reused"] is True
    assert records(finished) == before


def test_a_deleted_record_is_the_only_one_written_again(finished: Path) -> None:
    before = records(finished)
    next((finished / ".npucompose/records/capture").iterdir()).unlink()
    done = launch(finished, "mode=reduce-overhead", "passes=stream_plan")
    assert done.returncode == 0, done.stderr
    after = records(finished)
    assert {stage for stage in after if after[stage] != before[stage]} == {"capture"}
    assert report_of(finished)["reused"] is False


@pytest.mark.slow
def test_another_option_of_the_benchmark_keeps_the_earlier_stages(finished: Path) -> None:
    done = launch(finished, "mode=reduce-overhead", "passes=stream_plan", "benchmark.warmup=3")
    assert done.returncode == 0, done.stderr
    reused = {r["stage"]: r["reused"] for r in report_of(finished)["records"]}
    assert reused == {"compile": True, "capture": True, "replay": True, "benchmark": False}


def test_a_killed_worker_is_crashed_and_the_next_run_resumes_after_its_records(tmp_path: Path) -> None:
    (tmp_path / "kill").touch()
    done = launch(tmp_path)
    assert not list(tmp_path.glob("outputs/*/*/recipe.lock.yaml"))  # there is nothing that it could hold to
    assert done.returncode == 3
    report = report_of(tmp_path)
    assert report["status"] == "crashed"
    assert "SIGKILL" in report["error"]
    assert report["stages"]["benchmark"] is None
    before = records(tmp_path)
    assert set(before) == {"compile", "capture", "replay"}
    (tmp_path / "kill").unlink()
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    after = records(tmp_path)
    assert {stage: after[stage] for stage in before} == before
    assert set(after) == {"compile", "capture", "replay", "benchmark"}


@pytest.mark.slow
def test_a_hanging_worker_is_a_timeout(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    done = launch(tmp_path, "pipeline.time_limit_s=40")
    assert done.returncode == 3
    report = report_of(tmp_path)
    assert report["status"] == "timeout"
    assert any("inputs" in line for line in report["last_lines"])


def test_a_stage_that_raises_is_failed_and_told_in_a_paragraph(tmp_path: Path) -> None:
    (tmp_path / "raise").touch()
    done = launch(tmp_path)
    assert done.returncode == 3
    assert report_of(tmp_path)["status"] == "failed"
    assert "stage 'benchmark' failed: RuntimeError: out of tea" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missed_expectation_is_exit_1_and_names_both_sides(tmp_path: Path) -> None:
    done = launch(tmp_path, "expect.captures=2", "pipeline=check")
    assert done.returncode == 1
    assert report_of(tmp_path)["status"] == "expect_failed"
    assert "expect.captures wanted 2, got 1" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_worker_and_says_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    (tmp_path / "small.py").write_text(FACTORY)
    process = subprocess.Popen(command("run.py", *QUICK), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while "replay" not in records(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; finished stages are kept" in told
    assert "Traceback" not in told
    assert set(records(tmp_path)) == {"compile", "capture", "replay"}


def test_nothing_is_written_into_a_folder_that_leads_elsewhere_now(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "run"
    there.mkdir()
    here.symlink_to(there)
    job: Any = None
    store: Any = None
    run = ActiveRun(job=job, run_dir=here, place=tmp_path / "run", store=store, finished=())
    with pytest.raises(NpuComposeError, match=r"leads elsewhere now.*nothing was written"):
        run.finish(None)
    assert not list(there.iterdir())
