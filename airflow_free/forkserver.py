"""A process that has loaded what workers need and forks a supervisor, and that a worker, for each task; and what runs
in the worker: the entry that a task names, its events and one final message. The server runs no job itself and touches
no device.

Its parent (`ForkServer`) sends the files of a task over a socket: its text, the pipe of its messages, its log, the
socket of its supervisor. One thread only: a fork of more would copy held locks. When the other end of the socket is
gone, so is everybody who wanted a result: it waits for its supervisors, who see the same, and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from attrs import asdict, field, frozen

from airflow_free.errors import OrchestratorError, exit_status_of, paragraph
from airflow_free.fresh_python import FIRST
from airflow_free.outcome import GRACE_S, STACK_SIGNAL, Limits
from airflow_free.processes import adopt_orphans, below, child_bell
from airflow_free.supervisor import ENDING_S, supervise

BOOT = FIRST + "import json; sys.path[:] = json.loads(sys.argv[1]); from airflow_free.forkserver import main; main()"
"""Instead of `-m airflow_free.forkserver`: that would need this package on the path before the path could be set."""
FILES_OF_A_TASK = 4
"""Its text, the pipe for its messages, its log, the socket of its supervisor."""


def main() -> None:
    """Called by BOOT: argv holds the path, the socket's number and what to load."""
    leave_a_trace()
    connection = socket.socket(fileno=int(sys.argv[2]))
    connection.set_inheritable(False)
    gc.disable()  # nearly all that is made here stays
    with ending_with(connection):
        for wanted in json.loads(sys.argv[3]):
            found = pkgutil.resolve_name(wanted)
            if ":" in wanted:
                found()  # something that is read once and kept
    gc.collect()
    gc.enable()
    gc.freeze()  # what is loaded stays shared with the workers: the collector would touch, and so copy, every page
    _Server(connection).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what it has loaded needs no taking down, and somebody waits


@contextlib.contextmanager
def ending_with(connection: socket.socket) -> Iterator[None]:
    """Meanwhile the process ends as soon as the other end of the socket is gone, whatever it is doing: what it loads
    takes seconds, and a parent that was interrupted at once does not wait for it."""
    other_end = select.poll()
    other_end.register(connection, 0)

    def look(*signalled: object) -> None:
        if other_end.poll(0):
            os._exit(0)

    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    before = signal.signal(signal.SIGIO, look)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        look()  # it may have gone before
        yield
    finally:
        fcntl.fcntl(connection, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)


@frozen(kw_only=True)
class WorkerTask:
    """One job: call `entry` ("module:function") with `payload` and a `Notify`."""

    number: int = 0
    entry: str
    payload: Mapping[str, Any]
    time_limit_s: float
    log_path: Path
    limits: Limits = field(factory=Limits)
    environment: Mapping[str, str] | None = None
    """All variables that the worker starts with, None for those of this process."""
    loaded: tuple[str, ...] = ()
    """Modules to have loaded before the fork; `module:function` is called too, for what it reads once and keeps."""
    late_env: Mapping[str, str] = field(factory=dict[str, str])
    """Variables of this job alone, set after the fork: which device it may see."""
    program: str = "airflow_free"
    """Whose workers these are: the name in messages and of control groups."""


class ForkServer:
    """The parent's end: starts the process and sends it tasks."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self.connection = process, connection
        self.ready = False

    @staticmethod
    def start(environment: Mapping[str, str] | None, loaded: tuple[str, ...], log_path: Path) -> ForkServer:
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
                env=environment,
            )
        return ForkServer(process, ours)

    def fork(self, task: WorkerTask, pipe: int, control: int) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as text, task.log_path.open("ab") as log:
            what = {"entry": task.entry, "payload": task.payload, "env": dict(task.late_env), "program": task.program}
            json.dump({**what, "limits": asdict(task.limits)}, text, allow_nan=False)
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


class _Server:
    """The process itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.supervisors: set[int] = set()
        self.bell_out, self.bell_in = child_bell()
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
        """Take a task; False when nobody is there any more. The files of each come with a byte of its own."""
        try:
            text, files, _, _ = socket.recv_fds(self.connection, 1, FILES_OF_A_TASK)
        except OSError:
            return False
        if len(files) == FILES_OF_A_TASK:
            self._fork(*files)
        return bool(text)

    def _fork(self, text_file: int, pipe: int, log: int, control: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = None
        try:
            pid = os.fork()
        except OSError:
            traceback.print_exc()  # too many processes: the job's socket closes without a word of a beginning
        if pid == 0:
            self._be_a_supervisor(text_file, pipe, log, control)
        for file in (text_file, pipe, log, control):
            os.close(file)
        if pid is not None:
            self.supervisors.add(pid)

    def _be_a_supervisor(self, text_file: int, pipe: int, log: int, control: int) -> NoReturn:
        """Never returns into the server's loop, whatever happens."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for handle in (self.bell_out, self.bell_in):
                os.close(handle)
            self.connection.close()
            with open(text_file, encoding="utf-8") as text:
                task = json.load(text)
            limits = Limits(**task["limits"])
            connection = socket.socket(fileno=control)
            supervise(lambda: run_and_exit(task, pipe), pipe, connection, log, limits, task["program"])
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


def handle(task: dict[str, Any], pipe: int) -> None:
    """Call the entry of a task and write what came of it into `pipe`, which no child of this process inherits."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.set_inheritable(pipe, False)
    send = _sender(pipe)
    sys.argv[:] = [task["entry"]]
    try:
        entry = pkgutil.resolve_name(task["entry"])
        result = entry(task["payload"], lambda event: send({"word": "event", "event": event.as_dict()}))
        send({"word": "result", "result": result})
    except Exception as error:  # noqa: BLE001  whatever it is, it travels to the parent, and its traceback to the log
        traceback.print_exc()
        send({"word": "error", **_error_words(error)})


def run_and_exit(task: dict[str, Any], pipe: int) -> NoReturn:
    """The whole life of a worker: never returns into the process that it was forked from."""
    status = 1
    try:
        os.environ.update(task["env"])
        handle(task, pipe)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def leave_a_trace() -> None:
    """Lines reach the log when they are printed; a fatal signal, and STACK_SIGNAL, write the Python stacks there."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: object) -> NoReturn:
    """SIGTERM runs the `finally` clauses on its way out."""
    sys.exit(128 + number)


def _sender(pipe: int) -> Callable[[dict[str, Any]], None]:
    """Writes whole lines, whichever thread sends; the text is made first, so that a bad value sends nothing."""
    lock = threading.Lock()

    def send(word: dict[str, Any]) -> None:
        data = memoryview(json.dumps(word, allow_nan=False).encode() + b"\n")
        with lock:
            while data:
                data = data[os.write(pipe, data) :]

    return send


def _error_words(error: Exception) -> dict[str, Any]:
    status = exit_status_of(error)
    for_people = status is not None
    return {
        "type": type(error).__name__,
        "message": paragraph(error),
        "exit_status": status if for_people else OrchestratorError.exit_status,
        "problems": [str(one) for one in getattr(error, "problems", ())] if for_people else [],
        "facts": dict(getattr(error, "facts", {})) if for_people else {},
    }
