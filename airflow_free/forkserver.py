"""A process that has torch loaded and forks one worker for each order. Runs no job itself and touches no device.

Started by `airflow_free.pool`, with which it talks in lines of JSON over a socket; the files of an order (its text, the
pipe of its words, its log) come along as file descriptors. One thread only: a fork of more would copy held locks. When
the other end of the socket is gone, so is everybody who wanted a result: it kills what it forked and ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import operator
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from airflow_free.inside import die_with, leave_a_trace, obey

FILES_OF_AN_ORDER = 3
"""Its text, the pipe for its words, its log."""


def main() -> None:
    """Called by the boot line of `airflow_free.pool`: argv holds the path, the socket's number and what to load."""
    leave_a_trace()
    connection = socket.socket(fileno=int(sys.argv[2]))
    connection.set_inheritable(False)
    for wanted in json.loads(sys.argv[3]):
        module, _, function = wanted.partition(":")
        found = importlib.import_module(module)
        if function:
            operator.attrgetter(function)(found)()  # something that is read once and kept
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the workers: the collector would touch, and so copy, every page
    _Server(connection).serve()


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.workers: dict[int, int] = {}
        """{pid: number of the job}; a worker stays here until it is reaped, so that its pid is nobody else's."""
        self.buffer = b""
        self.files: list[int] = []
        self.bell_out, self.bell_in = os.pipe()
        for end in (self.bell_out, self.bell_in):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.bell_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the default would ring no bell

    def serve(self) -> None:
        self._say({"word": "ready", "pid": os.getpid()})
        selector = selectors.DefaultSelector()
        selector.register(self.connection, selectors.EVENT_READ)
        selector.register(self.bell_out, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self.bell_out in ready:
                    os.read(self.bell_out, 4096)
                    self._reap()
                if self.connection.fileno() in ready and not self._listen():
                    return
        except BrokenPipeError:
            return
        finally:
            for pid in self.workers:
                _signal_group(pid, signal.SIGKILL)

    def _listen(self) -> bool:
        """Follow what was told; False when nobody is there any more."""
        text, files, _, _ = socket.recv_fds(self.connection, 65536, 16)
        if not text:
            return False
        self.files += files
        *lines, self.buffer = (self.buffer + text).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if told["do"] == "fork":
                own, self.files = self.files[:FILES_OF_AN_ORDER], self.files[FILES_OF_AN_ORDER:]
                self._fork(told, own)
            else:
                self._signal(told)
        return True

    def _fork(self, told: dict[str, Any], files: list[int]) -> None:
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._be_a_worker(told, files, server)
        for file in files:
            os.close(file)
        self.workers[pid] = told["job"]
        self._say({"word": "forked", "job": told["job"], "pid": pid})

    def _be_a_worker(self, told: dict[str, Any], files: list[int], server: int) -> NoReturn:
        """Never returns into the server's loop, whatever happens."""
        status = 1
        try:
            order, pipe, log = files
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for handle in (self.bell_out, self.bell_in):
                os.close(handle)
            self.connection.close()
            for number in (1, 2):
                os.dup2(log, number)
            os.close(log)
            die_with(server)
            os.environ.update(told["env"])
            with open(order, encoding="utf-8") as text:
                what = json.load(text)
            obey(what, pipe)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _signal(self, told: dict[str, Any]) -> None:
        number = signal.Signals[told["signal"]]
        for pid, job in self.workers.items():
            if job == told["job"] and told["group"]:
                _signal_group(pid, number)
            elif job == told["job"]:
                os.kill(pid, number)

    def _reap(self) -> None:
        """What a worker that ended leaves behind in its group ends too; only then is its pid given back."""
        for pid in list(self.workers):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            job = self.workers.pop(pid)
            self._say({"word": "ended", "job": job, "returncode": os.waitstatus_to_exitcode(status)})

    def _say(self, word: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(word).encode() + b"\n")


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        # not yet leader of its group, or only the dead leader is left in it
        if number is not signal.SIGKILL:
            return
        os.kill(pid, number)
