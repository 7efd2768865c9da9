"""A worker's environment: what Python, torch and devices read, and what a person names."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from airflow_free.errors import InvalidRequest, OrchestratorError
from airflow_free.forkserver import WorkerTask
from airflow_free.pool import run_in_worker
from npucompose.errors import ConfigError, NpuComposeError
from npucompose.experiment.orchestrator import (
    ALSO,
    PASSED,
    also_passing,
    default_store,
    translate_errors,
    worker_environment,
)
from npucompose.targets.cpu import CpuTarget

OURS = {"OMP_NUM_THREADS", "ASCEND_HOME_PATH", "HF_HUB_OFFLINE"}
THEIRS = {"MY_ROOT", "MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK", "GIT_ASKPASS"}
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "airflow_free"))


@pytest.fixture(autouse=True)
def a_person_s_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OURS, *THEIRS, "HF_HUB_TOKEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.delenv(ALSO, raising=False)


def test_what_torch_and_devices_read_passes_and_a_person_s_own_does_not() -> None:
    passed = worker_environment({"GIVEN": "1"})
    assert passed["PATH"] == os.environ["PATH"]
    assert {*OURS, "GIVEN"} <= set(passed)
    assert not THEIRS & set(passed)


def test_a_secret_does_not_pass_with_its_family() -> None:
    assert "HF_HUB_TOKEN" not in worker_environment({})


def test_a_person_names_what_else_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALSO, "MY_*, ,HF_HUB_TOKEN")
    assert {"MY_ROOT", "MY_TOKEN", "HF_HUB_TOKEN"} <= set(worker_environment({}))


def test_what_the_command_line_sets_for_the_job_passes_while_it_runs() -> None:
    with also_passing(["MY_ROOT"]):
        assert "MY_ROOT" in worker_environment({})
    assert "MY_ROOT" not in worker_environment({})
    assert ALSO not in os.environ


def test_the_page_lists_every_pattern() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for family, patterns in PASSED.items():
        row = re.search(rf"^\| {re.escape(family)} \|(.*)\|$", page, re.MULTILINE)
        assert row is not None, family
        assert re.findall(r"`([^`]+)`", row[1]) == list(patterns)


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NPUCOMPOSE_STORE", raising=False)
    assert default_store().root == Path(".npucompose")
    monkeypatch.setenv("NPUCOMPOSE_STORE", str(tmp_path))
    assert default_store().root == tmp_path
    assert default_store().advice == "Name another one with NPUCOMPOSE_STORE=folder."


@pytest.mark.slow
def test_the_server_that_forks_has_torch_one_thread_and_no_device(tmp_path: Path) -> None:
    task = WorkerTask(
        entry="bakery:look_at_the_fork", payload={}, time_limit_s=60, log_path=tmp_path / "log", loaded=CpuTarget.loaded
    )
    assert run_in_worker(task).result == {"torch": True, "dynamo": True, "cuda": False, "threads": 1}


def test_errors_of_the_orchestrator_become_ours() -> None:
    with pytest.raises(ConfigError) as wrong, translate_errors():
        raise InvalidRequest("one", "two")
    assert wrong.value.problems == ("one", "two")
    with pytest.raises(NpuComposeError, match="broken") as broken, translate_errors():
        raise OrchestratorError("broken")
    assert not isinstance(broken.value, ConfigError)
