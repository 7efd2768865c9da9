"""Workers that die, hang, raise and linger. No time is asserted; limits are short only where they are the point."""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bakery
import pytest

from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.pool import run_in_worker
from airflow_free.stage import Event

Run = Callable[..., Outcome]
LONG = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(entry: str, time_limit_s: float = LONG, on_event: Any = None, **payload: Any) -> Outcome:
        env = payload.pop("env", None)
        environment = None if env is None else {name: v for name, v in os.environ.items() if "TOKEN" not in name} | env
        log_path = tmp_path / "run" / "worker.log"
        task = WorkerTask(
            entry=f"bakery:{entry}", payload=payload, time_limit_s=time_limit_s, log_path=log_path,
            environment=environment,
        )  # fmt: skip
        return run_in_worker(task, on_event or (lambda event: None))

    return run


def is_gone(pid: int) -> bool:
    """Wait until the process has ended; False when it has not after a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], LONG)[0])
    finally:
        os.close(handle)


def test_a_worker_sees_the_path_the_folder_and_the_environment_of_its_parent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "", str(tmp_path / "odd : name")])
    monkeypatch.setenv("OMP_DYNAMIC", "1")
    monkeypatch.setenv("A_PERSON_S_TOKEN", "1")
    done = run(
        "echo", word="größe", number=1.5, variables=["OMP_DYNAMIC", "GIVEN", "A_PERSON_S_TOKEN"], env={"GIVEN": "2"}
    )
    assert done.status == "done"
    assert done.result is not None
    assert done.result["payload"]["word"] == "größe"
    assert done.result["path"] == sys.path
    assert done.result["folder"] == str(tmp_path)
    assert done.result["env"] == {"OMP_DYNAMIC": "1", "GIVEN": "2", "A_PERSON_S_TOKEN": None}
    assert done.result["pid"] != os.getpid()


def test_what_a_worker_prints_goes_to_the_log_and_what_it_tells_to_the_parent(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[Event] = []
    run("echo", on_event=told.append)
    assert told == [Event(kind="note", text="told")]
    assert (tmp_path / "run" / "worker.log").read_text().splitlines() == ["printed", "warned"]
    assert capfd.readouterr() == ("", "")


def test_a_large_payload_and_a_large_result_pass(run: Run) -> None:
    done = run("echo", ballast="x" * 3_000_000)
    assert done.result is not None
    assert len(done.result["payload"]["ballast"]) == 3_000_000


@pytest.mark.parametrize(("fault", "name"), [("kill", "SIGKILL"), ("abort", "SIGABRT")])
def test_a_worker_that_dies_of_a_signal_is_crashed(run: Run, fault: str, name: str) -> None:
    died = run("misbehave", fault=fault)
    assert (died.status, died.exit_signal, died.exit_status, died.result) == ("crashed", name, 3, None)
    assert f"died of {name}" in str(died.error)
    assert died.last_lines


def test_the_last_lines_are_those_of_this_worker(run: Run) -> None:
    run("echo")
    assert run("misbehave", fault="kill").last_lines == ("about to die",)


def test_a_fatal_signal_leaves_the_python_stack_in_the_log(run: Run) -> None:
    assert any("in trip" in line for line in run("misbehave", fault="abort").last_lines)


def test_a_worker_that_ends_without_a_result_is_crashed(run: Run) -> None:
    ended = run("misbehave", fault="exit")
    assert (ended.status, ended.exit_signal) == ("crashed", None)
    assert "exit status 7 and sent no result" in str(ended.error)


def test_a_worker_that_hangs_is_killed_and_shows_where_it_hung(run: Run) -> None:
    hung = run("misbehave", fault="hang", time_limit_s=2.0)
    assert (hung.status, hung.exit_signal, hung.exit_status) == ("timeout", "SIGKILL", 3)
    assert "its time limit of 2 s" in str(hung.error)
    assert hung.last_lines[0] == "about to hang"
    assert any("in trip" in line for line in hung.last_lines)


def test_a_worker_that_raises_is_failed_with_one_paragraph_and_a_traceback_in_the_log(run: Run) -> None:
    raised = run("misbehave", fault="raise")
    assert (raised.status, raised.error_type, raised.exit_status) == ("failed", "ValueError", 3)
    assert raised.error == "ValueError: too much salt"
    assert any(line.startswith("Traceback") for line in raised.last_lines)


def test_a_wrong_configuration_travels_with_its_problems(run: Run) -> None:
    wrong = run("misbehave", fault="config")
    assert (wrong.status, wrong.error_type, wrong.exit_status) == ("config_error", "InvalidRequest", 2)
    assert wrong.problems == ("no such oven", "no such flour")
    plan = run("misbehave", fault="plan")
    assert (plan.status, plan.error) == ("config_error", "the plan matches nothing [E101]")


def test_an_entry_that_is_not_there_is_failed(run: Run) -> None:
    missing = run("no_such_entry")
    assert (missing.status, missing.error_type) == ("failed", "AttributeError")


def test_a_result_that_is_no_json_is_failed(run: Run) -> None:
    odd = run("return_no_json")
    assert odd.status == "failed"
    assert "not JSON serializable" in str(odd.error)


def test_a_worker_that_lingers_after_its_result_is_done(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_free.pool.GRACE_S", 0.2)
    stayed = run("answer_and_stay")
    assert (stayed.status, stayed.result) == ("done", {"answer": 42})


def test_children_of_a_worker_end_with_it_and_do_not_hold_it_up(run: Run) -> None:
    left = run("leave_a_child")
    assert left.status == "done"
    assert left.result is not None
    assert is_gone(left.result["child"])


def test_children_of_a_worker_that_crashed_end_too(run: Run) -> None:
    told: list[Event] = []
    assert run("leave_a_child", fault="kill", on_event=told.append).status == "crashed"
    assert is_gone(int(told[0].text))


def test_ctrl_c_ends_the_worker_and_lets_it_clean_up(run: Run, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("clean_up_slowly", on_event=interrupt, file=str(tmp_path / "cleaned"))
    assert (tmp_path / "cleaned").read_text() == "cleaned"


def test_ctrl_c_while_waiting_ends_the_worker(run: Run) -> None:
    pids: list[int] = []

    def interrupt_soon(event: Event) -> None:
        pids.append(int(event.text))
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    def ring(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(KeyboardInterrupt):
            run("tell_pid_and_hang", on_event=interrupt_soon)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert is_gone(pids[0])


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, bakery.__file__, str(tmp_path / "worker.log")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    assert is_gone(worker)


def test_the_parent_sleeps_while_the_worker_works(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[object] = []
    select_ = selectors.DefaultSelector.select

    def counted(self: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        woken.append(timeout)
        return select_(self, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", counted)
    assert run("misbehave", fault="hang", time_limit_s=1.0).status == "timeout"
    assert len(woken) <= 8


def test_no_handle_stays_open(run: Run) -> None:
    run("echo")
    before = set(os.listdir("/proc/self/fd"))
    run("echo")
    run("misbehave", fault="kill")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_run_killed_in_a_stage_resumes_after_the_stages_that_were_done(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    told: list[Event] = []
    killed = run("bake", wanted=["taste"], store=store, fault="kill", on_event=told.append)
    assert killed.status == "crashed"
    assert [event.stage for event in told if event.kind == "finished"] == ["knead", "bake"]
    assert told[-1] == Event(kind="started", stage="taste")
    resumed = run("bake", wanted=["taste"], store=store)
    assert resumed.result == {"reused": {"knead": True, "bake": True, "taste": False}, "made": ["dough"]}
    assert run("bake", wanted=["taste"], store=store).result == {
        "reused": {"knead": True, "bake": True, "taste": True},
        "made": [],
    }


def test_a_stage_that_raises_in_a_worker_is_named(run: Run, tmp_path: Path) -> None:
    failed = run("bake", wanted=["taste"], store=str(tmp_path), fault="config")
    assert (failed.status, failed.problems) == ("config_error", ("no such oven", "no such flour"))
    assert str(failed.error).startswith("stage 'taste' failed: ")
