"""What the tests of a supervisor put in the place of the system's processes, clock and selector."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar


class Ended(Exception):
    """What a call that never returns raises here."""


def is_open(handle: int) -> bool:
    try:
        os.fstat(handle)
    except OSError:
        return False
    return True


def noting(calls: list[Any], name: str, answer: Any = None) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        calls.append((name, *arguments, *named.items()))
        return answer

    return call


def text(tmp_path: Path) -> bytes:
    return (tmp_path / "log").read_bytes()


# Who ended, and who is left.


class Children:
    """`os.waitid` and `os.waitpid` over a list of (pid, exit status); None after the last, or nobody at all."""

    def __init__(self, calls: list[Any], ended: list[tuple[int, int]], others: bool) -> None:
        self.calls, self.ended, self.others = calls, deque(ended), others

    def waitid(self, *arguments: Any) -> Any:
        assert arguments == (os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if self.ended:
            return SimpleNamespace(si_pid=self.ended[0][0])
        if not self.others:
            raise ChildProcessError
        return None

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        assert (self.ended[0][0], options) == (pid, 0)
        self.calls.append(("reaped", pid))
        return pid, self.ended.popleft()[1] << 8


class Left:
    def __init__(self, calls: list[Any], pid: int, session: int = 0, is_zombie: bool = False) -> None:
        self.session, self.is_zombie = session, is_zombie
        self.kill = lambda *, with_group: calls.append(("kill", pid, with_group))


class Time:
    def __init__(self, step: float = 0.0) -> None:
        self.now, self.slept = 50.0, list[float]()
        self.step = step

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += self.step


# The watch.


class Scripted:
    """A selector that says what the script says is ready, and runs what stands beside it."""

    script: ClassVar[deque[tuple[list[int], Callable[[], Any]]]] = deque()
    pauses: ClassVar[list[float | None]] = []
    registered: ClassVar[list[int]] = []

    def register(self, source: Any, events: int) -> None:
        assert events == selectors.EVENT_READ
        self.registered.append(source if isinstance(source, int) else source.fileno())

    def unregister(self, source: int) -> None:
        self.registered.remove(source)

    def select(self, pause: float | None) -> list[Any]:
        self.pauses.append(pause)
        ready, act = self.script.popleft()
        act()
        return [(SimpleNamespace(fd=fd), None) for fd in ready]
