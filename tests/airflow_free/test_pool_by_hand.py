"""A pool whose fork server is this test: what a job says is written by hand, and the clock stands still."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_free.errors import OrchestratorError
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import GRACE_S, STACK_S, Limits, Outcome
from airflow_free.pool import FOREVER, LINGER_S, START_S
from airflow_free.stage import Event
from tests.airflow_free.pool_by_hand import LIMIT, NOON, PEN, Scene, Server


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(tmp_path, monkeypatch)
    yield scene
    for hand in scene.hands.values():
        hand.control.close()
        if hand.pipe >= 0:
            os.close(hand.pipe)
    for server in scene.servers:
        server.connection.close()
        server.far_end.close()
    for job in scene.pool.running.values():
        job.close()
    scene.selector.close()


def test_a_job_s_time_counts_from_its_beginning_and_its_outcome_ends_it(scene: Scene) -> None:
    job = scene.starts()
    assert (job.has_begun, job.next_step_at) == (False, NOON + START_S)
    assert (scene.folder / "0" / "deep").is_dir()
    scene.clock.now += 5
    hand = scene.hands[0]
    hand.begins()
    assert scene.pool.events() == []
    assert (job.has_begun, job.next_step_at) == (True, NOON + 5 + LIMIT)
    hand.notes("hello")
    assert scene.pool.events() == [(0, Event(kind="note", text="hello"))]
    hand.says(word="result", result={"a": 1})
    assert scene.pool.events() == []
    assert job.next_step_at == NOON + 5 + GRACE_S
    scene.clock.now += 2
    hand.ends(cut=7)
    assert scene.outcome() == Outcome(status="done", result={"a": 1}, seconds=2.0, log_cut_bytes=7)
    assert (scene.pool.running, scene.selector.get_map().keys()) == ({}, {scene.servers[0].connection.fileno()})
    assert hand.orders == b""


def test_the_pool_sleeps_until_the_next_step_of_a_job_or_as_long_as_it_may(scene: Scene) -> None:
    scene.pool.events()
    scene.begun(0)
    scene.clock.now += 10
    scene.pool.events()
    scene.pool.events(20.0)
    scene.pool.events(55.0)
    assert scene.selector.asked == [None, START_S, 50.0, 20.0, 50.0]
    scene.clock.now += 100
    scene.pool.events()
    assert scene.selector.asked[-1] == 0.0


def test_what_is_still_in_the_pipe_of_a_job_that_ended_comes_before_its_outcome(scene: Scene) -> None:
    _, hand = scene.begun()
    for source in scene.pool.running[0].sources[:1]:
        scene.selector.unregister(source)  # its supervisor is heard first
    hand.notes("late")
    hand.says(word="result", result={})
    hand.ends()
    told: list[tuple[int, Any]] = scene.pool.events()
    (event, (_, outcome)) = told
    assert event == (0, Event(kind="note", text="late"))
    assert outcome.status == "done"


def test_a_job_at_its_limit_writes_its_stack_and_is_ended_and_then_its_supervisor(scene: Scene) -> None:
    job, hand = scene.begun()
    scene.clock.now += LIMIT
    assert scene.pool.events() == []
    assert (hand.orders, job.next_step_at) == (b"STACK\n", scene.clock.now + STACK_S)
    scene.clock.now += STACK_S
    scene.pool.events()
    assert (hand.orders, job.next_step_at) == (b"KILL\n", scene.clock.now + LINGER_S)
    assert scene.signals == [(job.supervisor, signal.SIGCONT)]
    scene.clock.now += LINGER_S
    scene.pool.events()
    assert (hand.orders, job.next_step_at) == (b"", FOREVER)
    assert scene.signals[1:] == [(job.supervisor, signal.SIGKILL)]
    hand.is_gone()
    found = scene.outcome()
    assert (found.status, found.error) == ("timeout", "the worker was killed at its time limit of 60 s.")
    assert scene.pens == [("kill", PEN), ("remove", PEN)]


def test_a_result_that_comes_at_the_last_moment_counts(scene: Scene) -> None:
    _, hand = scene.begun()
    scene.clock.now += LIMIT
    scene.pool.events()
    hand.says(word="result", result={"a": 1})
    hand.ends(-9)
    assert scene.outcome().status == "done"


def test_before_the_limit_nothing_is_asked(scene: Scene) -> None:
    _, hand = scene.begun()
    scene.clock.now += LIMIT - 0.001
    scene.pool.events()
    assert (hand.orders, scene.signals) == (b"", [])


def test_a_job_that_does_not_end_after_its_result_is_ended_and_done(scene: Scene) -> None:
    job, hand = scene.begun()
    hand.says(word="result", result={})
    scene.pool.events()
    scene.clock.now += 1
    hand.notes("more")  # does not put its end off
    scene.pool.events()
    assert job.next_step_at == NOON + GRACE_S
    scene.clock.now = NOON + GRACE_S
    scene.pool.events()
    assert hand.orders == b"KILL\n"
    hand.closes_its_pipe()
    scene.pool.events()
    assert job.next_step_at == NOON + GRACE_S + LINGER_S  # nor does the end of its pipe
    hand.ends(-9)
    assert scene.outcome().status == "done"


def test_a_job_that_closes_its_pipe_without_a_word_is_ended(scene: Scene) -> None:
    job, hand = scene.begun()
    hand.closes_its_pipe()
    assert scene.pool.events() == []
    assert job.next_step_at == NOON + GRACE_S
    assert set(scene.selector.get_map()) == {job.control.fileno(), scene.servers[0].connection.fileno()}
    scene.clock.now += GRACE_S
    scene.pool.events()
    assert hand.orders == b"KILL\n"
    hand.ends(-9)
    assert scene.outcome().error == ("the worker closed the pipe through which it answers airflow_free, and was ended.")


def test_a_job_that_writes_what_is_no_word_is_ended_at_once(scene: Scene) -> None:
    job, hand = scene.begun()
    os.write(hand.pipe, b"no word\n")
    assert scene.pool.events() == []
    assert (hand.orders, job.next_step_at) == (b"KILL\n", NOON + LINGER_S)
    assert set(scene.selector.get_map()) == {job.control.fileno(), scene.servers[0].connection.fileno()}
    hand.ends(-9)
    assert scene.outcome().status == "crashed"


def test_a_supervisor_that_vanished_leaves_a_pen_to_be_emptied(scene: Scene) -> None:
    _, hand = scene.begun()
    hand.is_gone()
    found = scene.outcome()
    assert "the process that watches the worker was killed" in (found.error or "")
    assert scene.pens == [("kill", PEN), ("remove", PEN)]


def test_words_of_a_supervisor_may_come_in_pieces(scene: Scene) -> None:
    job = scene.starts()
    hand = scene.hands[0]
    hand.control.sendall(b'{"began": 1, "superv')
    assert scene.pool.events() == []
    hand.control.sendall(b'isor": 2, "cgroup": null}\n{"ended"')
    assert scene.pool.events() == []
    assert (job.has_begun, job.cgroup) == (True, None)
    hand.control.sendall(b': -11, "memory": 5, "cut": 3}\n')
    found = scene.outcome()
    assert (found.status, found.exit_signal, found.log_cut_bytes) == ("memory_limit", "SIGSEGV", 3)
    assert scene.pens == []


def test_a_supervisor_that_ended_already_has_no_handle_and_the_job_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", gone)
    job, hand = scene.begun()
    assert job.supervisor is None
    job.end()
    assert scene.signals == []
    hand.ends(3)
    assert "ended with exit status 3" in (scene.outcome().error or "")


def test_the_last_lines_of_a_job_that_failed_are_its_own(scene: Scene) -> None:
    log = scene.folder / "0" / "deep" / "run.log"
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier run\n")
    _, hand = scene.begun()
    with log.open("a") as file:
        file.write("one\ntwo\n")
    hand.ends(3)
    assert scene.outcome().last_lines == ("one", "two")


def test_a_limit_of_memory_is_told_with_what_was_used(scene: Scene) -> None:
    _, hand = scene.begun(limits=Limits(memory_bytes=2**20))
    hand.ends(-9, memory=3 * 2**20)
    assert scene.outcome().error == "the worker was killed: it used 3 MiB, and its limit is 1."


# Fork servers that end, hang, or never come to be.


def test_a_job_that_its_server_could_not_begin_is_started_twice_more(scene: Scene) -> None:
    scene.starts()
    for started in (1, 2, 3):
        assert scene.servers[-1].forked == [0]
        assert scene.pool.running[0].starts == started
        scene.servers[-1].ended = True
        scene.hands[0].is_gone()
        os.close(scene.hands[0].pipe)
        scene.hands[0].pipe = -1
        told = scene.pool.events()
        assert len(scene.servers) == min(started + 1, 3)
        assert bool(told) == (started == 3)
    assert [server.closed for server in scene.servers] == [1, 1, 1]
    assert scene.pool.servers == {}


def test_a_job_whose_server_lives_is_not_started_again(scene: Scene) -> None:
    scene.starts()
    scene.hands[0].is_gone()
    assert scene.outcome().status == "crashed"
    assert len(scene.servers) == 1
    assert scene.servers[0].closed == 0


@pytest.mark.parametrize("heard_first", ["the server", "the job"])
def test_a_server_that_never_was_ready_is_told_and_its_jobs_forgotten(scene: Scene, heard_first: str) -> None:
    scene.ready = False
    scene.starts(0)
    scene.starts(1)
    assert [job.next_step_at for job in scene.pool.running.values()] == [FOREVER, FOREVER]
    (scene.folder / "forkserver.log").write_text("first\nImportError: no torch\n")
    (server,) = scene.servers
    server.ended = True
    if heard_first == "the server":
        server.far_end.close()
    else:
        scene.hands[0].is_gone()
    with pytest.raises(OrchestratorError, match="could not be started: ImportError: no torch"):
        scene.pool.events()
    assert (scene.pool.running, scene.pool.servers, server.closed) == ({}, {}, 1)
    assert not scene.selector.get_map()


def test_a_server_that_never_was_ready_is_told_while_another_s_jobs_go_on(scene: Scene) -> None:
    other, hand = scene.begun(0)
    scene.ready = False
    scene.starts(1, environment={"A": "1"})
    scene.servers[1].ended = True
    scene.servers[1].far_end.close()
    with pytest.raises(OrchestratorError, match="could not be started"):
        scene.pool.events()
    assert scene.pool.running == {0: other}
    assert [server.closed for server in scene.servers] == [0, 1]
    hand.says(word="result", result={})
    hand.ends()
    assert scene.outcome().status == "done"


def test_a_server_without_a_job_may_end_and_is_forgotten(scene: Scene) -> None:
    scene.ready = False
    _, hand = scene.begun()
    scene.servers[0].far_end.close()
    assert scene.pool.events() == []
    assert (scene.pool.servers, scene.servers[0].closed) == ({}, 1)
    hand.says(word="result", result={})
    hand.ends()
    assert scene.outcome().status == "done"


def test_a_server_that_becomes_ready_has_a_minute_to_begin_its_own_jobs(scene: Scene) -> None:
    scene.ready = False
    own = scene.starts(0)
    other = scene.starts(1, environment={"A": "1"})
    begun, _ = scene.begun(2)
    assert len(scene.servers) == 2
    scene.clock.now += 7
    scene.servers[0].far_end.sendall(b"ready\n")
    scene.pool.events()
    assert own.next_step_at == NOON + 7 + START_S
    assert (other.next_step_at, begun.next_step_at) == (FOREVER, NOON + LIMIT)
    scene.clock.now += 1
    scene.servers[0].far_end.sendall(b"again\n")
    scene.pool.events()
    assert own.next_step_at == NOON + 7 + START_S


def test_a_server_that_does_not_fork_in_time_is_killed_once(scene: Scene) -> None:
    job = scene.starts()
    scene.clock.now += START_S
    scene.pool.events()
    assert (scene.servers[0].killed, job.next_step_at) == (1, FOREVER)
    scene.pool.events()
    assert scene.servers[0].killed == 1


def test_servers_are_shared_by_what_jobs_need_before_torch(scene: Scene) -> None:
    needs: tuple[dict[str, Any], ...] = (
        {"environment": {"A": "1", "B": "2"}}, {"environment": {"B": "2", "A": "1"}},
        {"loaded": ("x",)}, {"late_env": {"C": "3"}}, {},
    )  # fmt: skip
    for number, parts in enumerate(needs):
        scene.starts(number, **parts)
    assert [server.forked for server in scene.servers] == [[0, 1], [2], [3, 4]]


# Leaving.


def test_who_leaves_asks_then_ends_then_hangs_up(scene: Scene) -> None:
    job, hand = scene.begun()
    waiting = scene.starts(1)
    waits: list[tuple[float, bytes]] = []
    scene.pool._wait = lambda longest_s: waits.append((longest_s, hand.orders))  # type: ignore[method-assign]
    with scene.pool:
        pass
    assert waits == [(GRACE_S, b"TERM\n"), (LINGER_S, b"KILL\n")]
    assert scene.pool.running == {0: job}
    assert waiting.control.fileno() == job.control.fileno() == -1
    assert scene.servers[0].closed == 1
    with pytest.raises((KeyError, RuntimeError, ValueError)):
        scene.selector.get_key(0)
    scene.pool.running.clear()


def test_a_failure_while_leaving_hangs_up_all_the_same(scene: Scene) -> None:
    job, _ = scene.begun()

    def fails() -> None:
        raise KeyboardInterrupt

    scene.pool._end_gently = fails  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), scene.pool:
        pass
    assert (job.control.fileno(), scene.servers[0].closed) == (-1, 1)
    scene.pool.running.clear()


def test_waiting_goes_on_while_somebody_runs_and_no_longer_than_it_may(scene: Scene) -> None:
    scene.begun()
    asked: list[float] = []

    def news(longest_s: float = FOREVER) -> list[Any]:
        asked.append(longest_s)
        scene.clock.now += 1
        return []

    scene.pool.events = news  # type: ignore[method-assign]
    scene.pool._wait(3.0)
    assert asked == [3.0, 2.0, 1.0]
    scene.pool.running[0].close()
    scene.pool.running.clear()
    scene.pool._wait(3.0)
    assert len(asked) == 3


def test_orders_to_a_supervisor_that_is_gone_are_no_problem(scene: Scene) -> None:
    job, hand = scene.begun()
    hand.is_gone()
    job.ask("TERM")
    job.end()
    assert job.asked_to_end


def test_an_interrupted_start_leaves_no_far_end_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Server, order: WorkerTask, pipe: int, control: int) -> None:
        scene.signals.append((pipe, control))
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "fork", fails)
    with pytest.raises(KeyboardInterrupt):
        scene.starts()
    for handle in scene.signals.pop():
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(handle)
