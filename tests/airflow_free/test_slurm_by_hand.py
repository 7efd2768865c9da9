"""Slurm played by this test: what it is asked for, and what becomes of an answer."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_free.errors import OrchestratorError
from airflow_free.executors import fulfil_here, slurm
from airflow_free.executors.slurm import SlurmOptions
from airflow_free.outcome import Outcome
from tests.airflow_free.begun_points import begun, job, task

# Note [Private names]
# No Slurm runs here: its answers, and what is asked of it between them, are written by hand.


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
    executor = slurm.SlurmExecutor(SlurmOptions(jobs=1, cluster="local"), tmp_path)
    assert submitit.opened == [{"folder": tmp_path / "slurm", "cluster": "local"}]
    one = begun(tmp_path)
    assert executor.has_room(one.job)
    executor.start(4, one)
    assert executor.running == {4: "job 1"}
    assert not executor.has_room(one.job)
    assert submitit.submitted == [(fulfil_here, one.remote_task)]
    assert submitit.parameters == [
        {"name": "bakery", "timeout_min": 12, "cpus_per_task": 1,
         "slurm_additional_parameters": {"no-requeue": True}}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "about", "parameters"),
    [
        (SlurmOptions(), {"limit_s": 120.0}, {"timeout_min": 12}),
        (SlurmOptions(), {"limit_s": 121.0}, {"timeout_min": 13}),
        (SlurmOptions(time_limit_min=5, cpus=3), {}, {"timeout_min": 5, "cpus_per_task": 3}),
        (SlurmOptions(partition="p", gres="npu:1"), {}, {"slurm_partition": "p", "slurm_gres": "npu:1"}),
        (SlurmOptions(parameters={"account": "me"}), {},
         {"slurm_additional_parameters": {"no-requeue": True, "account": "me"}}),
        (SlurmOptions(), {"measures": True}, {"slurm_additional_parameters": {"no-requeue": True, "exclusive": True}}),
        (SlurmOptions(exclusive=False), {"measures": True}, {}),
        (SlurmOptions(exclusive=True), {}, {"slurm_additional_parameters": {"no-requeue": True, "exclusive": True}}),
    ],
)  # fmt: skip
def test_slurm_is_told_what_a_point_needs(
    options: SlurmOptions, about: dict[str, Any], parameters: dict[str, Any], submitit: Submitit, tmp_path: Path
) -> None:
    plain = {
        "name": "bakery", "timeout_min": 12, "cpus_per_task": 1,
        "slurm_additional_parameters": {"no-requeue": True},
    }  # fmt: skip
    own = task(tmp_path, time_limit_s=about.pop("limit_s", 90.0))
    assert slurm.SlurmExecutor(options, tmp_path)._parameters(job(**about), own) == {**plain, **parameters}


def test_every_fifteenth_look_asks_slurm_itself(
    submitit: Submitit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=slept.append))
    executor = slurm.SlurmExecutor(SlurmOptions(poll_s=7.0), tmp_path)
    answer = Outcome(status="done", result={}, problems=("p",), last_lines=("l",), seconds=2.0)
    job_, other = Submitted(answer, done_at=16), Submitted(None, done_at=99)
    executor.running = {3: job_, 4: other}
    assert executor.events() == [(3, answer)]
    assert job_.asked == [False] * 14 + [True, False]
    assert slept == [7.0] * 15
    assert executor.running == {4: other}
    executor.__exit__(None, None, None)
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
    assert slurm.SlurmExecutor(SlurmOptions(), tmp_path)._outcome(Submitted(error)) == outcome


def test_without_slurm_here_it_is_told(submitit: Submitit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Submitit, **options: Any) -> None:
        raise RuntimeError("no srun")

    monkeypatch.setattr(Submitit, "AutoExecutor", fails)
    with pytest.raises(OrchestratorError, match="executor=slurm: RuntimeError: no srun"):
        slurm.SlurmExecutor(SlurmOptions(), tmp_path)


def test_ctrl_c_waits_until_a_job_is_known() -> None:
    before = signal.getsignal(signal.SIGINT)
    after: list[str] = []

    def submit() -> None:
        with slurm._uninterrupted():
            signal.raise_signal(signal.SIGINT)
            after.append("submitted")

    with pytest.raises(KeyboardInterrupt):
        submit()
    assert after == ["submitted"]
    with slurm._uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before
