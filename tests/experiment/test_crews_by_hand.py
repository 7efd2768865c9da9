"""Ray, Slurm and a machine elsewhere played by this test: what they are asked for, and what becomes of an answer."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_free.outcome import Limits, Outcome
from airflow_free.store import Record, Store
from npucompose.compose.tree import compose
from npucompose.errors import MissingExtra, NpuComposeError
from npucompose.experiment import run as experiment
from npucompose.experiment.run import Job
from npucompose.experiment.sweep.crew import check_installed, crew_of
from npucompose.experiment.sweep.crews import away, ray, slurm
from npucompose.experiment.sweep.crews.away import Delivery, Order, fulfil, fulfil_here
from npucompose.experiment.sweep.crews.local import LOADED, LocalCrew
from npucompose.experiment.sweep.schedule import Seat
from npucompose.schema.executor import Local, Ray, Slurm

KEY = "a" * 64


def job(*, measures: bool = False, variable: str | None = None, limit_s: float = 90.0) -> Any:
    return SimpleNamespace(
        measures=measures,
        limits=Limits(log_bytes=7, memory_bytes=8),
        keys={"compile": KEY},
        ingredients=SimpleNamespace(surroundings={"versions": {"torch": "2"}, "device": {}, "code": {}}),
        checked=SimpleNamespace(
            experiment=SimpleNamespace(pipeline=SimpleNamespace(time_limit_s=limit_s)),
            target=SimpleNamespace(
                device_variable=variable, environment=lambda: {"T": "1"}, loaded=("mine",), name="npu", device_index=0
            ),
        ),
    )


def begun(folder: Path, *records: Record, **about: Any) -> Any:
    store = Store(folder / "store")
    for record in records:
        store.write(record)
    (folder / "run").mkdir(exist_ok=True)
    return SimpleNamespace(
        job=job(**about), run_dir=folder / "run", store=store, payload={"tree": {"a": 1}, "provenance": {}},
        finished=tuple(SimpleNamespace(stage=r.stage, key=r.key) for r in records),
    )  # fmt: skip


def record(stage: str = "compile", key: str = KEY, **facts: Any) -> Record:
    return Record(stage=stage, key=key, facts=facts, seconds=1.0)


# Whose crew.


def test_each_executor_has_its_crew_and_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "RayCrew", lambda options: ("ray", options))
    monkeypatch.setattr(slurm, "SlurmCrew", lambda options, folder: ("slurm", options, folder))
    assert isinstance(crew_of(Local(), tmp_path), LocalCrew)
    assert crew_of(Ray(), tmp_path) == ("ray", Ray())
    assert crew_of(Slurm(), tmp_path) == ("slurm", Slurm(), tmp_path)
    check_installed(Local())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="submitit"):
        check_installed(Slurm())


def test_the_local_crew_gives_each_job_a_seat_until_its_outcome(tmp_path: Path) -> None:
    crew = LocalCrew(Local(jobs=1), tmp_path)
    assert crew.pool.log_path == tmp_path / "forkserver.log"
    started: list[Any] = []
    news: list[Any] = []
    crew.pool = SimpleNamespace(  # type: ignore[assignment]
        start=started.append, news=lambda: news, __exit__=lambda *end: started.append(end)
    )
    one = begun(tmp_path)
    assert crew.has_room(one.job)
    crew.start(3, one)
    assert crew.taken == {3: Seat(device="cpu", measures=False)}
    assert not crew.has_room(one.job)
    (order,) = started
    assert (order.number, order.entry, order.payload, order.time_limit_s) == (3, experiment.ENTRY, one.payload, 90.0)
    assert (order.log_path, order.limits, order.env) == (tmp_path / "run" / "run.log", one.job.limits, {"T": "1"})
    assert (order.loaded, order.late_env) == (("mine", *LOADED), {})
    news.append((3, "an event"))
    assert crew.news() == news
    assert 3 in crew.taken
    news.append((3, Outcome(status="done")))
    crew.news()
    assert crew.taken == {}
    crew.__exit__(None, None, None)
    assert started[1:] == [(None, None, None)]


def test_a_seat_s_variable_reaches_the_job(tmp_path: Path) -> None:
    crew = LocalCrew(Local(devices=(4,)), tmp_path)
    started: list[Any] = []
    crew.pool = SimpleNamespace(start=started.append)  # type: ignore[assignment]
    crew.start(0, begun(tmp_path, variable="ASCEND_RT_VISIBLE_DEVICES"))
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
    crew = ray.RayCrew(Ray())
    assert cluster.calls == [
        ("init", {"address": "auto", "log_to_driver": False, "logging_level": logging.ERROR,
                  "configure_logging": False}),
        ("remote", {"max_retries": 0, "retry_exceptions": False}),
    ]  # fmt: skip
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    one = begun(tmp_path)
    crew.start(5, one)
    function, needs, order = cluster.calls[2]
    assert (function, needs) == (fulfil, {"num_cpus": 1, "num_gpus": 0, "resources": {}})
    assert order == Order.of(one)
    crew.__exit__(None, None, None)
    assert cluster.calls[3:] == [("cancel", "task 3", True), "shutdown"]


@pytest.mark.parametrize("error", [OSError("x"), RuntimeError("x"), ValueError("x")])
def test_a_cluster_that_does_not_answer_is_told_with_its_address(error: Exception, cluster: Cluster) -> None:
    cluster.fails = error
    with pytest.raises(NpuComposeError, match=r"executor.address=auto: no Ray cluster answers \("):
        ray.RayCrew(Ray())


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
        (Ray(), {}, {"CPU": 1}),
        (Ray(), {"measures": True}, {"CPU": 8}),
        (Ray(cpus=2.5), {"measures": True}, {"CPU": 2.5}),
        (Ray(resources={"a3": 1}), {}, {"a3": 1, "CPU": 1}),
        (Ray(), {"measures": True, "variable": "CUDA_VISIBLE_DEVICES"}, {"CPU": 1, "GPU": 1}),
        (Ray(devices=2), {"variable": "ASCEND_RT_VISIBLE_DEVICES"}, {"CPU": 1, "NPU": 2}),
        (Ray(devices=0), {"variable": "CUDA_VISIBLE_DEVICES"}, {"CPU": 1}),
        (Ray(devices=2), {}, {"CPU": 1}),
    ],
)
def test_a_point_asks_for_what_it_needs(
    options: Ray, about: dict[str, Any], needs: dict[str, float], cluster: Cluster
) -> None:
    assert ray.RayCrew(options)._needs(job(**about)) == needs


def test_without_a_node_a_point_that_measures_asks_for_one_cpu(cluster: Cluster) -> None:
    cluster.alive = []
    assert ray.RayCrew(Ray())._needs(job(measures=True)) == {"CPU": 1}


def test_there_is_room_for_as_many_as_the_idle_nodes_could_take(cluster: Cluster, tmp_path: Path) -> None:
    def room(options: Ray, running: int, **about: Any) -> bool:
        crew = ray.RayCrew(options)
        crew.running = dict.fromkeys(range(running), (0, begun(tmp_path)))
        return crew.has_room(job(**about))

    assert (room(Ray(), 11), room(Ray(), 12)) == (True, False)
    assert (room(Ray(jobs=2), 1), room(Ray(jobs=2), 2)) == (True, False)
    assert (room(Ray(cpus=3), 2), room(Ray(cpus=3), 3)) == (True, False)  # one on the small node, two on the large
    assert (room(Ray(cpus=99), 0), room(Ray(cpus=99), 1)) == (True, False)  # to be refused when it is started
    assert ray._room([{"CPU": 4}], {"CPU": 2, "GPU": 1}) == 0
    assert ray._room([{"CPU": 4}], {"CPU": 2, "GPU": 0}) == 2


def test_what_no_node_has_is_refused_in_words(cluster: Cluster, tmp_path: Path) -> None:
    crew = ray.RayCrew(Ray(cpus=16))
    crew.start(7, begun(tmp_path))
    assert crew.running == {}
    ((number, outcome),) = crew.news()
    assert (number, outcome) == (
        7, Outcome(status="failed", exit_status=3,
                   error="no node of the Ray cluster has CPU 16. Its nodes: CPU 4, GPU 2; CPU 8."),
    )  # fmt: skip
    assert crew.refused == []
    cluster.alive = []
    assert (ray._nowhere({"CPU": 1}, []).error or "").endswith("Its nodes: none is alive.")


def test_what_comes_back_is_unpacked_and_what_is_lost_is_an_outcome(cluster: Cluster, tmp_path: Path) -> None:
    crew = ray.RayCrew(Ray())
    ends = (
        Delivery(outcome=Outcome(status="done"), log=b"printed\n"),
        TaskError("first\nsecond"),
        LostError("\n  the node died \nmore"),
        LostError(""),
    )
    found = []
    for number, answer in enumerate(ends):
        crew.start(number, begun(tmp_path))
        cluster.answers[next(iter(crew.running))] = answer
        found += crew.news()
    assert crew.running == {}
    assert found == [
        (0, Outcome(status="done")),
        (1, Outcome(status="failed", error="TaskError: first second", exit_status=3)),
        (2, Outcome(status="crashed", error="Ray lost the process of this point: the node died", exit_status=3)),
        (3, Outcome(status="crashed", error="Ray lost the process of this point: LostError", exit_status=3)),
    ]
    assert (tmp_path / "run" / "run.log").read_bytes() == b"printed\n"


# Slurm.


class FailedJob(Exception):
    pass


class UncompletedJob(Exception):
    pass


class Submitted:
    """A job of submitit."""

    job_id = "17"

    def __init__(self, answer: Any, done_at: int = 1) -> None:
        self.answer, self.done_at = answer, done_at
        self.asked: list[bool] = []
        self.cancelled: list[bool] = []

    def done(self, *, force_check: bool) -> bool:
        self.asked.append(force_check)
        return len(self.asked) >= self.done_at

    def result(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def cancel(self, *, check: bool) -> None:
        self.cancelled.append(check)


class Submitit(ModuleType):
    def __init__(self) -> None:
        super().__init__("submitit")
        self.core = SimpleNamespace(utils=SimpleNamespace(FailedJobError=FailedJob, UncompletedJobError=UncompletedJob))
        self.opened: list[Any] = []
        self.parameters: list[Any] = []
        self.submitted: list[Any] = []

    def AutoExecutor(self, **options: Any) -> Any:
        self.opened.append(options)
        return SimpleNamespace(
            update_parameters=lambda **given: self.parameters.append(given),
            submit=lambda *what: self.submitted.append(what) or f"job {len(self.submitted)}",
        )


@pytest.fixture
def submitit(monkeypatch: pytest.MonkeyPatch) -> Submitit:
    found = Submitit()
    monkeypatch.setitem(sys.modules, "submitit", found)
    return found


def test_a_point_is_submitted_with_all_that_its_worker_needs(submitit: Submitit, tmp_path: Path) -> None:
    crew = slurm.SlurmCrew(Slurm(jobs=1, cluster="local"), tmp_path)
    assert submitit.opened == [{"folder": tmp_path / "slurm", "cluster": "local"}]
    one = begun(tmp_path)
    assert crew.has_room(one.job)
    crew.start(4, one)
    assert crew.running == {4: "job 1"}
    assert not crew.has_room(one.job)
    ((function, told),) = submitit.submitted
    assert function is fulfil_here
    assert told == {
        "payload": {**one.payload, "surroundings": {"versions": {"torch": "2"}, "device": {}, "code": {}}},
        "time_limit_s": 90.0, "env": dict(Order.of(one).env), "limits": {"log_bytes": 7, "memory_bytes": 8},
        "log_path": str((tmp_path / "run" / "run.log").resolve()),
    }  # fmt: skip
    assert submitit.parameters == [
        {"name": "npucompose", "timeout_min": 12, "cpus_per_task": 1,
         "slurm_additional_parameters": {"no-requeue": True}}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "about", "parameters"),
    [
        (Slurm(), {"limit_s": 120.0}, {"timeout_min": 12}),
        (Slurm(), {"limit_s": 121.0}, {"timeout_min": 13}),
        (Slurm(time_limit_min=5, cpus=3), {}, {"timeout_min": 5, "cpus_per_task": 3}),
        (Slurm(partition="p", gres="npu:1"), {}, {"slurm_partition": "p", "slurm_gres": "npu:1"}),
        (Slurm(parameters={"account": "me"}), {},
         {"slurm_additional_parameters": {"no-requeue": True, "account": "me"}}),
        (Slurm(), {"measures": True}, {"slurm_additional_parameters": {"no-requeue": True, "exclusive": True}}),
        (Slurm(exclusive=False), {"measures": True}, {}),
        (Slurm(exclusive=True), {}, {"slurm_additional_parameters": {"no-requeue": True, "exclusive": True}}),
    ],
)  # fmt: skip
def test_slurm_is_told_what_a_point_needs(
    options: Slurm, about: dict[str, Any], parameters: dict[str, Any], submitit: Submitit, tmp_path: Path
) -> None:
    plain = {
        "name": "npucompose", "timeout_min": 12, "cpus_per_task": 1,
        "slurm_additional_parameters": {"no-requeue": True},
    }  # fmt: skip
    assert slurm.SlurmCrew(options, tmp_path)._parameters(job(**about)) == {**plain, **parameters}


def test_every_fifteenth_look_asks_slurm_itself(
    submitit: Submitit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=slept.append))
    crew = slurm.SlurmCrew(Slurm(poll_s=7.0), tmp_path)
    answer = {"status": "done", "result": {}, "problems": ["p"], "last_lines": ["l"], "seconds": 2.0}
    job_, other = Submitted(answer, done_at=16), Submitted(None, done_at=99)
    crew.running = {3: job_, 4: other}
    assert crew.news() == [(3, Outcome(status="done", result={}, problems=("p",), last_lines=("l",), seconds=2.0))]
    assert job_.asked == [False] * 14 + [True, False]
    assert slept == [7.0] * 15
    assert crew.running == {4: other}
    crew.__exit__(None, None, None)
    assert (other.cancelled, job_.cancelled) == ([False], [])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (FailedJob("\nfirst\nsecond"), Outcome(status="failed", error="first", exit_status=3)),
        (UncompletedJob(""), Outcome(
            status="crashed", error="Slurm ended job 17 before it sent a result: UncompletedJob", exit_status=3)),
    ],
)  # fmt: skip
def test_a_job_that_slurm_ended_is_an_outcome(
    error: Exception, outcome: Outcome, submitit: Submitit, tmp_path: Path
) -> None:
    assert slurm.SlurmCrew(Slurm(), tmp_path)._outcome(Submitted(error)) == outcome


def test_without_slurm_here_it_is_told(submitit: Submitit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Submitit, **options: Any) -> None:
        raise RuntimeError("no srun")

    monkeypatch.setattr(Submitit, "AutoExecutor", fails)
    with pytest.raises(NpuComposeError, match="executor=slurm: RuntimeError: no srun"):
        slurm.SlurmCrew(Slurm(), tmp_path)


def test_ctrl_c_waits_until_a_job_is_known() -> None:
    before = signal.getsignal(signal.SIGINT)
    after: list[str] = []

    def submit() -> None:
        with slurm._undisturbed():
            signal.raise_signal(signal.SIGINT)
            after.append("submitted")

    with pytest.raises(KeyboardInterrupt):
        submit()
    assert after == ["submitted"]
    with slurm._undisturbed():
        pass
    assert signal.getsignal(signal.SIGINT) is before


# A machine elsewhere.


def test_an_order_holds_what_is_finished_and_the_threads_of_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(away, "thread_settings", lambda: {"OMP_NUM_THREADS": "3", "T": "0"})
    one, gone = record(a=1), SimpleNamespace(stage="capture", key="b" * 64)
    about = begun(tmp_path, one)
    about.finished = (*about.finished, gone)
    assert Order.of(about) == Order(
        payload=about.payload, time_limit_s=90.0, env={"OMP_NUM_THREADS": "3", "T": "1"},
        surroundings=about.job.ingredients.surroundings, limits=about.job.limits, records=(one.text(),),
    )  # fmt: skip


def test_of_what_comes_back_only_records_and_files_of_this_point_are_kept(tmp_path: Path) -> None:
    about = begun(tmp_path)
    (tmp_path / "run" / "run.log").write_text("before\n")
    mine, others = record(a=1), record("capture", "b" * 64)
    outcome = Outcome(status="done", result={})
    delivery = Delivery(
        outcome=outcome, log=b"printed\n", records=(mine.text(), others.text()),
        files={f"compile/{KEY}/deep/a.txt": b"one"},
    )  # fmt: skip
    assert delivery.unpack(about) == outcome
    assert (tmp_path / "run" / "run.log").read_text() == "before\nprinted\n"
    assert list(about.store.records()) == [mine]
    assert about.store.file("compile", KEY, "deep/a.txt").read_bytes() == b"one"
    assert (tmp_path / "run" / experiment.FILES / "deep" / "a.txt").read_bytes() == b"one"


@pytest.mark.parametrize(
    "name", [f"compile/{'b' * 64}/a", f"capture/{KEY}/a", f"compile/{KEY}", f"compile/{KEY}/../a", f"compile/{KEY}/.."]
)
def test_a_file_that_belongs_to_no_stage_of_the_point_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NpuComposeError, match="belongs to no stage of this point"):
        Delivery(outcome=Outcome(status="done"), files={name: b""}).unpack(begun(tmp_path))


def test_elsewhere_a_worker_runs_in_folders_of_its_own_and_what_is_new_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, made = record(a=1), record("capture", "b" * 64, npu={"files": ["x.txt"]})
    asked: list[Any] = []
    monkeypatch.setattr(away, "_only_the_threads_of", lambda env: asked.append(env))

    def run(entry: str, payload: Any, **options: Any) -> Outcome:
        store = Store(Path(payload["store"]))
        assert [one.key for one in store.records()] == [before.key]
        store.write(made)
        store.put_file("capture", "b" * 64, "x.txt", b"content")
        options["log_path"].write_bytes(b"printed\n")
        asked.append((entry, payload, options))
        return Outcome(status="done")

    monkeypatch.setattr(away, "run_in_worker", run)
    order = Order(
        payload={"tree": 1, "store": "not here", "files": "not here"}, time_limit_s=5.0, env={"E": "1"},
        surroundings={"versions": {"torch": "2"}}, limits=Limits(log_bytes=6), records=(before.text(),),
    )  # fmt: skip
    assert fulfil(order) == Delivery(
        outcome=Outcome(status="done"), log=b"printed\n", records=(made.text(),),
        files={f"capture/{'b' * 64}/x.txt": b"content"},
    )  # fmt: skip
    env, (entry, payload, options) = asked
    folder = Path(payload["store"]).parent
    assert (env, entry) == ({"E": "1"}, "npucompose.experiment.sweep.crews.away:work")
    assert payload == {
        "tree": 1, "store": str(folder / "store"), "files": str(folder / experiment.FILES),
        "surroundings": {"versions": {"torch": "2"}},
    }  # fmt: skip
    assert options == {
        "time_limit_s": 5.0, "log_path": folder / "run.log", "limits": Limits(log_bytes=6), "env": {"E": "1"},
    }  # fmt: skip
    assert not folder.exists()


def test_where_folders_are_shared_the_worker_writes_where_a_local_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(away, "_only_the_threads_of", lambda env: asked.append(env))
    monkeypatch.setattr(
        away, "run_in_worker", lambda *what, **options: asked.append((*what, options)) or Outcome(status="done")
    )
    told = {
        "payload": {"tree": 1}, "time_limit_s": 5.0, "env": {"E": "1"}, "limits": {"log_bytes": 6},
        "log_path": "/a/run.log",
    }  # fmt: skip
    assert fulfil_here(told)["status"] == "done"
    assert asked == [
        {"E": "1"},
        (away.ENTRY_AWAY, {"tree": 1}, {"time_limit_s": 5.0, "log_path": Path("/a/run.log"),
                                        "limits": Limits(log_bytes=6), "env": {"E": "1"}}),
    ]  # fmt: skip


def test_a_node_unlike_the_planning_machine_is_refused_with_five_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = compose(["model=add", "pipeline=compile_only"])
    surroundings = {part: dict(values) for part, values in Job.of(composed).ingredients.surroundings.items()}
    payload = {"tree": composed.tree, "provenance": composed.provenance, "surroundings": surroundings}
    monkeypatch.setattr(experiment, "work", lambda payload, tell: {"worked": payload is not None})
    assert away.work(payload, lambda event: None) == {"worked": True}
    surroundings["versions"]["torch"] = "another"
    del surroundings["versions"]["python"]
    with pytest.raises(NpuComposeError) as caught:
        away.work(payload, lambda event: None)
    assert "versions.torch is another there and " in str(caught.value)
    assert "versions.python is missing there and " in str(caught.value)
    assert "more" not in str(caught.value)
    surroundings["device"] = {f"name{n}": "x" * 41 for n in range(4)} | surroundings["device"]
    with pytest.raises(
        NpuComposeError, match=r"device\.name2 is xxxxxxxxxxxx… there and missing on the node and 1 more"
    ):
        away.work(payload, lambda event: None)
    assert away._short("x" * 40) == "x" * 40
