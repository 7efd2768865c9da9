"""The supervisor and its orders by hand: nothing is forked, every call to the system is looked at."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from airflow_free import processes, supervisor
from airflow_free.outcome import STACK_SIGNAL, Limits
from airflow_free.supervisor import _Supervisor
from tests.airflow_free.supervised import Children, Ended, Left, Scripted, Time, is_open, noting, text

WORKER = 4242

# Note [Private names]
# The supervisor is driven by hand, call by call: what it does when a worker ends between two
# of its calls is nothing that a process can be made to show.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the system, in order."""
    return []


@pytest.fixture
def parent() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    parent.theirs = theirs  # type: ignore[attr-defined]
    with ours, theirs:
        yield ours


def made(parent_: socket.socket, tmp_path: Path, limits: Limits | None = None) -> _Supervisor:
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    found = _Supervisor(parent.theirs, log, limits or Limits(), "bakery")  # type: ignore[attr-defined]
    found.worker, found.cgroup = WORKER, None
    return found


# What its parent asks for, and what it uses.


def test_orders_come_in_pieces_and_in_turn(
    parent: socket.socket, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_signal", noting(calls, "signal"))
    one = made(parent, tmp_path)
    parent.sendall(b"TERM\nSTACK\nnonsense\nST")
    assert one._handle()
    assert calls == [("signal", WORKER, signal.SIGTERM, ("group", True)),
                     ("signal", WORKER, STACK_SIGNAL, ("group", False))]  # fmt: skip
    parent.sendall(b"ACK\nKIL")
    assert one._handle()
    assert len(calls) == 3
    parent.sendall(b"L\nTERM\n")
    assert not one._handle()
    assert len(calls) == 3


def test_a_parent_that_is_gone_is_an_order_to_end(parent: socket.socket, tmp_path: Path) -> None:
    one = made(parent, tmp_path)
    parent.close()
    assert not one._handle()

    def reset(size: int) -> NoReturn:
        raise ConnectionResetError

    one.control = SimpleNamespace(recv=reset)  # type: ignore[assignment]
    assert not one._handle()


class Used:
    def __init__(self, memory: int, share: int) -> None:
        self.memory, self.share = lambda: memory, lambda: share


@pytest.mark.parametrize(
    ("limit", "processes", "memory"),
    [
        (None, [(1000, 1000)], None),
        (100, [(60, 60), (40, 40)], None),
        (100, [(60, 70), (40, 40)], None),
        (100, [(60, 30), (50, 70)], None),
        (100, [(60, 40), (50, 61)], 101),
        (100, [(40, 900)], None),
        (100, [], None),
    ],
)
def test_memory_that_is_shared_counts_once_and_the_limit_itself_is_allowed(
    limit: int | None, processes: list[tuple[int, int]], memory: int | None, parent: socket.socket, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[int] = []
    monkeypatch.setattr(supervisor, "below", lambda pid: asked.append(pid) or [Used(*one) for one in processes])
    one = made(parent, tmp_path, Limits(memory_bytes=limit))
    assert one._is_too_large() is (memory is not None)
    assert one.memory == memory
    assert asked == ([] if limit is None else [os.getpid()])


@pytest.mark.parametrize("others", [True, False])
def test_the_group_of_the_worker_is_killed_before_its_number_is_free(
    others: bool, parent: socket.socket, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    children = Children(calls, [(7, 1), (WORKER, 5), (8, 2)], others)
    monkeypatch.setattr(os, "waitid", children.waitid)
    monkeypatch.setattr(os, "waitpid", children.waitpid)
    monkeypatch.setattr(supervisor, "_signal", noting(calls, "signal"))
    one = made(parent, tmp_path)
    assert one._reap() is others
    assert one.returncode == 5
    assert calls == [
        ("reaped", 7), ("signal", WORKER, signal.SIGKILL, ("group", True)), ("reaped", WORKER), ("reaped", 8),
    ]  # fmt: skip


@pytest.fixture
def ending(
    parent: socket.socket, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., _Supervisor]:
    def ending(rounds: int, left: list[Left], time: Time, pen: str | None, returncode: int | None) -> _Supervisor:
        monkeypatch.setattr(supervisor, "time", time)
        monkeypatch.setattr(supervisor, "below", lambda pid: calls.append(("below", pid == os.getpid())) or left)
        monkeypatch.setattr(supervisor, "_signal", noting(calls, "signal"))
        monkeypatch.setattr(supervisor.processes, "kill_group", noting(calls, "pen killed"))
        monkeypatch.setattr(supervisor.processes, "remove_group", noting(calls, "pen removed"))
        one = made(parent, tmp_path)
        one.cgroup, one.returncode = pen, returncode
        turns = iter([True] * rounds + [False])
        monkeypatch.setattr(one, "_reap", lambda: next(turns))
        return one

    return ending


def test_whoever_is_left_is_killed_until_there_is_nobody(ending: Any, calls: list[Any]) -> None:
    left = [Left(calls, 1, os.getpid()), Left(calls, 2, 99), Left(calls, 3, 99, is_zombie=True)]
    time = Time()
    assert ending(1, left, time, "pen", None)._end_all() == 0
    assert calls == [
        ("signal", WORKER, signal.SIGKILL, ("group", True)), ("pen killed", "pen"), ("below", True), ("kill", 1, False),
        ("kill", 2, True), ("pen removed", "pen"),
    ]  # fmt: skip


def test_a_worker_that_has_ended_gets_no_signal_and_no_pen_is_no_pen(ending: Any, calls: list[Any]) -> None:
    time = Time()
    assert ending(8, [], time, None, 0)._end_all() == 0
    assert {call[0] for call in calls} == {"below"}
    assert time.slept == [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02]


def test_processes_that_cannot_be_ended_are_counted_after_ten_seconds(ending: Any, calls: list[Any]) -> None:
    left = [Left(calls, 1), Left(calls, 2), Left(calls, 3, is_zombie=True)]
    time = Time(step=5.0)
    assert ending(99, left, time, "pen", 0)._end_all() == 2
    assert len(time.slept) == 3  # at 50, 55 and 60 seconds: that is not past the limit yet
    assert ("pen removed", "pen") not in calls


@pytest.fixture
def watch(parent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.setattr(selectors, "PollSelector", Scripted)
    Scripted.script, Scripted.pauses, Scripted.registered = deque(), [], []
    (printed, prints), (bell, rings) = os.pipe(), os.pipe()
    for handle in (printed, bell):
        os.set_blocking(handle, False)
    one = made(parent, tmp_path)
    yield SimpleNamespace(
        one=one, printed=printed, prints=prints, bell=bell, rings=rings, control=one.control.fileno(), parent=parent
    )
    for handle in (printed, bell, rings, *([prints] if is_open(prints) else [])):
        os.close(handle)


def test_the_watch_ends_with_the_worker_and_takes_what_it_prints(watch: SimpleNamespace, tmp_path: Path) -> None:
    reaped: list[int] = []

    def reap() -> bool:
        reaped.append(len(reaped))
        watch.one.returncode = 3 if len(reaped) == 2 else None
        return True

    watch.one._reap = reap
    Scripted.script.extend(
        [
            ([watch.printed], lambda: os.write(watch.prints, b"one\n")),
            ([watch.bell], lambda: os.write(watch.rings, b"x")),
            ([watch.bell], lambda: None),  # a bell whose ring was read already
        ]
    )
    watch.one._watch(watch.printed, watch.bell)
    assert (text(tmp_path), reaped, Scripted.pauses) == (b"one\n", [0, 1], [None] * 3)
    assert Scripted.registered == [watch.printed, watch.bell, watch.control]
    with pytest.raises(BlockingIOError):
        os.read(watch.bell, 1)


def test_closed_output_is_not_waited_for_any_more_and_orders_are_followed(watch: SimpleNamespace) -> None:
    Scripted.script.extend(
        [
            ([watch.printed], lambda: os.close(watch.prints)),
            ([watch.control], lambda: watch.parent.sendall(b"nonsense\n")),
            ([watch.control], lambda: watch.parent.sendall(b"KILL\n")),
        ]
    )
    watch.one._watch(watch.printed, watch.bell)
    assert not Scripted.script
    assert Scripted.registered == [watch.bell, watch.control]
    assert watch.one.returncode is None


def test_the_memory_of_a_job_with_a_limit_is_looked_at_four_times_a_second(watch: SimpleNamespace) -> None:
    watch.one.limits = Limits(memory_bytes=5)
    sizes = iter([False, False, True])
    watch.one._is_too_large = lambda: next(sizes)
    Scripted.script.extend([([], lambda: None)] * 5)
    watch.one._watch(watch.printed, watch.bell)
    assert Scripted.pauses == [0.25] * 3


# Its life, from the fork to the last word.


@pytest.fixture
def system(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    for module, name in ((signal, "set_wakeup_fd"), (signal, "signal"), (os, "setsid")):
        monkeypatch.setattr(module, name, noting(calls, name))
    monkeypatch.setattr(supervisor, "adopt_orphans", noting(calls, "adopt_orphans"))
    monkeypatch.setattr(supervisor.processes, "make_group", lambda program: "pen")
    return calls


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    found: list[tuple[int, int]] = []
    make = os.pipe

    def pipe() -> tuple[int, int]:
        found.append(make())
        return found[-1]

    monkeypatch.setattr(os, "pipe", pipe)
    yield found
    for handle in (handle for ends in found for handle in ends):
        if is_open(handle):
            os.close(handle)


@pytest.mark.parametrize("fails", [False, True])
def test_a_supervisor_says_that_it_began_and_in_any_case_how_it_ended(
    fails: bool, parent: socket.socket, tmp_path: Path, system: list[Any], pipes: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "fork", lambda: WORKER)
    one = made(parent, tmp_path, Limits(log_bytes=3))
    told_before: list[Any] = []

    def watch(printed: int, bell: int) -> None:
        (bell_out, bell_in), (printed_, prints) = pipes[-2:]
        assert (printed, bell) == (printed_, bell_out)
        assert [os.get_blocking(end) for end in (bell_out, bell_in, printed)] == [False] * 3
        assert (is_open(prints), is_open(answers)) == (False, False)
        told_before.append(json.loads(parent.recv(4096)))
        if fails:
            raise Ended

    answers, other = pipes[0] if pipes else os.pipe()
    one._watch = watch  # type: ignore[method-assign]
    one._end_all = lambda: 6  # type: ignore[method-assign]
    one.returncode, one.memory = 9, 77
    taken: list[int] = []
    one.log.take_all = taken.append  # type: ignore[method-assign]
    one.log.cut = 0
    if fails:
        with pytest.raises(Ended):
            one.run(lambda: None, answers)  # type: ignore[arg-type, return-value]
    else:
        one.run(lambda: None, answers)  # type: ignore[arg-type, return-value]
    assert told_before == [{"began": WORKER, "supervisor": os.getpid(), "cgroup": "pen"}]
    assert json.loads(parent.recv(4096)) == {"ended": 9, "cut": 0, "memory": 77, "left": 6}
    assert taken == [pipes[-1][0]]
    assert not is_open(one.log.file)
    (wakeup, called) = [call for call in system if call[0] in ("set_wakeup_fd", "signal")]
    assert wakeup == ("set_wakeup_fd", pipes[-2][1], ("warn_on_full_buffer", False))
    assert called[:2] == ("signal", signal.SIGCHLD)
    assert callable(called[2])
    assert called[2] is not signal.SIG_IGN
    os.close(other)


def test_the_forked_worker_keeps_nothing_of_its_supervisor(
    parent: socket.socket, tmp_path: Path, system: list[Any], pipes: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "fork", lambda: 0)
    born: list[Any] = []

    def be(work: Any, prints: int, pen: str | None, supervisor_: int) -> NoReturn:
        born.append((work, prints, pen, supervisor_))
        raise Ended

    monkeypatch.setattr(supervisor, "_become_the_worker", be)
    one = made(parent, tmp_path)
    work: Any = object()
    with pytest.raises(Ended):
        one.run(work, 0)
    (bell_out, bell_in), (printed, prints) = pipes
    assert [is_open(handle) for handle in (bell_out, bell_in, printed, one.log.file, prints)] == [False] * 4 + [True]
    assert one.control.fileno() == -1
    assert born == [(work, prints, "pen", os.getpid())]
    assert [call for call in system if call[0] in ("set_wakeup_fd", "signal")][2:] == [
        ("set_wakeup_fd", -1), ("signal", signal.SIGCHLD, signal.SIG_DFL),
    ]  # fmt: skip


@pytest.mark.parametrize("pen", ["pen", None])
def test_a_worker_has_its_own_session_its_pen_and_prints_into_its_log(
    pen: str | None, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "die_with", noting(calls, "die_with"))
    monkeypatch.setattr(supervisor.processes, "enter_group", noting(calls, "enter"))
    # pytest itself moves descriptors: only what the supervisor asks for is noted.
    asked = {name: noting(calls, name) for name in ("setsid", "dup2", "close")}
    monkeypatch.setattr(supervisor, "os", SimpleNamespace(**{**vars(os), **asked}))
    supervisor._become_the_worker(lambda: calls.append("work"), 55, pen, 66)  # type: ignore[arg-type, return-value]
    entered = [("enter", "pen")] if pen else []
    assert calls == [
        ("setsid",), ("die_with", 66), *entered, ("dup2", 55, 1), ("dup2", 55, 2), ("close", 55), "work",
    ]  # fmt: skip


def test_to_supervise_is_a_session_of_its_own_that_adopts_orphans(
    system: list[Any], monkeypatch: pytest.MonkeyPatch, parent: socket.socket
) -> None:
    def run(self: _Supervisor, work: Any, answers: int) -> None:
        system.append((self.log.file, self.log.room, self.limits.memory_bytes, self.program, work, answers))

    monkeypatch.setattr(_Supervisor, "run", run)
    work: Any = object()
    supervisor.supervise(work, 5, parent, 6, Limits(log_bytes=7, memory_bytes=8), "bakery")
    assert system == [("setsid",), ("adopt_orphans",), (6, 7, 8, "bakery", work, 5)]


def test_orphans_are_adopted_where_the_system_can(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: SimpleNamespace(prctl=noting(calls, "prctl")))
    processes.adopt_orphans()
    assert calls == [("prctl", 36, 1, 0, 0, 0)]
    monkeypatch.setattr(sys, "platform", "darwin")
    processes.adopt_orphans()
    assert len(calls) == 1


@pytest.mark.parametrize("error", [None, ProcessLookupError, PermissionError])
def test_a_signal_goes_to_the_group_or_to_the_worker_alone(
    error: type[Exception] | None, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(name: str) -> Callable[..., None]:
        def send(*arguments: Any) -> None:
            calls.append((name, *arguments))
            if error:
                raise error

        return send

    monkeypatch.setattr(os, "kill", sent("kill"))
    monkeypatch.setattr(os, "killpg", sent("killpg"))
    supervisor._signal(5, signal.SIGTERM, group=True)
    supervisor._signal(6, signal.SIGUSR1, group=False)
    assert calls == [("killpg", 5, signal.SIGTERM), ("kill", 6, signal.SIGUSR1)]


def test_words_that_nobody_hears_are_no_problem(parent: socket.socket, tmp_path: Path) -> None:
    one = made(parent, tmp_path)
    one._say({"a": 1})
    assert parent.recv(100) == b'{"a": 1}\n'
    parent.close()
    one._say({"a": 1})
