"""Jobs in forked processes: ordered, watched in one loop that sleeps, ended with all that they started. Knows no stage.

    with Pool(folder) as pool:
        pool.start(WorkerTask(number=0, entry="module:function", payload={}, time_limit_s=60, log_path=log))
        while pool.running:
            for number, event in pool.events():        # Event or Outcome
                …

Tasks with another environment, or other modules to have loaded, get a fork server of their own; a single task is a
pool of one (`run_in_worker`). A job is not trusted: whatever it writes, closes, stops or kills, it is one job that ends
badly.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from airflow_free import processes
from airflow_free.errors import OrchestratorError
from airflow_free.forkserver import ForkServer, WorkerTask
from airflow_free.outcome import GRACE_S, STACK_S, ExitReport, Outcome, WorkerChannel, last_lines, outcome_of
from airflow_free.stage import Event, Notify, ignore
from airflow_free.supervisor import ENDING_S, KILL, STACK, TERM

FOREVER = float("inf")
MOST_STARTS = 3
START_S = 60.0
"""How long a fork server that is ready may take to fork; one that was stopped takes forever."""
LINGER_S = ENDING_S + GRACE_S
"""How long a supervisor that was asked to end its job may take before it is killed itself."""

PoolEvent = Event | Outcome


class Pool:
    """A parent of jobs. Not for several threads. `log_path` gets what the fork servers themselves print."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self.running: dict[int, _Job] = {}
        self.selector = selectors.DefaultSelector()
        self.servers: dict[str, ForkServer] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        """Whatever still runs is asked to end, and killed after GRACE_S."""
        try:
            self._end_gently()
        finally:
            for job in self.running.values():
                job.close()
            for server in self.servers.values():
                server.close()
            self.selector.close()

    def start(self, task: WorkerTask) -> None:
        """Have the job forked; its time limit counts from then. Returns at once."""
        task.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._start(task)

    def events(self, longest_s: float = FOREVER) -> list[tuple[int, PoolEvent]]:
        """Sleep until something happened (or `longest_s` is over) and return it; a job's last event is an Outcome."""
        deadline = min([time.monotonic() + longest_s, *(job.next_step_at for job in self.running.values())])
        timeout = None if deadline == FOREVER else max(0.0, deadline - time.monotonic())
        events: list[tuple[int, PoolEvent]] = []
        for key, _ in self.selector.select(timeout):
            if isinstance(key.data, ForkServer):
                self._from_server(key.data)
                continue
            job, source = key.data
            if self.running.get(job.task.number) is job:  # it may have ended a moment ago, above
                events += self._from_worker(job) if source == job.channel.pipe else self._from_supervisor(job)
        for job in list(self.running.values()):
            if job.next_step_at <= time.monotonic():
                self._next_step(job)
        return events

    def _start(self, task: WorkerTask, starts: int = 1) -> None:
        server = self._server(task)
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        job = _Job(task, server, WorkerChannel(read_end, task.program), ours, starts)
        self.running[task.number] = job
        for source in job.sources:
            self.selector.register(source, selectors.EVENT_READ, (job, source))
        try:
            server.fork(task, write_end, theirs.fileno())
        finally:
            os.close(write_end)
            theirs.close()
        if server.ready:
            job.next_step_at = time.monotonic() + START_S

    def _server(self, task: WorkerTask) -> ForkServer:
        key = json.dumps([sorted((task.environment or {}).items()), task.loaded])
        if key not in self.servers:
            server = ForkServer.start(task.environment, task.loaded, self.log_path)
            self.servers[key] = server
            self.selector.register(server.connection, selectors.EVENT_READ, server)
        return self.servers[key]

    def _from_worker(self, job: _Job) -> Iterator[tuple[int, PoolEvent]]:
        """What the worker itself says."""
        events: list[Event] = []
        job.read(events.append)
        if job.channel.ended or job.channel.broken:
            self.selector.unregister(job.channel.pipe)
        yield from ((job.task.number, event) for event in events)

    def _from_supervisor(self, job: _Job) -> Iterator[tuple[int, PoolEvent]]:
        """What its supervisor says: that it began; how it ended."""
        report = job.exit_report()
        if report is None:
            return
        if not job.has_begun and self._start_again(job):
            return
        events: list[Event] = []
        job.drain(events.append)
        self._forget(job)
        yield from ((job.task.number, event) for event in events)
        yield job.task.number, job.outcome(report)

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
        self._start(job.task, job.starts + 1)
        return True

    def _forget(self, job: _Job) -> None:
        for source in job.sources:
            with contextlib.suppress(KeyError):
                self.selector.unregister(source)
        job.close()
        del self.running[job.task.number]

    def _next_step(self, job: _Job) -> None:
        if job.has_begun:
            job.next_step()
        else:
            job.next_step_at = FOREVER
            job.server.process.kill()  # stopped, or worse: what waits for it is started anew when its sockets close

    def _from_server(self, server: ForkServer) -> None:
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

    def _drop(self, server: ForkServer) -> None:
        if server in self.servers.values():
            self.selector.unregister(server.connection)
            self.servers = {key: other for key, other in self.servers.items() if other is not server}
            server.close()

    def _unstartable(self, server: ForkServer) -> OrchestratorError:
        self._drop(server)
        for job in [job for job in self.running.values() if job.server is server]:
            self._forget(job)
        words = " ".join(last_lines(self.log_path, 0)[-1:])
        return OrchestratorError(
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
            self.events(deadline - time.monotonic())


class _Job:
    """One running job and when something has to be done about it."""

    def __init__(
        self, task: WorkerTask, server: ForkServer, channel: WorkerChannel, control: socket.socket, starts: int
    ) -> None:
        self.task, self.server, self.channel, self.control, self.starts = task, server, channel, control, starts
        self.has_begun = False
        self.next_step_at = FOREVER
        self.began = time.monotonic()
        self.timed_out = False
        self.asked_to_end = False
        self.log_start = task.log_path.stat().st_size if task.log_path.exists() else 0
        self.supervisor: int | None = None
        """A handle of that process."""
        self.cgroup: str | None = None
        self.text = b""

    @property
    def sources(self) -> tuple[int, int]:
        return self.channel.pipe, self.control.fileno()

    def read(self, on_event: Notify) -> None:
        had_final, had_ended = self.channel.final is not None, self.channel.ended
        self.channel.read(on_event)
        if self.channel.broken is not None:
            self.end()
        elif not self.asked_to_end and (
            (self.channel.final is not None and not had_final) or (self.channel.ended and not had_ended)
        ):
            self.next_step_at = time.monotonic() + GRACE_S

    def drain(self, on_event: Notify) -> None:
        """What is still in the pipe of a worker that has ended: never more than a pipe holds."""
        if not self.channel.ended:
            self.channel.read(on_event)

    def exit_report(self) -> ExitReport | None:
        """How it ended; None while it runs."""
        try:
            text = self.control.recv(65536)
        except ConnectionResetError:
            text = b""
        *lines, self.text = (self.text + text).split(b"\n")
        for word in map(json.loads, lines):
            if "ended" in word:
                return ExitReport(returncode=word["ended"], memory=word["memory"], cut=word["cut"])
            self._begin(word)
        if text:
            return None
        if self.cgroup is not None:  # its supervisor was killed
            processes.kill_group(self.cgroup)
            processes.remove_group(self.cgroup)
        return ExitReport(returncode=None)

    def _begin(self, word: Mapping[str, Any]) -> None:
        self.has_begun = True
        self.began = time.monotonic()
        if not (self.asked_to_end or self.channel.ended or self.channel.final is not None):  # its pipe was read first
            self.next_step_at = self.began + self.task.time_limit_s
        self.cgroup = word["cgroup"]
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.supervisor = os.pidfd_open(word["supervisor"])

    def next_step(self) -> None:
        """At the time limit its stack, then its end; after a result that is not followed by an end, the end. A
        supervisor that does not even end it was stopped: it is killed, and its worker dies with it."""
        if self.asked_to_end:
            self.next_step_at = FOREVER
            self._signal(signal.SIGKILL)
        elif self.timed_out or self.channel.final is not None:
            self.end()
        elif self.channel.ended:
            self.channel.broken = f"closed the pipe through which it answers {self.task.program}"
            self.end()
        else:
            self.timed_out = True
            self.next_step_at = time.monotonic() + STACK_S
            self.ask(STACK)

    def end(self) -> None:
        self.asked_to_end = True
        self.next_step_at = time.monotonic() + LINGER_S
        self.ask(KILL)
        self._signal(signal.SIGCONT)

    def ask(self, command: str) -> None:
        with contextlib.suppress(OSError):  # its end shows when the socket is read
            self.control.sendall(command.encode() + b"\n")

    def _signal(self, number: signal.Signals) -> None:
        if self.supervisor is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.supervisor, number)

    def outcome(self, report: ExitReport) -> Outcome:
        limit = self.task.time_limit_s if self.timed_out and self.channel.final is None else None
        outcome = outcome_of(self.channel, report, self.task.limits, limit)
        lines = () if outcome.status == "done" else last_lines(self.task.log_path, self.log_start)
        seconds = time.monotonic() - self.began
        return evolve(outcome, last_lines=lines, log_cut_bytes=report.cut, seconds=seconds)

    def close(self) -> None:
        """Hang up: its supervisor ends it, if that is still there."""
        self.channel.close()
        self.control.close()
        if self.supervisor is not None:
            os.close(self.supervisor)


def run_in_worker(task: WorkerTask, on_event: Notify = ignore) -> Outcome:
    """Run one task in a fresh process and wait for it.

    The worker has this process's sys.path and working folder; what it prints is appended to the task's log, as far as
    its limits allow. On timeout, on Ctrl-C, at its end and at the end of this process it is ended with everything that
    it started, whatever session that moved to. Blocks in select: no processor time is taken from what is measured.
    """
    with Pool(task.log_path) as pool:
        pool.start(task)
        while True:
            for _, event in pool.events():
                if isinstance(event, Outcome):
                    return event
                on_event(event)
