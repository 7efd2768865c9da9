"""Worker entries that do harm; `HARM` is imported by tests, by the workers, and by the models of hostile sweeps.

Those that leave processes behind write their numbers into `harm.pids`, a file beside the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from airflow_free.stage import Notify

Act = Callable[[Path], None]
"""Told the folder that its numbers go to."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GARBAGE = b'\xff\x00\x1b[2J{"word": "event"}\n[1]\n"result"\nnull\n{"word": "no such"}\n'
FORKS = 60
LEAST_LOG = 4 << 20


def noted(folder: Path, pid: int) -> None:
    with (folder / "harm.pids").open("a") as file:
        file.write(f"{pid}\n")


def forked(folder: Path, act: Callable[[], Any]) -> None:
    """A child that does it and then sleeps."""
    pid = os.fork()
    if pid == 0:
        noted(folder, os.getpid())
        act()
        _sleep()


def _sleep() -> NoReturn:
    while True:
        time.sleep(3600)


def write_everywhere(data: bytes) -> None:
    """To every descriptor of this process."""
    for number in range(256):
        with contextlib.suppress(OSError):
            os.write(number, data)


def garbage_everywhere(folder: Path) -> None:
    write_everywhere(GARBAGE)


def a_word_without_end(folder: Path) -> None:
    channel = _channel()
    while True:
        os.write(channel, b"[" * 65536)


def deep_json(folder: Path) -> None:
    os.write(_channel(), b"[" * 30_000 + b"\n")


def a_huge_number(folder: Path) -> None:
    os.write(_channel(), b'{"word": "result", "result": {"a": ' + b"9" * 5000 + b"}}\n")


def a_result_of_its_own(folder: Path) -> None:
    """A word of ours with something more in it."""
    os.write(_channel(), b'{"word": "result", "result": {}, "trust": true}\n')


def a_flood_of_events(folder: Path) -> None:
    channel = _channel()
    line = b'{"word": "event", "event": {"kind": "note", "text": "\\u001b[2J again"}}\n'
    while True:
        os.write(channel, line * 500)


def _channel() -> int:
    """The pipe through which this worker answers: the one behind a descriptor beyond the first three."""
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                return int(name)
    raise AssertionError("no pipe")


def closed_pipes(folder: Path) -> None:
    os.closerange(0, 256)
    _sleep()


def a_child_in_a_session_of_its_own(folder: Path) -> None:
    forked(folder, os.setsid)


def stays_with_a_child(folder: Path) -> None:
    forked(folder, os.setsid)
    _sleep()


def a_daemon(folder: Path) -> None:
    def twice() -> None:
        os.setsid()
        if os.fork():
            os._exit(0)
        noted(folder, os.getpid())
        os.closerange(0, 256)

    forked(folder, twice)
    os.kill(os.getpid(), signal.SIGKILL)


def a_stopped_daemon(folder: Path) -> None:
    def stop() -> None:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)

    forked(folder, stop)
    os.kill(os.getpid(), signal.SIGSEGV)


def a_fork_bomb(folder: Path) -> None:
    """Children of children, every one in a session of its own, as many at once as FORKS allow."""
    for _ in range(FORKS // 12):
        if os.fork() == 0:
            os.setsid()
            noted(folder, os.getpid())
            for _ in range(11):
                if os.fork() == 0:
                    noted(folder, os.getpid())
                    _sleep()
            _sleep()
    time.sleep(0.1)
    os.abort()


def a_comet(folder: Path) -> None:
    """A process that forks and ends, and so has another number each time somebody looks."""
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork():
                os._exit(0)
    time.sleep(0.1)
    os._exit(9)


def stops_itself(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stops_its_supervisor(folder: Path) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)


def kills_its_supervisor(folder: Path) -> None:
    """From a process that does not die with it."""
    forked(folder, os.setsid)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    noted(folder, os.getpid())
    os.kill(os.getppid(), signal.SIGKILL)
    _sleep()


def gigabytes_of_log(folder: Path) -> None:
    line = b"\x1b[31m all work and no play \xff\n" * 20_000
    until, written = time.monotonic() + float(os.environ.get("HARM_S", "1")), 0
    while time.monotonic() < until or written < LEAST_LOG:  # however slow the machine is, more than a log may keep
        written += os.write(1, line)
    os.write(2, b"the last line\n")
    os._exit(4)


def memory_without_end(folder: Path) -> None:
    """In a child: the limit is that of all processes of a job."""

    def take() -> None:
        os.setsid()
        held = []
        while True:
            held.append(bytearray(os.urandom(1)) * (16 << 20))

    forked(folder, take)
    _sleep()


def escapes_in_an_exception(folder: Path) -> None:
    raise ValueError("\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b31m \r over")


def its_folders_away(folder: Path) -> None:
    """What npucompose writes for this job lies where its log is."""
    shutil.rmtree(folder)


HARM: tuple[Act, ...] = (
    garbage_everywhere, a_word_without_end, deep_json, a_huge_number, a_result_of_its_own, a_flood_of_events,
    closed_pipes, a_child_in_a_session_of_its_own, a_daemon, a_stopped_daemon, a_fork_bomb, a_comet, stops_itself,
    stops_its_supervisor, kills_its_supervisor, gigabytes_of_log, memory_without_end, escapes_in_an_exception,
    its_folders_away,
)  # fmt: skip


def act(payload: dict[str, Any], notify: Notify) -> dict[str, Any]:
    """The entry."""
    getattr(sys.modules[__name__], payload["act"])(Path(payload["folder"]))
    return {"survived": True}
