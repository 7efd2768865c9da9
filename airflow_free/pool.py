"""Jobs in forked processes: ordered, watched in one loop that sleeps, ended with all that they started. Knows no stage.

    with Pool(folder) as pool:
        pool.start(Order(number=0, entry="module:function", payload={}, time_limit_s=60, log_path=log))
        while pool.running:
            for number, news in pool.news():        # Event or Outcome
                …

Orders with other needs before `import torch` get a fork server of their own. A job is not trusted: whatever it writes,
closes, stops or kills, it is one job that ends badly.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import asdict, evolve, field, frozen

from airflow_free import cgroup
from airflow_free.outcome import GRACE_S, STACK_S, Account, Hearing, Limits, Outcome, last_lines, outcome_of
from airflow_free.stage import Event, Tell
from airflow_free.supervisor import ENDING_S, KILL, STACK, TERM
from npucompose.errors import NpuComposeError
from npucompose.experiment.environment import worker_environment

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from airflow_free.forkserver import main; main()"
"""Instead of `-m airflow_free.forkserver`: that would need this package on the path before the path could be set."""
FOREVER = float("inf")
MOST_STARTS = 3
START_S = 60.0
"""How long a fork server that is ready may take to fork; one that was stopped takes forever."""
LINGER_S = ENDING_S + GRACE_S
"""How long a supervisor that was told to end its job may take before it is killed itself."""

News = Event | Outcome


@frozen(kw_only=True)
class Order:
    """One job: call `entry` ("module:function") with `payload`."""

    number: int
    entry: str
    payload: Mapping[str, Any]
    time_limit_s: float
    log_path: Path
    limits: Limits = field(factory=Limits)
    env: Mapping[str, str] = field(factory=dict[str, str])
    """Variables that must be there before torch is loaded."""
    loaded: tuple[str, ...] = ()
    """Modules to have loaded before the fork; `module:function` is called too, for what it reads once and keeps."""
    late_env: Mapping[str, str] = field(factory=dict[str, str])
    """Variables of this job alone, set after the fork: which device it may see."""


class Pool:
    """A parent of jobs. Not for several threads. `log_path` gets what the fork servers themselves print."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self.running: dict[int, _Job] = {}
        self.selector = selectors.DefaultSelector()
        self.servers: dict[str, _Server] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever still runs is asked to end, and killed after GRACE_S."""
        try:
            self._end_gently()
        finally:
            for job in self.running.values():
                job.close()
            for server in self.servers.values():
                server.close()
            self.selector.close()

    def start(self, order: Order) -> None:
        """Have the job forked; its time limit counts from then. Returns at once."""
        order.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._start(order)

    def news(self, longest_s: float = FOREVER) -> list[tuple[int, News]]:
        """Sleep until something happened (or `longest_s` is over) and tell it; an Outcome is a job's last news."""
        deadline = min([time.monotonic() + longest_s, *(job.next_step_at for job in self.running.values())])
        timeout = None if deadline == FOREVER else max(0.0, deadline - time.monotonic())
        told: list[tuple[int, News]] = []
        for key, _ in self.selector.select(timeout):
            if isinstance(key.data, _Server):
                self._from_server(key.data)
                continue
            job, source = key.data
            if self.running.get(job.order.number) is job:  # it may have ended a moment ago, above
                told += self._heard(job) if source == job.hearing.pipe else self._accounted(job)
        for job in list(self.running.values()):
            if job.next_step_at <= time.monotonic():
                self._next_step(job)
        return told

    def _start(self, order: Order, starts: int = 1) -> None:
        server = self._server(order)
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        job = _Job(order, server, Hearing(read_end), ours, starts)
        self.running[order.number] = job
        for source in job.sources:
            self.selector.register(source, selectors.EVENT_READ, (job, source))
        try:
            server.fork(order, write_end, theirs.fileno())
        finally:
            os.close(write_end)
            theirs.close()
        if server.ready:
            job.next_step_at = time.monotonic() + START_S

    def _server(self, order: Order) -> _Server:
        key = json.dumps([sorted(order.env.items()), order.loaded])
        if key not in self.servers:
            server = _Server.start(order.env, order.loaded, self.log_path)
            self.servers[key] = server
            self.selector.register(server.connection, selectors.EVENT_READ, server)
        return self.servers[key]

    def _heard(self, job: _Job) -> Iterator[tuple[int, News]]:
        """What the worker itself says."""
        events: list[Event] = []
        job.hear(events.append)
        if job.hearing.ended or job.hearing.broken:
            self.selector.unregister(job.hearing.pipe)
        yield from ((job.order.number, event) for event in events)

    def _accounted(self, job: _Job) -> Iterator[tuple[int, News]]:
        """What its supervisor says: that it began; how it ended."""
        account = job.account()
        if account is None:
            return
        if not job.has_begun and self._start_again(job):
            return
        events: list[Event] = []
        job.drain(events.append)
        self._forget(job)
        yield from ((job.order.number, event) for event in events)
        yield job.order.number, job.outcome(account)

    def _start_again(self, job: _Job) -> bool:
        """Whether it was: its server ended, killed by a neighbour say, before it could fork this job."""
        server = job.server
        if not server.has_ended():
            return False
        if not server.ready:
            raise self._unstartable(server)
        self._drop(server)
        if job.starts >= MOST_STARTS:
            return False
        self._forget(job)
        self._start(job.order, job.starts + 1)
        return True

    def _forget(self, job: _Job) -> None:
        for source in job.sources:
            with contextlib.suppress(KeyError):
                self.selector.unregister(source)
        job.close()
        del self.running[job.order.number]

    def _next_step(self, job: _Job) -> None:
        if job.has_begun:
            job.next_step()
        else:
            job.next_step_at = FOREVER
            job.server.process.kill()  # stopped, or worse: what waits for it is started anew when its sockets close

    def _from_server(self, server: _Server) -> None:
        """Its jobs, each with a supervisor, go on without it."""
        if not server.listen():
            waiting = any(job.server is server and not job.has_begun for job in self.running.values())
            if not server.ready and waiting:
                raise self._unstartable(server)
            self._drop(server)
        elif server.ready:
            for job in self.running.values():
                if job.server is server and not job.has_begun and job.next_step_at == FOREVER:
                    job.next_step_at = time.monotonic() + START_S

    def _drop(self, server: _Server) -> None:
        if server in self.servers.values():
            self.selector.unregister(server.connection)
            self.servers = {key: other for key, other in self.servers.items() if other is not server}
            server.close()

    def _unstartable(self, server: _Server) -> NpuComposeError:
        self._drop(server)
        for job in [job for job in self.running.values() if job.server is server]:
            self._forget(job)
        words = " ".join(last_lines(self.log_path, 0)[-1:])
        return NpuComposeError(
            f"the process that forks the jobs could not be started: {words} ({self.log_path} has the rest)."
        )

    def _end_gently(self) -> None:
        for job in list(self.running.values()):
            if job.has_begun:
                job.ask(TERM)
            else:
                self._forget(job)
        self._wait(GRACE_S)
        for job in self.running.values():
            job.end()
        self._wait(LINGER_S)

    def _wait(self, longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while self.running and time.monotonic() < deadline:
            self.news(deadline - time.monotonic())


class _Job:
    """One running job and when something has to be done about it."""

    def __init__(self, order: Order, server: _Server, hearing: Hearing, control: socket.socket, starts: int) -> None:
        self.order, self.server, self.hearing, self.control, self.starts = order, server, hearing, control, starts
        self.has_begun = False
        self.next_step_at = FOREVER
        self.began = time.monotonic()
        self.timed_out = False
        self.told_to_end = False
        self.log_start = order.log_path.stat().st_size if order.log_path.exists() else 0
        self.supervisor: int | None = None
        """A handle of that process."""
        self.pen: str | None = None
        self.text = b""

    @property
    def sources(self) -> tuple[int, int]:
        return self.hearing.pipe, self.control.fileno()

    def hear(self, on_event: Tell) -> None:
        had_word, had_ended = self.hearing.last_word is not None, self.hearing.ended
        self.hearing.read(on_event)
        if self.hearing.broken is not None:
            self.end()
        elif not self.told_to_end and (
            (self.hearing.last_word is not None and not had_word) or (self.hearing.ended and not had_ended)
        ):
            self.next_step_at = time.monotonic() + GRACE_S

    def drain(self, on_event: Tell) -> None:
        """What is still in the pipe of a worker that has ended: never more than a pipe holds."""
        if not self.hearing.ended:
            self.hearing.read(on_event)

    def account(self) -> Account | None:
        """How it ended; None while it runs."""
        try:
            text = self.control.recv(65536)
        except ConnectionResetError:
            text = b""
        *lines, self.text = (self.text + text).split(b"\n")
        for word in map(json.loads, lines):
            if "ended" in word:
                return Account(returncode=word["ended"], memory=word["memory"], cut=word["cut"])
            self._begin(word)
        if text:
            return None
        if self.pen is not None:  # its supervisor was killed
            cgroup.kill(self.pen)
            cgroup.remove(self.pen)
        return Account(returncode=None)

    def _begin(self, word: Mapping[str, Any]) -> None:
        self.has_begun = True
        self.began = time.monotonic()
        self.next_step_at = self.began + self.order.time_limit_s
        self.pen = word["pen"]
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.supervisor = os.pidfd_open(word["supervisor"])

    def next_step(self) -> None:
        """At the time limit its stack, then its end; after a result that is not followed by an end, the end. A
        supervisor that does not even end it was stopped: it is killed, and its worker dies with it."""
        if self.told_to_end:
            self.next_step_at = FOREVER
            self._signal(signal.SIGKILL)
        elif self.timed_out or self.hearing.last_word is not None:
            self.end()
        elif self.hearing.ended:
            self.hearing.broken = "closed the pipe through which it answers npucompose"
            self.end()
        else:
            self.timed_out = True
            self.next_step_at = time.monotonic() + STACK_S
            self.ask(STACK)

    def end(self) -> None:
        self.told_to_end = True
        self.next_step_at = time.monotonic() + LINGER_S
        self.ask(KILL)
        self._signal(signal.SIGCONT)

    def ask(self, order: str) -> None:
        with contextlib.suppress(OSError):  # its end shows when the socket is read
            self.control.sendall(order.encode() + b"\n")

    def _signal(self, number: signal.Signals) -> None:
        if self.supervisor is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.supervisor, number)

    def outcome(self, account: Account) -> Outcome:
        limit = self.order.time_limit_s if self.timed_out and self.hearing.last_word is None else None
        outcome = outcome_of(self.hearing, account, self.order.limits, limit)
        lines = () if outcome.status == "done" else last_lines(self.order.log_path, self.log_start)
        seconds = time.monotonic() - self.began
        return evolve(outcome, last_lines=lines, log_cut_bytes=account.cut, seconds=seconds)

    def close(self) -> None:
        """Hang up: its supervisor ends it, if that is still there."""
        self.hearing.close()
        self.control.close()
        if self.supervisor is not None:
            os.close(self.supervisor)


class _Server:
    """The parent's end of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self.connection = process, connection
        self.ready = False

    @staticmethod
    def start(env: Mapping[str, str], loaded: tuple[str, ...], log_path: Path) -> _Server:
        """Its own session, so that Ctrl-C reaches the parent alone, which ends the jobs in good order."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with log_path.open("ab") as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), json.dumps(loaded)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=worker_environment(env),
            )
        return _Server(process, ours)

    def fork(self, order: Order, pipe: int, control: int) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as text, order.log_path.open("ab") as log:
            told = {"entry": order.entry, "payload": order.payload, "env": dict(order.late_env)}
            json.dump({**told, "limits": asdict(order.limits)}, text, allow_nan=False)
            text.flush()
            text.seek(0)
            # its death shows when the socket of the job is read
            with contextlib.suppress(OSError):
                socket.send_fds(self.connection, [b"\n"], [text.fileno(), pipe, log.fileno(), control])

    def listen(self) -> bool:
        """Whether it is there; the one thing that it says is that it is ready."""
        try:
            text = self.connection.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.ready = self.ready or bool(text)
        return bool(text)

    def has_ended(self) -> bool:
        """A process closes its files a moment before it has ended."""
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        while self.connection.fileno() >= 0 and self.listen():
            pass
        return True

    def close(self) -> int:
        """Hang up: it ends what it forked, and itself. Its exit status."""
        self.connection.close()
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
