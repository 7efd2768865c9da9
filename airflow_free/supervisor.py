"""The process between a worker and everybody else: it takes the worker's log, watches its memory, and ends whatever the
worker leaves behind. Runs nothing of a job, so that a job can break its worker and not this.

    parent of jobs ── fork server ── supervisor ── worker ── whatever the worker starts
         └──────────── control ───────────┘

Orphans of a worker come to its supervisor (PR_SET_CHILD_SUBREAPER), whatever session they moved to. `control` is a
socket: commands come in, one exit report goes out, and when its other end is gone nobody wants the job any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from airflow_free import processes
from airflow_free.outcome import MIB, STACK_SIGNAL, Limits
from airflow_free.processes import adopt_orphans, below, die_with

LOOK_S = 0.25
"""Between two looks at the memory of a job that has a limit."""
ENDING_S = 10.0
"""How long processes that were killed may take to be gone; one in the hands of a driver cannot be ended."""
CHUNK = 65536
TAIL_BYTES = 16_384
"""Of a log that was cut its end is kept too: that is where the error is."""

TERM, STACK, KILL = "TERM", "STACK", "KILL"
"""What the parent may ask for: an end in good order, the Python stacks in the log, an end."""


def supervise(
    work: Callable[[], NoReturn], answers: int, control: socket.socket, log: int, limits: Limits, program: str
) -> None:
    """Fork a worker that calls `work`, and stay until nothing of it is left; says {"began": …} and {"ended": …}.

    Called in a process of its own. `answers`, a descriptor, is the worker's alone; `control` and `log` it does not get.
    """
    os.setsid()
    adopt_orphans()
    _Supervisor(control, log, limits, program).run(work, answers)


class _Supervisor:
    def __init__(self, control: socket.socket, log: int, limits: Limits, program: str) -> None:
        self.control, self.limits, self.program = control, limits, program
        self.log = _CappedLog(log, limits.log_bytes, program)
        self.worker = 0
        self.returncode: int | None = None
        self.memory: int | None = None
        """What was in use when the limit was passed."""
        self.orders = b""

    def run(self, work: Callable[[], NoReturn], answers: int) -> None:
        bell_out, bell_in = processes.child_bell()
        self.cgroup = processes.make_group(self.program)
        printed, prints = os.pipe()
        supervisor = os.getpid()
        self.worker = os.fork()
        if self.worker == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for handle in (bell_out, bell_in, printed, self.log.file):
                os.close(handle)
            self.control.close()
            _become_the_worker(work, prints, self.cgroup, supervisor)
        os.close(prints)
        os.close(answers)
        os.set_blocking(printed, False)
        self._say({"began": self.worker, "supervisor": os.getpid(), "cgroup": self.cgroup})
        try:
            self._watch(printed, bell_out)
        finally:
            left = self._end_all()
            self.log.take_all(printed)
            self.log.close()
            self._say({"ended": self.returncode, "cut": self.log.cut, "memory": self.memory, "left": left})

    def _watch(self, printed: int, bell: int) -> None:
        """Until the worker has ended, or is to be ended."""
        selector = selectors.PollSelector()
        for source in (printed, bell, self.control):
            selector.register(source, selectors.EVENT_READ)
        pause = LOOK_S if self.limits.memory_bytes is not None else None
        while self.returncode is None:
            ready = {key.fd for key, _ in selector.select(pause)}
            if printed in ready and not self.log.take(printed):
                selector.unregister(printed)
            if bell in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(bell, CHUNK)
                self._reap()
            if self.control.fileno() in ready and not self._handle():
                return
            if self._is_too_large():
                return

    def _handle(self) -> bool:
        """Do what the parent asks for; False when that is the end, or when it is not there any more."""
        try:
            text = self.control.recv(4096)
        except ConnectionResetError:
            text = b""
        if not text:
            return False
        *orders, self.orders = (self.orders + text).split(b"\n")
        for order in orders:
            if order == KILL.encode():
                return False
            if order == TERM.encode():
                _signal(self.worker, signal.SIGTERM, group=True)
            elif order == STACK.encode():
                _signal(self.worker, STACK_SIGNAL, group=False)
        return True

    def _is_too_large(self) -> bool:
        limit = self.limits.memory_bytes
        if limit is None:
            return False
        own = below(os.getpid())
        used = sum(process.memory() for process in own)
        if used > limit:
            used = sum(process.share() for process in own)
        self.memory = used if used > limit else None
        return used > limit

    def _reap(self) -> bool:
        """Take note of who ended; False when there is no child at all."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            if ended.si_pid == self.worker:
                _signal(self.worker, signal.SIGKILL, group=True)  # its number is nobody else's until it is reaped
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid == self.worker:
                self.returncode = os.waitstatus_to_exitcode(status)

    def _end_all(self) -> int:
        """Kill what is left, the worker too; how many processes could not be ended.

        Again and again: a process that forks faster than it is looked at is in a group or a control group that is
        killed as one.
        """
        deadline = time.monotonic() + ENDING_S
        pause = 0.0005
        if self.returncode is None:
            _signal(self.worker, signal.SIGKILL, group=True)
        while self._reap():
            if self.cgroup is not None:
                processes.kill_group(self.cgroup)
            alive = [process for process in below(os.getpid()) if not process.is_zombie]
            for process in alive:
                process.kill(with_group=process.session != os.getpid())
            if time.monotonic() > deadline:
                return len(alive)
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        if self.cgroup is not None:
            processes.remove_group(self.cgroup)
        return 0

    def _say(self, word: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: then nobody misses it
            self.control.sendall(json.dumps(word).encode() + b"\n")


def _become_the_worker(work: Callable[[], NoReturn], prints: int, group: str | None, supervisor: int) -> NoReturn:
    os.setsid()
    die_with(supervisor)
    if group is not None:
        processes.enter_group(group)
    for number in (1, 2):
        os.dup2(prints, number)
    os.close(prints)
    work()


def _signal(worker: int, number: signal.Signals, *, group: bool) -> None:
    """Only while the worker is not reaped: until then its number is nobody else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(worker, number)
        else:
            os.kill(worker, number)


class _CappedLog:
    """What the worker prints: the beginning as far as the limit, then the last lines, and between them how much is not
    there."""

    def __init__(self, file: int, most: int, program: str) -> None:
        self.file, self.room, self.cut, self.program = file, most, 0, program
        self.tail: deque[bytes] = deque()

    def take(self, pipe: int) -> bool:
        """One chunk; False at its end."""
        try:
            chunk = os.read(pipe, CHUNK)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        head, rest = chunk[: self.room], chunk[self.room :]
        self.room -= len(head)
        self._write(head)
        if rest:
            self.cut += len(rest)
            self.tail.append(rest)
            while sum(map(len, self.tail)) - len(self.tail[0]) >= TAIL_BYTES:
                self.tail.popleft()
        return True

    def take_all(self, pipe: int) -> None:
        """What is still in the pipe; its writers are gone, or a process that cannot be ended holds it."""
        for _ in range(2 * MIB // CHUNK):
            before = (self.room, self.cut)
            if not self.take(pipe) or (self.room, self.cut) == before:
                break
        os.close(pipe)

    def close(self) -> None:
        if self.cut:
            tail = b"".join(self.tail)[-TAIL_BYTES:]
            self.cut -= len(tail)
            self._write(f"\n[{self.program}: the log was cut here, {self.cut} bytes are not kept]\n".encode() + tail)
        os.close(self.file)

    def _write(self, data: bytes) -> None:
        """A full disk costs the log and not the job."""
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self.file, data) :]
