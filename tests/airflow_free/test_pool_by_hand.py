"""A pool whose fork server is this test: what a job says is written by hand, and the clock stands still."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_free import forkserver
from airflow_free import pool as pools
from airflow_free.errors import OrchestratorError
from airflow_free.forkserver import ForkServer, WorkerTask
from airflow_free.outcome import GRACE_S, STACK_S, Limits, Outcome
from airflow_free.pool import FOREVER, LINGER_S, START_S, Pool
from airflow_free.stage import Event

NOON = 1000.0
LIMIT = 60.0
PEN = "/a/pen"


class Clock:
    now = NOON

    def monotonic(self) -> float:
        return self.now


class Patient(selectors.DefaultSelector):
    """Notes how long it was to sleep, and sleeps not at all."""

    asked: list[float | None]

    def select(self, timeout: float | None = None) -> Any:
        self.asked.append(timeout)
        return super().select(0)


class Hand:
    """The far end of a job: its pipe, its control socket."""

    def __init__(self, pipe: int, control: socket.socket) -> None:
        self.pipe, self.control = pipe, control
        control.setblocking(False)

    def says(self, **word: Any) -> None:
        os.write(self.pipe, json.dumps(word).encode() + b"\n")

    def notes(self, text: str) -> None:
        self.says(word="event", event={"kind": "note", "text": text})

    def tells(self, **word: Any) -> None:
        self.control.sendall(json.dumps(word).encode() + b"\n")

    def begins(self, supervisor: int = 99) -> None:
        self.tells(began=1, supervisor=supervisor, cgroup=PEN)

    def ends(self, returncode: int = 0, memory: int | None = None, cut: int = 0) -> None:
        self.tells(ended=returncode, memory=memory, cut=cut, left=0)

    def closes_its_pipe(self) -> None:
        os.close(self.pipe)
        self.pipe = -1

    def is_gone(self) -> None:
        self.control.close()

    @property
    def orders(self) -> bytes:
        try:
            return self.control.recv(1000)
        except BlockingIOError:
            return b""


class Server(ForkServer):
    """A fork server that forks nobody."""

    def __init__(self, hands: dict[int, Hand], ready: bool) -> None:
        self.hands, self.ready, self.ended = hands, ready, False
        self.connection, self.far_end = socket.socketpair()
        self.killed = self.closed = 0
        self.forked: list[int] = []
        self.process: Any = SimpleNamespace(kill=self._kill)

    def _kill(self) -> None:
        self.killed += 1

    def fork(self, order: WorkerTask, pipe: int, control: int) -> None:
        self.forked.append(order.number)
        self.hands[order.number] = Hand(os.dup(pipe), socket.socket(fileno=os.dup(control)))

    def has_ended(self) -> bool:
        return self.ended

    def listen(self) -> bool:
        text = self.connection.recv(100)
        self.ready = self.ready or bool(text)
        return bool(text)

    def close(self) -> int:
        self.closed += 1
        self.connection.close()
        return 0


class Scene:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.folder, self.hands = folder, dict[int, Hand]()
        self.servers: list[Server] = []
        self.ready = True
        self.signals: list[tuple[Any, ...]] = []
        self.pens: list[tuple[str, str]] = []
        monkeypatch.setattr(pools, "time", self.clock)
        monkeypatch.setattr(ForkServer, "start", self._server)
        monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open(os.devnull, os.O_RDONLY), raising=False)
        monkeypatch.setattr(signal, "pidfd_send_signal", lambda *one: self.signals.append(one), raising=False)
        for name in ("kill", "remove"):
            monkeypatch.setattr(pools.processes, f"{name}_group", lambda pen, name=name: self.pens.append((name, pen)))
        self.pool = Pool(folder / "forkserver.log")
        self.selector = Patient()
        self.selector.asked = []
        self.pool.selector.close()
        self.pool.selector = self.selector

    def _server(self, env: Any, loaded: Any, log_path: Path) -> Server:
        assert log_path == self.folder / "forkserver.log"
        self.servers.append(Server(self.hands, self.ready))
        return self.servers[-1]

    def starts(self, number: int = 0, **parts: Any) -> Any:
        log = self.folder / str(number) / "deep" / "run.log"
        order = WorkerTask(number=number, entry="a:b", payload={}, time_limit_s=LIMIT, log_path=log, **parts)
        self.pool.start(order)
        return self.pool.running[number]

    def begun(self, number: int = 0, **parts: Any) -> tuple[Any, Hand]:
        job = self.starts(number, **parts)
        self.hands[number].begins()
        assert self.pool.events() == []
        return job, self.hands[number]

    def outcome(self) -> Outcome:
        ((_, found),) = self.pool.events()
        assert isinstance(found, Outcome)
        return found


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


# The parent's end of a real fork server.


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def test_a_server_starts_in_a_session_of_its_own_with_its_socket_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []

    def popen(command: list[str], **options: Any) -> Any:
        os.write(options["stdout"].fileno(), b"more\n")
        os.fstat(options["pass_fds"][0])
        started.append((command, {**options, "stdout": options["stdout"].name, "stderr": options["stderr"].name}))
        return "process"

    monkeypatch.setattr(subprocess, "Popen", popen)
    log = tmp_path / "a" / "b" / "forkserver.log"
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    server = ForkServer.start({"GIVEN": "1"}, ("m", "n:f"), log)
    ((command, options),) = started
    handle = int(command[4])
    assert command == [
        sys.executable, "-c", forkserver.BOOT, json.dumps(sys.path), str(handle), '["m", "n:f"]',
    ]  # fmt: skip
    assert options == {
        "stdin": subprocess.DEVNULL, "stdout": str(log), "stderr": str(log), "pass_fds": (handle,),
        "start_new_session": True, "env": {"GIVEN": "1"},
    }  # fmt: skip
    assert (server.process, server.ready) == ("process", False)
    assert log.read_text() == "before\nmore\n"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)
    server.connection.close()
    ForkServer.start({}, (), log).connection.close()
    ForkServer.start({}, (), tmp_path / "new" / "deep" / "forkserver.log").connection.close()


def test_an_order_travels_as_a_text_with_three_files(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("before\n")
    order = WorkerTask(
        number=3, entry="a:b", payload={"x": "größe"}, time_limit_s=1, log_path=log, late_env={"A": "1"},
        program="bakery", limits=Limits(log_bytes=5, memory_bytes=6),
    )  # fmt: skip
    with (tmp_path / "pipe").open("w") as pipe, (tmp_path / "control").open("w") as control:
        ForkServer(SimpleNamespace(), connection[0]).fork(order, pipe.fileno(), control.fileno())  # type: ignore[arg-type]
    word, (text, sent_pipe, sent_log, sent_control), _, _ = socket.recv_fds(connection[1], 10, 9)
    assert word == b"\n"
    with open(text, encoding="utf-8") as file:
        assert json.load(file) == {
            "entry": "a:b", "payload": {"x": "größe"}, "env": {"A": "1"},
            "program": "bakery", "limits": {"log_bytes": 5, "memory_bytes": 6, "memory_name": "its limit"},
        }  # fmt: skip
    for handle, written in ((sent_pipe, b"pipe"), (sent_log, b"log"), (sent_control, b"control")):
        os.write(handle, written)
        os.close(handle)
    assert [(tmp_path / name).read_text() for name in ("pipe", "run.log", "control")] == [
        "pipe", "before\nlog", "control",
    ]  # fmt: skip


def test_what_is_no_json_is_refused_before_anything_travels(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    log = tmp_path / "run.log"
    order = WorkerTask(number=0, entry="a:b", payload={"x": float("nan")}, time_limit_s=1, log_path=log)
    server = ForkServer(SimpleNamespace(), connection[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="JSON"):
        server.fork(order, 0, 1)
    connection[1].close()
    order = WorkerTask(number=0, entry="a:b", payload={}, time_limit_s=1, log_path=tmp_path / "run.log")
    server.fork(order, 0, 1)  # a server that is gone shows when the job's own socket closes


def test_a_server_says_one_thing(connection: tuple[socket.socket, socket.socket]) -> None:
    server = ForkServer(SimpleNamespace(), connection[0])  # type: ignore[arg-type]
    assert (server.listen(), server.ready) == (True, False)
    connection[1].sendall(b"ready\n")
    assert (server.listen(), server.ready) == (True, True)
    assert server.listen()
    connection[1].close()
    assert (server.listen(), server.ready) == (False, True)
    connection[0].close()
    assert not server.listen()


class Process:
    """Ends at the wait of this number, or never."""

    def __init__(self, ends_at: int) -> None:
        self.waits: list[float | None] = []
        self.ends_at, self.killed = ends_at, 0

    def wait(self, timeout: float | None = None) -> int:
        self.waits.append(timeout)
        if timeout is not None and len(self.waits) < self.ends_at:
            raise subprocess.TimeoutExpired("server", timeout)
        return 5

    def kill(self) -> None:
        self.killed += 1


@pytest.mark.parametrize(("ends_at", "waits", "killed"), [(1, [GRACE_S], 0), (2, [GRACE_S, None], 1)])
def test_a_server_that_is_hung_up_on_ends_or_is_killed(
    ends_at: int, waits: list[Any], killed: int, connection: tuple[socket.socket, socket.socket]
) -> None:
    process = Process(ends_at)
    assert ForkServer(process, connection[0]).close() == 5  # type: ignore[arg-type]
    assert (process.waits, process.killed, connection[0].fileno()) == (waits, killed, -1)


def test_whether_a_server_has_ended_is_asked_of_its_process_and_its_last_word_is_heard(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    process = Process(2)
    server = ForkServer(process, connection[0])  # type: ignore[arg-type]
    connection[1].sendall(b"ready\n")
    connection[1].close()
    assert (server.has_ended(), server.ready) == (False, False)
    assert (server.has_ended(), server.ready) == (True, True)
    assert process.waits == [0.5, 0.5]
    connection[0].close()
    assert server.has_ended()


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
