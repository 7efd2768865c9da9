"""Ray and a machine elsewhere played by this test: what they are asked for, and what becomes of an answer."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from airflow_free import executors
from airflow_free.errors import OrchestratorError
from airflow_free.executors import Delivery, RemoteTask, fulfil, fulfil_here, ray, remote_task
from airflow_free.executors.local import LocalExecutor, Slot
from airflow_free.executors.ray import RayOptions
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.store import Record, Store
from tests.airflow_free.begun_points import KEY, begun, job, task

# Note [Private names]
# No Ray runs here: its answers, and what is asked of it between them, are written by hand.


def record(stage: str = "knead", key: str = KEY, **facts: Any) -> Record:
    return Record(stage=stage, key=key, facts=facts, seconds=1.0)


# This machine.


def test_without_a_number_of_jobs_there_is_one_for_each_core_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = {0: {1, 4, 6}, 1: {0}}  # 0 is who asks
    monkeypatch.setattr(os, "sched_getaffinity", cores.__getitem__)
    assert LocalExecutor(tmp_path).jobs == 3
    assert LocalExecutor(tmp_path, jobs=2).jobs == 2


def test_the_local_executor_gives_each_job_a_slot_until_its_outcome(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path, jobs=1)
    assert executor.pool.log_path == tmp_path / "forkserver.log"
    started: list[Any] = []
    events: list[Any] = []
    executor.pool = SimpleNamespace(  # type: ignore[assignment]
        start=started.append, events=lambda: events, __exit__=lambda *end: started.append(end)
    )
    one = begun(tmp_path)
    assert executor.has_room(one.job)
    executor.start(3, one)
    assert executor.taken == {3: Slot(device="cpu", measures=False)}
    assert not executor.has_room(one.job)
    assert started == [evolve(one.task, number=3, loaded=("mine",), late_env={})]
    events.append((3, "an event"))
    assert executor.events() == events
    assert 3 in executor.taken
    events.append((3, Outcome(status="done")))
    executor.events()
    assert executor.taken == {}
    executor.__exit__(None, None, None)
    assert started[1:] == [(None, None, None)]


def test_a_slot_s_variable_reaches_the_job(tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path, devices=(4,))
    started: list[Any] = []
    executor.pool = SimpleNamespace(start=started.append)  # type: ignore[assignment]
    executor.start(0, begun(tmp_path, variable="ASCEND_RT_VISIBLE_DEVICES"))
    assert started[0].late_env == {"ASCEND_RT_VISIBLE_DEVICES": "4"}


# Ray.


class Cluster(ModuleType):
    """The module `ray`, and a cluster behind it."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[Any] = []
        self.answers: dict[Any, Any] = {}
        self.alive = [{"CPU": 4, "GPU": 2, "node:10.0.0.1": 1}, {"CPU": 8}]
        self.fails: Exception | None = None
        self.exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=LostError)

    def init(self, **options: Any) -> None:
        self.calls.append(("init", options))
        if self.fails:
            raise self.fails

    def nodes(self) -> list[Any]:
        return [*({"Resources": one, "Alive": True} for one in self.alive), {"Resources": {"CPU": 99}, "Alive": False}]

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.calls.append(("remote", options))

        def decorate(function: Any) -> Any:
            def options(**needs: Any) -> Any:
                def start(order: Any) -> str:
                    self.calls.append((function, needs, order))
                    return f"task {len(self.calls)}"

                return SimpleNamespace(remote=start)

            return SimpleNamespace(options=options)

        return decorate

    def wait(self, tasks: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        if isinstance(self.answers[task], Exception):
            raise self.answers[task]
        return self.answers[task]

    def cancel(self, task: Any, *, force: bool) -> None:
        self.calls.append(("cancel", task, force))

    def shutdown(self) -> None:
        self.calls.append("shutdown")


class LostError(Exception):
    pass


class TaskError(LostError):
    pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return found


def test_a_cluster_is_joined_quietly_and_left_with_its_tasks_killed(cluster: Cluster, tmp_path: Path) -> None:
    executor = ray.RayExecutor(RayOptions())
    assert cluster.calls == [
        ("init", {"address": "auto", "log_to_driver": False, "logging_level": logging.ERROR,
                  "configure_logging": False}),
        ("remote", {"max_retries": 0, "retry_exceptions": False}),
    ]  # fmt: skip
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    one = begun(tmp_path)
    executor.start(5, one)
    function, needs, order = cluster.calls[2]
    assert (function, needs) == (fulfil, {"num_cpus": 1, "num_gpus": 0, "resources": {}})
    assert order == one.remote_task
    executor.__exit__(None, None, None)
    assert cluster.calls[3:] == [("cancel", "task 3", True), "shutdown"]


@pytest.mark.parametrize("error", [OSError("x"), RuntimeError("x"), ValueError("x")])
def test_a_cluster_that_does_not_answer_is_told_with_its_address(error: Exception, cluster: Cluster) -> None:
    cluster.fails = error
    with pytest.raises(OrchestratorError, match=r"executor.address=auto: no Ray cluster answers \("):
        ray.RayExecutor(RayOptions())


@pytest.mark.parametrize(("address", "asked"), [("auto", None), ("ray://head:10001", "head"), ("head:6379", "head")])
def test_an_address_with_a_port_is_knocked_at(address: str, asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    knocked: list[Any] = []

    def knock(*place: Any) -> Any:
        knocked.append(place)
        return SimpleNamespace(close=lambda: knocked.append("closed"))

    monkeypatch.setattr(socket, "create_connection", knock)
    ray._knock(address)
    port = int(address.rpartition(":")[2]) if asked else 0
    assert knocked == ([((asked, port), 10.0), "closed"] if asked else [])


@pytest.mark.parametrize(
    ("options", "about", "needs"),
    [
        (RayOptions(), {}, {"CPU": 1}),
        (RayOptions(), {"measures": True}, {"CPU": 8}),
        (RayOptions(cpus=2.5), {"measures": True}, {"CPU": 2.5}),
        (RayOptions(resources={"a3": 1}), {}, {"a3": 1, "CPU": 1}),
        (RayOptions(), {"measures": True, "variable": "CUDA_VISIBLE_DEVICES"}, {"CPU": 1, "GPU": 1}),
        (RayOptions(devices=2), {"variable": "ASCEND_RT_VISIBLE_DEVICES"}, {"CPU": 1, "NPU": 2}),
        (RayOptions(devices=0), {"variable": "CUDA_VISIBLE_DEVICES"}, {"CPU": 1}),
        (RayOptions(devices=2), {}, {"CPU": 1}),
    ],
)
def test_a_point_asks_for_what_it_needs(
    options: RayOptions, about: dict[str, Any], needs: dict[str, float], cluster: Cluster
) -> None:
    assert ray.RayExecutor(options)._needs(job(**about)) == needs


def test_without_a_node_a_point_that_measures_asks_for_one_cpu(cluster: Cluster) -> None:
    cluster.alive = []
    assert ray.RayExecutor(RayOptions())._needs(job(measures=True)) == {"CPU": 1}


def test_there_is_room_for_as_many_as_the_idle_nodes_could_take(cluster: Cluster, tmp_path: Path) -> None:
    def room(options: RayOptions, running: int, **about: Any) -> bool:
        executor = ray.RayExecutor(options)
        executor.running = dict.fromkeys(range(running), (0, begun(tmp_path)))
        return executor.has_room(job(**about))

    assert (room(RayOptions(), 11), room(RayOptions(), 12)) == (True, False)
    assert (room(RayOptions(jobs=2), 1), room(RayOptions(jobs=2), 2)) == (True, False)
    # One on the small node, two on the large; what no node has is refused when it is started.
    assert (room(RayOptions(cpus=3), 2), room(RayOptions(cpus=3), 3)) == (True, False)
    assert (room(RayOptions(cpus=99), 0), room(RayOptions(cpus=99), 1)) == (True, False)
    assert ray._room([{"CPU": 4}], {"CPU": 2, "GPU": 1}) == 0
    assert ray._room([{"CPU": 4}], {"CPU": 2, "GPU": 0}) == 2


def test_what_no_node_has_is_refused_in_words(cluster: Cluster, tmp_path: Path) -> None:
    executor = ray.RayExecutor(RayOptions(cpus=16))
    executor.start(7, begun(tmp_path))
    assert executor.running == {}
    ((number, outcome),) = executor.events()
    assert (number, outcome) == (
        7, Outcome(status="failed", exit_status=3,
                   error="no node of the Ray cluster has CPU 16. Its nodes: CPU 4, GPU 2; CPU 8."),
    )  # fmt: skip
    assert executor.refused == []
    cluster.alive = []
    assert (ray._nowhere({"CPU": 1}, []).error or "").endswith("Its nodes: none is alive.")


def test_what_comes_back_is_unpacked_and_what_is_lost_is_an_outcome(cluster: Cluster, tmp_path: Path) -> None:
    executor = ray.RayExecutor(RayOptions())
    ends = (
        Delivery(outcome=Outcome(status="done"), log=b"printed\n"),
        TaskError("first\nsecond"),
        LostError("\n  the node died \nmore"),
        LostError(""),
    )
    found = []
    for number, answer in enumerate(ends):
        executor.start(number, begun(tmp_path))
        cluster.answers[next(iter(executor.running))] = answer
        found += executor.events()
    assert executor.running == {}
    assert found == [
        (0, Outcome(status="done")),
        (1, Outcome(status="failed", error="TaskError: first second", exit_status=3)),
        (2, Outcome(status="crashed", error="Ray lost the process of this job: the node died", exit_status=3)),
        (3, Outcome(status="crashed", error="Ray lost the process of this job: LostError", exit_status=3)),
    ]
    assert (tmp_path / "run" / "run.log").read_bytes() == b"printed\n"


# A machine elsewhere.


def test_what_is_sent_holds_what_is_finished_and_no_environment_of_this_machine(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record(a=1)
    store.write(one)
    own = task(tmp_path, environment={"HOME": "/here"})
    assert remote_task(own, store, [("knead", KEY), ("bake", "b" * 64)], env={"T": "1"}) == RemoteTask(
        task=evolve(own, environment=None), env={"T": "1"}, records=(one.text(),)
    )


def test_the_environment_is_made_on_the_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": "/there"})
    remote = RemoteTask(task=task(tmp_path), env={"T": "1"})
    assert remote.on_this_machine().environment == {"HOME": "/there", "T": "1"}
    monkeypatch.setattr("bakery.only", lambda env: {"ONLY": env["T"]}, raising=False)
    assert evolve(remote, environment="bakery:only").on_this_machine().environment == {"ONLY": "1"}


def test_of_what_comes_back_only_records_and_files_of_this_point_are_kept(tmp_path: Path) -> None:
    about = begun(tmp_path)
    (tmp_path / "run" / "run.log").write_text("before\n")
    mine, others = record(a=1), record("capture", "b" * 64)
    outcome = Outcome(status="done", result={})
    delivery = Delivery(
        outcome=outcome, log=b"printed\n", records=(mine.text(), others.text()),
        files={f"knead/{KEY}/deep/a.txt": b"one"},
    )  # fmt: skip
    assert delivery.unpack(about) == outcome
    assert (tmp_path / "run" / "run.log").read_text() == "before\nprinted\n"
    assert list(about.store.records()) == [mine]
    assert about.store.file("knead", KEY, "deep/a.txt").read_bytes() == b"one"
    assert (tmp_path / "run" / "beside" / "deep" / "a.txt").read_bytes() == b"one"


@pytest.mark.parametrize(
    "name", [f"knead/{'b' * 64}/a", f"capture/{KEY}/a", f"knead/{KEY}", f"knead/{KEY}/../a", f"knead/{KEY}/.."]
)
def test_a_file_that_belongs_to_no_stage_of_the_point_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OrchestratorError, match="belongs to no stage of this job"):
        Delivery(outcome=Outcome(status="done"), files={name: b""}).unpack(begun(tmp_path))


def test_elsewhere_a_worker_runs_in_folders_of_its_own_and_what_is_new_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, made = record(a=1), record("capture", "b" * 64)
    asked: list[WorkerTask] = []

    def run(task: WorkerTask) -> Outcome:
        store = Store(Path(task.payload["store"]))
        assert [one.key for one in store.records()] == [before.key]
        store.write(made)
        store.put_file("capture", "b" * 64, "x.txt", b"content")
        task.log_path.write_bytes(b"printed\n")
        asked.append(task)
        return Outcome(status="done")

    monkeypatch.setattr(executors, "run_in_worker", run)
    own = task(tmp_path, payload={"tree": 1, "store": "not here", "files": "not here"})
    assert fulfil(RemoteTask(task=own, env={"E": "1"}, records=(before.text(),))) == Delivery(
        outcome=Outcome(status="done"), log=b"printed\n", records=(made.text(),),
        files={f"capture/{'b' * 64}/x.txt": b"content"},
    )  # fmt: skip
    (ran,) = asked
    folder = Path(ran.payload["store"]).parent
    payload = {"tree": 1, "store": str(folder / "store"), "files": str(folder / "files")}
    assert ran == evolve(own, payload=payload, log_path=folder / "run.log", environment={**os.environ, "E": "1"})
    assert not folder.exists()


def test_where_folders_are_shared_the_worker_writes_where_a_local_one_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[WorkerTask] = []
    monkeypatch.setattr(executors, "run_in_worker", lambda task: asked.append(task) or Outcome(status="done"))
    assert fulfil_here(RemoteTask(task=task(tmp_path), env={"E": "1"})).status == "done"
    assert asked == [task(tmp_path, environment={**os.environ, "E": "1"})]
