"""A pool whose fork server is the test: what a job says is written by hand, and the clock stands still."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_free import pool as pools
from airflow_free.forkserver import ForkServer, WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.pool import Pool

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
