"""Where the points of a sweep run: the executor that was chosen, what it is given, what a node answers."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from airflow_free.errors import OrchestratorError
from airflow_free.executors import ray, slurm
from airflow_free.executors.local import LocalExecutor
from airflow_free.executors.ray import RayOptions
from airflow_free.executors.slurm import SlurmOptions
from airflow_free.store import Store
from npucompose import private
from npucompose.compose.tree import compose
from npucompose.errors import MissingExtra, NpuComposeError
from npucompose.experiment import orchestrator, run
from npucompose.experiment.job import CACHES, Job
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep.plan import check_installed
from npucompose.experiment.sweep.run import executor_of
from npucompose.schema.sweep import Local, Ray, Slurm


def test_each_choice_has_its_executor_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "RayExecutor", lambda options: ("ray", options))
    monkeypatch.setattr(slurm, "SlurmExecutor", lambda options, folder: ("slurm", options, folder))
    local = executor_of(Local(jobs=3, devices=(4,)), tmp_path)
    assert isinstance(local, LocalExecutor)
    assert (local.jobs, local.devices) == (3, (4,))
    assert executor_of(Ray(cpus=2), tmp_path) == ("ray", RayOptions(cpus=2))
    assert executor_of(Slurm(gres="npu:1"), tmp_path) == ("slurm", SlurmOptions(gres="npu:1"), tmp_path)
    check_installed(Local())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="submitit"):
        check_installed(Slurm())


@pytest.mark.parametrize(("own", "theirs"), [(Ray, RayOptions), (Slurm, SlurmOptions)])
def test_our_options_are_those_of_the_orchestrator_with_the_same_defaults(own: type, theirs: type) -> None:
    ours = attrs.asdict(own())
    del ours["name"]
    assert ours == attrs.asdict(theirs())


def test_a_run_is_a_task_for_this_machine_and_another_for_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("A_PERSON_S_TOKEN", "1")
    (tmp_path / "run").mkdir()
    job = Job.from_composed(compose(["model=add", "pipeline=check", "pipeline.time_limit_s=9"]))
    one = ActiveRun.begin(job, tmp_path / "run", Store(tmp_path / "store"))
    task, remote = one.task, one.remote_task
    sent = {**one.payload, CACHES: private.make_private()}
    assert (task.entry, task.payload, task.time_limit_s) == (run.ENTRY, sent, 9)
    assert (task.log_path, task.program) == (tmp_path / "run" / "run.log", "npucompose")
    assert task.limits.memory_name == "pipeline.memory_limit_mb"
    assert task.environment == orchestrator.worker_environment(job.checked.target.environment())
    assert "A_PERSON_S_TOKEN" not in task.environment
    assert one.loaded == (*job.checked.target.loaded, *run.LOADED)
    assert (remote.task.entry, remote.task.environment) == (run.REMOTE_ENTRY, None)
    assert remote.task.payload == {**one.payload, "context": job.ingredients.context}
    assert remote.env["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    there = remote.on_this_machine().environment
    assert there is not None
    assert (there["OMP_NUM_THREADS"], "OMP_DYNAMIC" in there, "A_PERSON_S_TOKEN" in there) == ("3", False, False)
    assert there["PATH"] == os.environ["PATH"]


def test_a_node_unlike_the_planning_machine_is_refused_with_five_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose(["model=add", "pipeline=compile_only"])
    context = {part: dict(values) for part, values in Job.from_composed(composed).ingredients.context.items()}
    payload = {"tree": composed.tree, "provenance": composed.provenance, "context": context}
    monkeypatch.setattr(run, "work", lambda payload, notify: {"worked": payload is not None})
    assert run.remote_work(payload, lambda event: None) == {"worked": True}
    context["versions"]["torch"] = "another"
    del context["versions"]["python"]
    with pytest.raises(NpuComposeError) as caught:
        run.remote_work(payload, lambda event: None)
    assert "versions.torch is another there and " in str(caught.value)
    assert "versions.python is missing there and " in str(caught.value)
    assert "more" not in str(caught.value)
    context["device"] = {f"name{n}": "x" * 41 for n in range(4)} | context["device"]
    with pytest.raises(
        NpuComposeError, match=r"device\.name2 is xxxxxxxxxxxx… there and missing on the node and 1 more"
    ):
        run.remote_work(payload, lambda event: None)
    assert run._short("x" * 40) == "x" * 40


def test_where_nothing_listens_ray_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for minutes."""
    asked: list[str] = []
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda **settings: asked.append(settings["address"])))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ray._connected(address)
    assert asked == [address]
    with pytest.raises(OrchestratorError, match=f"executor.address={address}: no Ray cluster answers"):
        ray._connected(address)
    assert asked == [address]
