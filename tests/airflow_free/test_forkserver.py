"""The fork server's and the worker's side by hand: nothing is forked, nobody is ended."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

from airflow_free import forkserver, processes
from airflow_free.outcome import STACK_SIGNAL, Limits
from tests.airflow_free.supervised import is_open, noting

# Note [Private names]
# The server is driven by hand, call by call: what it does when a child ends between two
# of its calls is nothing that a process can be made to show.


class Ended(BaseException):
    """`os._exit` here; the exit status is its argument."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    def leave(status: int) -> NoReturn:
        raise Ended(status)

    found: list[Any] = []
    monkeypatch.setattr(os, "_exit", leave)
    for name in ("set_wakeup_fd", "signal"):
        monkeypatch.setattr(signal, name, noting(found, name))
    monkeypatch.setattr(forkserver, "adopt_orphans", noting(found, "adopt_orphans"))
    return found


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(10)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def server(calls: list[Any], ends: tuple[socket.socket, socket.socket]) -> Iterator[forkserver._Server]:
    made = forkserver._Server(ends[1])
    yield made
    for handle in (made.bell_out, made.bell_in):
        if is_open(handle):
            os.close(handle)


def test_a_server_rings_when_a_child_ends_and_adopts_orphans(server: forkserver._Server, calls: list[Any]) -> None:
    assert [os.get_blocking(end) for end in (server.bell_out, server.bell_in)] == [False, False]
    wakeup, child, adopted = calls
    assert wakeup == ("set_wakeup_fd", server.bell_in, ("warn_on_full_buffer", False))
    assert child[:2] == ("signal", signal.SIGCHLD)
    assert child[2] not in (signal.SIG_DFL, signal.SIG_IGN)
    assert child[2](17, None) is None
    assert adopted == ("adopt_orphans",)


def test_the_boot_line_loads_what_is_wanted_freezes_it_and_serves(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("made_for_this_test")
    module.deep = SimpleNamespace(read=noting(calls, "read"))
    monkeypatch.setitem(sys.modules, "made_for_this_test", module)
    ours, theirs = socket.socketpair()

    @contextlib.contextmanager
    def ending_with(connection: socket.socket) -> Iterator[None]:
        calls.append(("begins", connection.fileno()))
        yield
        calls.append(("ends",))

    handle = theirs.detach()
    os.set_inheritable(handle, True)
    served: list[socket.socket] = []
    serve = noting(calls, "serve")
    monkeypatch.setattr(
        forkserver, "_Server", lambda connection: served.append(connection) or SimpleNamespace(serve=serve)
    )
    monkeypatch.setattr(forkserver, "leave_a_trace", noting(calls, "trace"))
    monkeypatch.setattr(forkserver, "ending_with", ending_with)
    for name in ("disable", "collect", "enable", "freeze"):
        monkeypatch.setattr(gc, name, noting(calls, name))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=noting(calls, "out")))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(flush=noting(calls, "err")))
    monkeypatch.setattr(sys, "argv", ["x", "[]", str(handle), json.dumps(["colorsys", "made_for_this_test:deep.read"])])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(Ended) as ended:
        forkserver.main()
    assert ended.value.args == (0,)
    loads = [("disable",), ("begins", handle), ("read",), ("ends",), ("collect",), ("enable",), ("freeze",)]
    serves = [("serve",), ("out",), ("err",)]
    assert calls == [("trace",), *loads, *serves]
    assert "colorsys" in sys.modules
    assert (served[0].fileno(), served[0].get_inheritable()) == (handle, False)
    served[0].close()
    ours.close()


class Scripted:
    """A selector that says what the script says is ready."""

    def __init__(self, script: list[tuple[list[int], Callable[[], Any]]]) -> None:
        self.script, self.registered = deque(script), list[int]()

    def register(self, source: Any, events: int) -> None:
        assert events == selectors.EVENT_READ
        self.registered.append(source if isinstance(source, int) else source.fileno())

    def select(self) -> list[Any]:
        ready, act = self.script.popleft()
        act()
        return [(SimpleNamespace(fd=fd), None) for fd in ready]


def test_a_server_says_that_it_is_ready_reaps_and_follows_until_nobody_is_there(
    server: forkserver._Server, calls: list[Any], ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    control = server.connection.fileno()
    script = Scripted(
        [
            ([server.bell_out], lambda: os.write(server.bell_in, b"x")),
            ([server.bell_out], lambda: None),
            ([server.bell_out], lambda: None),
            ([control], lambda: ends[0].sendall(b"\n")),
            ([control], lambda: (heard.append(ends[0].recv(100)), ends[0].close())),
        ]
    )
    heard: list[bytes] = []
    monkeypatch.setattr(selectors, "PollSelector", lambda: script)
    monkeypatch.setattr(server, "_reap", noting(calls, "reap"))
    monkeypatch.setattr(server, "_wait_for_all", noting(calls, "wait"))
    calls.clear()
    server.serve()
    assert heard == [b"ready\n"]
    assert calls == [("reap",), ("reap",), ("reap",), ("wait",)]
    assert script.registered == [control, server.bell_out]
    with pytest.raises(BlockingIOError):
        os.read(server.bell_out, 1)


def test_a_server_that_fails_still_waits_for_its_supervisors(
    server: forkserver._Server, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selectors, "PollSelector", lambda: Scripted([]))
    monkeypatch.setattr(server, "_wait_for_all", noting(calls, "wait"))
    with pytest.raises(IndexError):
        server.serve()
    assert calls[-1] == ("wait",)


def test_an_order_is_a_byte_with_four_files(
    server: forkserver._Server, calls: list[Any], ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    forked: list[tuple[int, ...]] = []
    monkeypatch.setattr(server, "_fork", lambda *files: forked.append(files))
    out, into = os.pipe()
    socket.send_fds(ends[0], [b"\n"], [out, into, out, into])
    socket.send_fds(ends[0], [b"\n"], [out, into, out, into])
    assert server._listen()
    assert len(forked) == 1  # the files of each come with a byte of its own
    assert server._listen()
    ends[0].sendall(b"\n")
    assert server._listen()
    assert [len(files) for files in forked] == [4, 4]
    ends[0].close()
    assert not server._listen()
    for handle in (out, into, *(handle for files in forked for handle in files)):
        os.close(handle)
    server.connection.close()
    assert not server._listen()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    handles = [os.open(tmp_path / name, os.O_CREAT | os.O_RDWR) for name in ("order", "pipe", "log")]
    ours, theirs = socket.socketpair()
    yield [*handles, theirs.detach()]
    ours.close()


def test_after_a_fork_the_server_holds_no_file_of_the_job(
    server: forkserver._Server, files: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fork", lambda: 77)
    server._fork(*files)
    assert server.supervisors == {77}
    assert not any(map(is_open, files))


def test_a_fork_that_fails_closes_the_job_s_files_and_is_told_in_the_log(
    server: forkserver._Server, files: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> int:
        raise BlockingIOError(11, "too many processes")

    monkeypatch.setattr(os, "fork", fails)
    server._fork(*files)
    assert server.supervisors == set()
    assert not any(map(is_open, files))
    assert "too many processes" in capsys.readouterr().err


def test_what_is_printed_before_a_fork_is_printed_once(
    server: forkserver._Server, calls: list[Any], files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.clear()
    monkeypatch.setattr(os, "fork", lambda: calls.append("fork") or 77)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=noting(calls, "out")))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(flush=noting(calls, "err")))
    server._fork(*files)
    assert calls == [("out",), ("err",), "fork"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_fork_becomes_a_supervisor_without_the_server_s_own_files(
    fails: bool, server: forkserver._Server, calls: list[Any], files: list[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    what = {"entry": "größe:x", "limits": {"log_bytes": 5, "memory_bytes": None}, "env": {}, "program": "bakery"}
    (tmp_path / "order").write_text(json.dumps(what), encoding="utf-8")
    became: list[Any] = []
    monkeypatch.setattr(forkserver, "run_and_exit", lambda *arguments: became.append(arguments))

    def supervise(work: Any, answers: int, control: socket.socket, log: int, limits: Limits, program: str) -> None:
        work()
        became.append((answers, control.detach(), log, limits, program))
        if fails:
            raise OSError("no more memory")

    monkeypatch.setattr(forkserver, "supervise", supervise)
    monkeypatch.setattr(os, "fork", lambda: 0)
    with pytest.raises(Ended) as ended:
        server._fork(*files)
    assert ended.value.args == (1 if fails else 0,)
    assert ("no more memory" in capsys.readouterr().err) is fails
    _, pipe, log, control = files
    assert became == [(what, pipe), (pipe, control, log, Limits(log_bytes=5), "bakery")]
    assert not any(map(is_open, (server.bell_out, server.bell_in)))
    assert server.connection.fileno() == -1
    assert calls[-1] == ("set_wakeup_fd", -1)


class Child:
    def __init__(self, calls: list[Any], pid: int, parent: int, session: int = 0) -> None:
        self.pid, self.parent, self.session = pid, parent, session
        self.kill = lambda *, with_group: calls.append(("kill", pid, with_group))


def test_what_a_killed_supervisor_left_is_killed_and_the_supervisors_are_not(
    server: forkserver._Server, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    me, own = os.getpid(), os.getsid(0)
    tree = {
        me: [Child(calls, 1, me), Child(calls, 2, me, own), Child(calls, 3, 2), Child(calls, 5, 1)],
        2: [Child(calls, 3, 2, 99)],
    }
    monkeypatch.setattr(forkserver, "below", lambda pid: tree[pid])
    ended = deque([7, 8])

    def waitid(*arguments: Any) -> Any:
        assert arguments == (os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return SimpleNamespace(si_pid=ended[0]) if ended else None

    def waitpid(pid: int, options: int) -> None:
        assert (pid, options) == (ended.popleft(), 0)

    monkeypatch.setattr(os, "waitid", waitid)
    monkeypatch.setattr(os, "waitpid", waitpid)
    server.supervisors = {1, 7}
    calls.clear()
    server._reap()
    assert server.supervisors == {1}
    assert calls == [("kill", 2, False), ("kill", 3, True)]


def test_without_children_there_is_nobody_to_reap(
    server: forkserver._Server, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def waitid(*arguments: Any) -> Any:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", waitid)
    monkeypatch.setattr(forkserver, "below", lambda pid: pytest.fail("nobody is looked for"))
    server._reap()


@pytest.mark.parametrize(("gone_after", "asked"), [(2, 3), (99, 4)])
def test_a_server_waits_for_its_supervisors_as_long_as_they_may_take(
    gone_after: int, asked: int, server: forkserver._Server, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        assert seconds == 0.005
        clock.now += 2.5

    reaped: list[int] = []
    monkeypatch.setattr(forkserver, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(server, "_reap", lambda: reaped.append(1))
    monkeypatch.setattr(forkserver, "below", lambda pid: [] if len(reaped) > gone_after else [pid])
    server._wait_for_all()
    assert len(reaped) == asked


@pytest.mark.parametrize(
    ("error", "status"), [(None, 0), (SystemExit(5), 5), (SystemExit("words"), 1), (SystemExit(), 1), (ValueError(), 1)]
)
def test_a_worker_s_exit_status_is_that_of_its_work(
    error: BaseException | None, status: int, calls: list[Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    seen: list[Any] = []

    def handle(what: Any, pipe: int) -> None:
        seen.append((os.environ.get("LATE"), what["env"], pipe))
        if error is not None:
            raise error

    flushed: list[str] = []
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        monkeypatch.setattr(stream, "flush", lambda name=name: flushed.append(name))
    monkeypatch.setenv("LATE", "before")
    monkeypatch.setattr(forkserver, "handle", handle)
    with pytest.raises(Ended) as ended:
        forkserver.run_and_exit({"env": {"LATE": "now"}}, 9)
    assert ended.value.args == (status,)
    assert seen == [("now", {"LATE": "now"}, 9)]
    assert flushed == ["out", "err"]
    assert ("ValueError" in capsys.readouterr().err) is isinstance(error, ValueError)


def test_a_worker_reads_nothing_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, int]] = []

    def dup2(handle: int, place: int) -> NoReturn:
        moved.append((os.readlink(f"/proc/self/fd/{handle}"), place))
        raise Ended

    monkeypatch.setattr(forkserver, "os", SimpleNamespace(**{**vars(os), "dup2": dup2}))
    with pytest.raises(Ended):
        forkserver.handle({"entry": "a:b"}, 0)
    assert moved == [(os.devnull, 0)]


def test_a_trace_is_left_by_lines_faults_and_the_signals_that_ask_for_it(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.clear()
    for name in ("enable", "register"):
        monkeypatch.setattr(faulthandler, name, noting(calls, name))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(reconfigure=noting(calls, "out")))
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(reconfigure=noting(calls, "err")))
    forkserver.leave_a_trace()
    assert calls == [
        ("out", ("line_buffering", True)), ("err", ("line_buffering", True)), ("enable",),
        ("register", STACK_SIGNAL, ("all_threads", True)), ("signal", signal.SIGTERM, forkserver._end),
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        forkserver._end(15, None)
    assert ended.value.code == 143


def test_a_worker_asks_to_die_with_its_parent_and_ends_if_that_is_gone(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = SimpleNamespace(status=0)

    def prctl(*arguments: int) -> int:
        calls.append(arguments)
        return answer.status

    calls.clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(prctl=prctl, errno=use_errno))
    processes.die_with(os.getppid())
    assert calls == [(1, 9, 0, 0, 0)]
    assert capsys.readouterr().out == ""
    answer.status = -1
    processes.die_with(os.getppid())
    assert "this worker stays behind" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="the parent process 1234567 is gone"):
        processes.die_with(1234567)
    monkeypatch.setattr(sys, "platform", "darwin")
    calls.clear()
    processes.die_with(os.getppid())
    assert calls == []
