"""Jobs in forked processes: ordered, watched in one loop that sleeps, ended with their children. Knows no stage.

    with Pool(folder) as pool:
        pool.start(Order(number=0, entry="module:function", payload={}, time_limit_s=60, log_path=log))
        while pool.running:
            for number, news in pool.news():        # Event or Outcome
                …

Orders with other needs before `import torch` get a fork server of their own.
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

from attrs import evolve, field, frozen

from airflow_free.outcome import GRACE_S, STACK_S, STACK_SIGNAL, Hearing, Outcome, last_lines, outcome_of
from airflow_free.stage import Event
from npucompose.errors import NpuComposeError

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from airflow_free.forkserver import main; main()"
FOREVER = float("inf")

News = Event | Outcome


@frozen(kw_only=True)
class Order:
    """One job: call `entry` ("module:function") with `payload`."""

    number: int
    entry: str
    payload: Mapping[str, Any]
    time_limit_s: float
    log_path: Path
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
            for server in self.servers.values():
                server.close()
            for job in self.running.values():
                job.hearing.close()
            self.selector.close()

    def start(self, order: Order) -> None:
        """Have the job forked; its time limit counts from then. Returns at once."""
        server = self._server(order)
        order.log_path.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        job = _Job(order, server, Hearing(read_end))
        self.running[order.number] = job
        self.selector.register(read_end, selectors.EVENT_READ, job)
        try:
            server.fork(order, write_end)
        finally:
            os.close(write_end)

    def news(self, longest_s: float = FOREVER) -> list[tuple[int, News]]:
        """Sleep until something happened (or `longest_s` is over) and tell it; an Outcome is a job's last news."""
        deadline = min([time.monotonic() + longest_s, *(job.next_step_at for job in self.running.values())])
        timeout = None if deadline == FOREVER else max(0.0, deadline - time.monotonic())
        told: list[tuple[int, News]] = []
        for key, _ in self.selector.select(timeout):
            if isinstance(key.data, _Server):
                told += self._from_server(key.data)
            elif self.running.get(key.data.order.number) is key.data:  # it may have ended a moment ago, above
                told += self._from_job(key.data)
        for job in self.running.values():
            if job.next_step_at <= time.monotonic():
                job.next_step()
        return told

    def _server(self, order: Order) -> _Server:
        key = json.dumps([sorted(order.env.items()), order.loaded])
        if key not in self.servers:
            server = _Server.start(order.env, order.loaded, self.log_path)
            self.servers[key] = server
            self.selector.register(server.connection, selectors.EVENT_READ, server)
        return self.servers[key]

    def _from_job(self, job: _Job) -> Iterator[tuple[int, News]]:
        events: list[Event] = []
        job.hear(events.append)
        if job.hearing.ended:
            self.selector.unregister(job.hearing.pipe)
        yield from ((job.order.number, event) for event in events)

    def _from_server(self, server: _Server) -> Iterator[tuple[int, News]]:
        for word in server.words():
            job = self.running.get(word["job"]) if "job" in word else None
            if word["word"] == "ready":
                server.ready = True
            elif word["word"] == "forked" and job is not None:
                job.was_forked()
            elif word["word"] == "ended" and job is not None:
                yield from self._ended(job, word["returncode"])
            elif word["word"] == "gone":
                yield from self._gone(server)

    def _ended(self, job: _Job, returncode: int) -> Iterator[tuple[int, News]]:
        """The last of what it said, then its outcome."""
        if not job.hearing.ended:
            yield from self._from_job(job)
        self._forget(job)
        yield job.order.number, job.outcome(returncode)

    def _forget(self, job: _Job) -> None:
        if not job.hearing.ended:
            self.selector.unregister(job.hearing.pipe)
        job.hearing.close()
        del self.running[job.order.number]

    def _gone(self, server: _Server) -> Iterator[tuple[int, News]]:
        """A fork server died; with it, by the kernel's hand, its jobs."""
        self.selector.unregister(server.connection)
        returncode = server.close()
        self.servers = {key: other for key, other in self.servers.items() if other is not server}
        jobs = [job for job in self.running.values() if job.server is server]
        if not server.ready:
            for job in jobs:
                self._forget(job)
            raise NpuComposeError(
                f"the process that forks the jobs could not be started: {' '.join(last_lines(self.log_path, 0)[-1:])} "
                f"({self.log_path} has the rest)."
            )
        for job in jobs:
            for number, news in self._ended(job, -signal.SIGKILL):
                words = f"the process that forks the jobs ended (exit status {returncode}), and this job with it."
                yield number, evolve(news, error=words) if isinstance(news, Outcome) else news

    def _end_gently(self) -> None:
        for job in self.running.values():
            job.server.signal(job.order.number, signal.SIGTERM, group=True)
        deadline = time.monotonic() + GRACE_S
        while self.running and time.monotonic() < deadline:
            self.news(deadline - time.monotonic())


class _Job:
    """One running job and when something has to be done about it."""

    def __init__(self, order: Order, server: _Server, hearing: Hearing) -> None:
        self.order, self.server, self.hearing = order, server, hearing
        self.next_step_at = FOREVER
        self.began = time.monotonic()
        self.timed_out = False
        self.log_start = order.log_path.stat().st_size if order.log_path.exists() else 0

    def was_forked(self) -> None:
        self.began = time.monotonic()
        self.next_step_at = self.began + self.order.time_limit_s

    def hear(self, on_event: Any) -> None:
        had_word = self.hearing.last_word is not None
        self.hearing.read(on_event)
        if self.hearing.last_word is not None and not had_word:
            self.next_step_at = time.monotonic() + GRACE_S

    def next_step(self) -> None:
        """At the time limit its stack, then its end; after a result that is not followed by an end, the end."""
        number = self.order.number
        if self.hearing.last_word is None and not self.timed_out:
            self.timed_out = True
            self.next_step_at = time.monotonic() + STACK_S
            self.server.signal(number, STACK_SIGNAL, group=False)
            return
        self.next_step_at = FOREVER
        self.server.signal(number, signal.SIGKILL, group=True)

    def outcome(self, returncode: int) -> Outcome:
        limit = self.order.time_limit_s if self.timed_out and self.hearing.last_word is None else None
        outcome = outcome_of(self.hearing.last_word, returncode, limit)
        lines = () if outcome.status == "done" else last_lines(self.order.log_path, self.log_start)
        return evolve(outcome, last_lines=lines, seconds=time.monotonic() - self.began)


class _Server:
    """The parent's end of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self.connection = process, connection
        self.ready = False
        self.buffer = b""

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
                env={**os.environ, **env},
            )
        return _Server(process, ours)

    def fork(self, order: Order, pipe: int) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as text, order.log_path.open("ab") as log:
            json.dump({"entry": order.entry, "payload": order.payload}, text, allow_nan=False)
            text.flush()
            text.seek(0)
            line = json.dumps({"do": "fork", "job": order.number, "env": dict(order.late_env)}).encode() + b"\n"
            # its death shows when the socket is read
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(self.connection, [line], [text.fileno(), pipe, log.fileno()])

    def signal(self, job: int, number: signal.Signals, *, group: bool) -> None:
        line = json.dumps({"do": "signal", "job": job, "signal": number.name, "group": group}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            self.connection.sendall(line)

    def words(self) -> list[dict[str, Any]]:
        """What it said; `gone` last when it has ended."""
        try:
            text = self.connection.recv(65536)
        except ConnectionResetError:
            text = b""
        *lines, self.buffer = (self.buffer + text).split(b"\n")
        words: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return words if text else [*words, {"word": "gone"}]

    def close(self) -> int:
        """Hang up: it kills what it forked and ends. Its exit status."""
        self.connection.close()
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
