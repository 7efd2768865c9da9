"""A process that has torch loaded and forks a supervisor, and that a worker, for each order. Runs no job itself and
touches no device.

Started by `airflow_free.pool`, which sends the files of an order over a socket: its text, the pipe of its words, its
log, the socket of its supervisor. One thread only: a fork of more would copy held locks. When the other end of the
socket is gone, so is everybody who wanted a result: it waits for its supervisors, who see the same, and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import operator
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

from airflow_free.inside import leave_a_trace, obey
from airflow_free.outcome import Limits
from airflow_free.processes import below
from airflow_free.supervisor import ENDING_S, adopt_orphans, supervise

FILES_OF_AN_ORDER = 4
"""Its text, the pipe for its words, its log, the socket of its supervisor."""


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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what it has loaded needs no taking down, and somebody waits


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.supervisors: set[int] = set()
        self.bell_out, self.bell_in = os.pipe()
        for end in (self.bell_out, self.bell_in):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.bell_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the default would ring no bell
        adopt_orphans()

    def serve(self) -> None:
        self.connection.sendall(b"ready\n")
        selector = selectors.PollSelector()
        selector.register(self.connection, selectors.EVENT_READ)
        selector.register(self.bell_out, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self.bell_out in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.bell_out, 4096)
                    self._reap()
                if self.connection.fileno() in ready and not self._listen():
                    return
        finally:
            self._wait_for_all()

    def _listen(self) -> bool:
        """Follow an order; False when nobody is there any more. The files of each come with a byte of its own."""
        try:
            text, files, _, _ = socket.recv_fds(self.connection, 1, FILES_OF_AN_ORDER)
        except OSError:
            return False
        if len(files) == FILES_OF_AN_ORDER:
            self._fork(*files)
        return bool(text)

    def _fork(self, order: int, pipe: int, log: int, control: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = None
        try:
            pid = os.fork()
        except OSError:
            traceback.print_exc()  # too many processes: the job's socket closes without a word of a beginning
        if pid == 0:
            self._be_a_supervisor(order, pipe, log, control)
        for file in (order, pipe, log, control):
            os.close(file)
        if pid is not None:
            self.supervisors.add(pid)

    def _be_a_supervisor(self, order: int, pipe: int, log: int, control: int) -> NoReturn:
        """Never returns into the server's loop, whatever happens."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for handle in (self.bell_out, self.bell_in):
                os.close(handle)
            self.connection.close()
            with open(order, encoding="utf-8") as text:
                what = json.load(text)
            limits = Limits(**what["limits"])
            supervise(lambda: _be_a_worker(what, pipe), pipe, socket.socket(fileno=control), log, limits)
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """When a supervisor was killed, what it watched comes here, and ends."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                break
            os.waitpid(ended.si_pid, 0)
            self.supervisors.discard(ended.si_pid)
        strays = [one for one in below(os.getpid()) if one.parent == os.getpid() and one.pid not in self.supervisors]
        for stray in strays:
            for process in (stray, *below(stray.pid)):
                process.kill(with_group=process.session != os.getsid(0))

    def _wait_for_all(self) -> None:
        deadline = time.monotonic() + ENDING_S
        while time.monotonic() < deadline:
            self._reap()
            if not below(os.getpid()):
                return
            time.sleep(0.005)


def _be_a_worker(what: dict[str, Any], pipe: int) -> NoReturn:
    status = 1
    try:
        os.environ.update(what["env"])
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
