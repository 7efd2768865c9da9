"""How many threads a kernel takes belongs to the key of everything that was decided with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_free.store import Store
from npucompose.compose.tree import compose
from npucompose.experiment.job import Job
from npucompose.experiment.run import ActiveRun
from npucompose.machine import THREAD_VARIABLES

PLANNED = ("model=add", "passes=[stream_plan]", "pipeline=check")


def keys(*overrides: str) -> dict[str, str]:
    return dict(Job.from_composed(compose((*PLANNED, *overrides))).keys)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT", "GOMP_CPU_AFFINITY"])
def test_another_number_of_threads_is_another_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = keys()
    monkeypatch.setenv(name, "2")
    two = keys()
    monkeypatch.setenv(name, "1")
    one = keys()
    for stage in ("compile", "capture"):
        assert len({without[stage], two[stage], one[stage]}) == 3


@pytest.mark.parametrize("target", ["cpu", "null_device"])
def test_threads_count_on_every_target(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    two = keys(f"target={target}", "pipeline=compile_only")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert keys(f"target={target}", "pipeline=compile_only")["compile"] != two["compile"]


@pytest.mark.parametrize("override", ["benchmark.threads=1", "target.stream_threads=1"])
def test_threads_that_the_experiment_names_decide_the_plan_anew(override: str) -> None:
    assert keys(override)["compile"] != keys()["compile"]


def test_cores_that_the_process_lost_decide_the_plan_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys()
    monkeypatch.setattr("npucompose.targets.cpu.usable_cores", lambda: 64)
    more = keys()
    monkeypatch.setattr("npucompose.targets.cpu.cpu_quota", lambda: 1.5)
    assert len({before["compile"], more["compile"], keys()["compile"]}) == 3


def test_a_worker_elsewhere_has_the_settings_of_threads_of_the_process_that_made_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray sets OMP_NUM_THREADS on the node; what the person did not set must not be set there."""
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    remote = ActiveRun.begin(Job.from_composed(compose(PLANNED)), tmp_path, Store(tmp_path / "store")).remote_task
    monkeypatch.delenv("MKL_NUM_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    env = remote.on_this_machine().environment
    assert env is not None
    assert "OMP_NUM_THREADS" not in env
    assert env["MKL_NUM_THREADS"] == "3"
