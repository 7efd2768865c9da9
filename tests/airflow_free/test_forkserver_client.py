"""The parent's end of a fork server: how it is started, what travels to it, how it is hung up on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_free import forkserver
from airflow_free.forkserver import ForkServer, WorkerTask
from airflow_free.outcome import GRACE_S, Limits, Outcome
from airflow_free.pool import Pool


@pytest.fixture
def slow_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What loads until the file `go` is there, or for a minute; `begun` says that it has begun."""
    lines = ("import time, pathlib", f"place = pathlib.Path({str(tmp_path)!r})", "(place / 'begun').touch()",
             "for n in range(6000):", "    time.sleep(0.01)", "    if (place / 'go').exists(): break")  # fmt: skip
    (tmp_path / "slow_to_load.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "slow_to_load"


def begun(server: ForkServer, place: Path) -> None:
    deadline = time.monotonic() + 30
    while not (place / "begun").exists():
        assert server.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("when", ["before it loads", "while it loads"])
def test_a_server_whose_parent_is_gone_does_not_go_on_loading(when: str, slow_to_load: str, tmp_path: Path) -> None:
    server = ForkServer.start(None, (slow_to_load,), tmp_path / "log")
    if when == "while it loads":
        begun(server, tmp_path)
    server.connection.close()
    assert server.process.wait(20) == 0
    assert (tmp_path / "log").read_text() == ""


def test_an_order_that_comes_while_it_loads_is_no_end(slow_to_load: str, tmp_path: Path) -> None:
    """Negative control: what arrives on the socket wakes it, too."""
    with Pool(tmp_path / "log") as pool:
        task = WorkerTask(
            entry="bakery:echo", payload={"n": 1}, time_limit_s=60, log_path=tmp_path / "job.log",
            loaded=(slow_to_load,),
        )  # fmt: skip
        pool.start(task)
        (server,) = pool.servers.values()
        begun(server, tmp_path)
        assert server.process.poll() is None
        (tmp_path / "go").touch()
        ends = [event for event in iter_events(pool) if isinstance(event, Outcome)]
    assert [end.status for end in ends] == ["done"]


def iter_events(pool: Pool) -> Iterator[object]:
    while pool.running:
        yield from (event for _, event in pool.events())


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
