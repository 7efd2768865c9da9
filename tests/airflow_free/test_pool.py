"""Forked jobs that die, hang, raise and linger, several at once, and a parent that is killed. No time is asserted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bakery
import pytest
from test_worker import is_gone

from airflow_free.errors import OrchestratorError
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.pool import Pool
from airflow_free.stage import Event

LONG = 60.0


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "forkserver.log") as pool:
        yield pool


def order(folder: Path, number: int, entry: str, time_limit_s: float = LONG, **payload: Any) -> WorkerTask:
    parts = {name: payload.pop(name) for name in ("environment", "late_env", "loaded") if name in payload}
    return WorkerTask(
        number=number,
        entry=f"bakery:{entry}",
        payload=payload,
        time_limit_s=time_limit_s,
        log_path=folder / f"{number}" / "run.log",
        **parts,
    )


def ends(pool: Pool, events: list[tuple[int, Event]] | None = None) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    while pool.running:
        for number, news in pool.events(LONG):
            if isinstance(news, Outcome):
                found[number] = news
            elif events is not None:
                events.append((number, news))
    return found


def test_each_job_ends_as_it_would_alone(pool: Pool, tmp_path: Path) -> None:
    faults = ("kill", "abort", "exit", "raise", "config", "hang")
    for number, fault in enumerate(faults):
        pool.start(order(tmp_path, number, "misbehave", 8.0 if fault == "hang" else LONG, fault=fault))
    pool.start(order(tmp_path, 6, "echo", word="größe"))
    found = ends(pool)
    assert {n: (o.status, o.exit_signal) for n, o in found.items()} == {
        0: ("crashed", "SIGKILL"),
        1: ("crashed", "SIGABRT"),
        2: ("crashed", None),
        3: ("failed", None),
        4: ("config_error", None),
        5: ("timeout", "SIGKILL"),
        6: ("done", None),
    }
    assert found[3].error == "ValueError: too much salt"
    assert found[4].problems == ("no such oven", "no such flour")
    assert found[5].last_lines[0] == "about to hang"
    assert any("in trip" in line for line in found[5].last_lines)
    assert found[6].result is not None
    assert found[6].result["payload"] == {"word": "größe"}
    assert (tmp_path / "6" / "run.log").read_text().splitlines() == ["printed", "warned"]


def test_what_a_job_tells_arrives_before_its_end(pool: Pool, tmp_path: Path) -> None:
    told: list[tuple[int, Event]] = []
    pool.start(order(tmp_path, 3, "echo"))
    assert ends(pool, told)[3].status == "done"
    assert told == [(3, Event(kind="note", text="told"))]


def test_jobs_share_a_loaded_parent_and_no_state(pool: Pool, tmp_path: Path) -> None:
    for number in range(3):
        pool.start(order(tmp_path, number, "echo", loaded=("json.tool",), late_env={"SEEN": str(number)},
                         variables=["SEEN"]))  # fmt: skip
    results = {number: outcome.result for number, outcome in ends(pool).items()}
    assert {n: r["env"]["SEEN"] for n, r in results.items() if r} == {0: "0", 1: "1", 2: "2"}
    assert len({r["pid"] for r in results.values() if r}) == 3
    assert len(pool.servers) == 1
    assert "SEEN" not in os.environ


def test_another_environment_before_torch_is_another_server(pool: Pool, tmp_path: Path) -> None:
    pool.start(order(tmp_path, 0, "echo", environment={**os.environ, "EARLY": "a"}, variables=["EARLY"]))
    pool.start(order(tmp_path, 1, "echo", environment={**os.environ, "EARLY": "b"}, variables=["EARLY"]))
    assert {o.result["env"]["EARLY"] for o in ends(pool).values() if o.result} == {"a", "b"}
    assert len(pool.servers) == 2


def test_a_job_that_lingers_after_its_result_is_done(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_free.pool.GRACE_S", 0.2)
    pool.start(order(tmp_path, 0, "answer_and_stay"))
    pool.start(order(tmp_path, 1, "leave_a_child"))
    found = ends(pool)
    assert (found[0].status, found[0].result) == ("done", {"answer": 42})
    assert found[1].result is not None
    assert is_gone(found[1].result["child"])


def test_leaving_the_pool_asks_jobs_to_end_and_lets_them_clean_up(tmp_path: Path) -> None:
    with Pool(tmp_path / "forkserver.log") as pool:
        pool.start(order(tmp_path, 0, "clean_up_slowly", file=str(tmp_path / "cleaned")))
        while not any(isinstance(news, Event) for _, news in pool.events(LONG)):
            pass
    assert (tmp_path / "cleaned").read_text() == "cleaned"


def test_a_fork_server_that_dies_takes_no_job_along_and_is_replaced(pool: Pool, tmp_path: Path) -> None:
    pool.start(order(tmp_path, 0, "wait_for_a_file", file=str(tmp_path / "go")))
    told: list[tuple[int, Any]] = []
    while not told:
        told = pool.events(LONG)
    (server,) = pool.servers.values()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    pool.start(order(tmp_path, 1, "echo"))
    (tmp_path / "go").touch()
    assert {number: outcome.status for number, outcome in ends(pool).items()} == {0: "done", 1: "done"}


def test_a_fork_server_that_cannot_start_is_told_once(pool: Pool, tmp_path: Path) -> None:
    pool.start(order(tmp_path, 0, "echo", loaded=("no_such_module_at_all",)))
    with pytest.raises(OrchestratorError, match="No module named 'no_such_module_at_all'"):
        ends(pool)


def test_everything_dies_with_the_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, bakery.__file__, "pool", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        parent.kill()
    assert all(is_gone(pid) for pid in pids)


def test_no_handle_stays_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with Pool(tmp_path / "forkserver.log") as pool:
        pool.start(order(tmp_path, 0, "echo"))
        pool.start(order(tmp_path, 1, "misbehave", fault="kill"))
        ends(pool)
    assert set(os.listdir("/proc/self/fd")) == before
