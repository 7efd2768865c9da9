"""One job in one process of its own: started, watched without spinning, ended with its children. Knows no stage.

The parent side is `run_in_worker`. The worker side is `main`: it imports "module:function", calls
`function(payload, tell)` and sends what it returns. Payload, events and result are lines of JSON; nothing is pickled,
so a worker that dies in the middle of a word leaves nothing half understood.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

from attrs import evolve, frozen

from airflow_free.stage import Event, Tell, silent
from airflow_free.words import paragraph
from npucompose.errors import ConfigError, NpuComposeError

OutcomeStatus = Literal["done", "failed", "crashed", "timeout", "config_error"]

LAST_LINES = 20
LAST_BYTES = 16_384
GRACE_S = 3.0
"""How long a worker that was told to end, or that has sent its result, may take before it is killed."""
STACK_S = 0.5
"""How long a worker that hangs gets to write its stack to the log."""
STACK_SIGNAL = signal.SIGUSR1
PR_SET_PDEATHSIG = 1

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from airflow_free.worker import main; main()"
"""Instead of `-m airflow_free.worker`: that would need this package on the path before the path could be set."""


@frozen(kw_only=True)
class Outcome:
    """How a worker ended. `result` is there exactly when the status is `done`, `error` (a paragraph) when it is not."""

    status: OutcomeStatus
    result: dict[str, Any] | None = None
    error: str | None = None
    error_type: str | None = None
    problems: tuple[str, ...] = ()
    exit_status: int = 0
    """What a command line that ran nothing else should end with."""
    exit_signal: str | None = None
    last_lines: tuple[str, ...] = ()
    seconds: float = 0.0


def run_in_worker(
    entry: str,
    payload: Mapping[str, Any],
    *,
    time_limit_s: float,
    log_path: Path,
    on_event: Tell = silent,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Call `entry` ("module:function") with `payload` in a new process and wait for it.

    The worker has this process's sys.path, working folder and environment (and `env`); what it prints is appended to
    `log_path`. It leads a process group: on timeout, on Ctrl-C and at its end the whole group is killed, and on Linux
    it dies with the thread that called this. Blocks in select: no processor time is taken from what is measured.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log_path.open("ab") as log:
        log_start = log.tell()
        watched = _Watched.start(entry, payload, log, env)
    try:
        timed_out = not watched.wait(began + time_limit_s, on_event)
        if timed_out:
            watched.show_stack(on_event)
    except BaseException:
        watched.end_gently()
        raise
    finally:
        returncode = watched.kill_and_reap()
        watched.close()
    outcome = _outcome(watched.last_word, returncode, time_limit_s if timed_out else None)
    lines = () if outcome.status == "done" else _last_lines(log_path, log_start)
    return evolve(outcome, last_lines=lines, seconds=time.monotonic() - began)


class _Watched:
    """A running worker, the pipe it talks through, and a thread that sleeps until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        self.process = process
        self.pipe = pipe
        self.buffer = b""
        self.last_word: dict[str, Any] | None = None
        self.bell_out, self.bell_in = os.pipe()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.pipe, selectors.EVENT_READ)
        self.selector.register(self.bell_out, selectors.EVENT_READ)
        self.watcher = threading.Thread(target=self._ring_at_exit, name="worker-watcher", daemon=True)
        self.watcher.start()

    @staticmethod
    def start(entry: str, payload: Mapping[str, Any], log: IO[bytes], env: Mapping[str, str] | None) -> _Watched:
        order = json.dumps({"entry": entry, "payload": payload, "parent": os.getpid()}, allow_nan=False)
        read_end, write_end = os.pipe()
        try:
            with tempfile.TemporaryFile() as order_file:
                order_file.write(order.encode())
                order_file.seek(0)
                process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, json.dumps(sys.path), str(write_end)],
                    stdin=order_file,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_end,),
                    start_new_session=True,
                    env={**os.environ, **(env or {})},
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        return _Watched(process, read_end)

    def _ring_at_exit(self) -> None:
        """Sleep until the worker has ended, then wake the select.

        # Note [The worker is not reaped by the watcher]
        The end of the pipe is no sign: processes that the worker forked hold it open. And as long as the dead leader
        is not reaped its number cannot be given to a new process, so its group can still be killed safely.
        """
        try:
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            else:
                self.process.wait()
        except ChildProcessError:
            pass  # somebody else reaped it (SIGCHLD ignored by the host program): it has ended, which is the news
        os.write(self.bell_in, b"!")

    def wait(self, deadline: float, on_event: Tell) -> bool:
        """Pass on events until the worker has ended, or GRACE_S after its result; False at the deadline."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return self.last_word is not None
            ready = {key.fd for key, _ in self.selector.select(left)}
            if self.pipe in ready:
                had_word = self.last_word is not None
                self._read(on_event)
                if self.last_word is not None and not had_word:
                    deadline = time.monotonic() + GRACE_S
            if self.bell_out in ready:
                self._read(on_event)
                return True

    def _read(self, on_event: Tell) -> None:
        """Everything that is in the pipe now; a line without its end waits for the rest."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.pipe, 65536):
                self.buffer += chunk
            if self.pipe in self.selector.get_map():
                self.selector.unregister(self.pipe)
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            word: dict[str, Any] = json.loads(line)
            if word["word"] == "event":
                on_event(Event.of_dict(word["event"]))
            else:
                self.last_word = word

    def show_stack(self, on_event: Tell) -> None:
        """Let a worker that hangs write its Python stacks to the log (faulthandler in `main`)."""
        self.process.send_signal(STACK_SIGNAL)
        self.wait(time.monotonic() + STACK_S, on_event)

    def end_gently(self) -> None:
        """SIGTERM to the group and GRACE_S to follow it; `kill_and_reap` does the rest."""
        self._signal_group(signal.SIGTERM)
        self.wait(time.monotonic() + GRACE_S, silent)

    def kill_and_reap(self) -> int:
        """Kill what is left of the group; the worker's return code, negative for a signal that ended it."""
        self._signal_group(signal.SIGKILL)
        self.watcher.join()
        return self.process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        # PermissionError: macOS says so of a group in which only the dead leader is left
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        self.selector.close()
        for handle in (self.pipe, self.bell_out, self.bell_in):
            os.close(handle)


def _outcome(word: dict[str, Any] | None, returncode: int, time_limit_s: float | None) -> Outcome:
    if word is not None and word["word"] == "result":
        return Outcome(status="done", result=word["result"])
    if word is not None:
        return Outcome(
            status="config_error" if word["exit_status"] == ConfigError.exit_status else "failed",
            error=word["message"],
            error_type=word["type"],
            problems=tuple(word["problems"]),
            exit_status=word["exit_status"],
        )
    exit_signal = _signal_name(-returncode) if returncode < 0 else None
    if time_limit_s is not None:
        words = f"the worker was killed at its time limit of {time_limit_s:g} s."
        return Outcome(status="timeout", error=words, exit_status=3, exit_signal=exit_signal)
    if exit_signal is None:
        words = f"the worker ended with exit status {returncode} and sent no result."
    else:
        words = f"the worker died of {exit_signal} and sent no result."
        if exit_signal == "SIGKILL":
            words += " Somebody killed it, or the system did because memory ran out."
    return Outcome(status="crashed", error=words, exit_status=3, exit_signal=exit_signal)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_lines(log_path: Path, start: int) -> tuple[str, ...]:
    """The end of what this worker wrote."""
    with log_path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - LAST_BYTES))
        text = log.read().decode(errors="replace")
    return tuple(text.splitlines()[-LAST_LINES:])


# ---------------------------------------------------------------------------------------------- in the worker process


def main() -> None:
    """The worker: reads its order from stdin, calls the entry, sends one last word. Called by BOOT."""
    _leave_a_trace()
    order = json.load(sys.stdin)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    _die_with(order["parent"])
    pipe = int(sys.argv[2])
    os.set_inheritable(pipe, False)
    send = _sender(pipe)
    sys.argv[:] = [order["entry"]]
    try:
        entry = _find(order["entry"])
        result = entry(order["payload"], lambda event: send({"word": "event", "event": event.as_dict()}))
        send({"word": "result", "result": result})
    except Exception as error:  # noqa: BLE001  whatever it is, it travels to the parent, and its traceback to the log
        traceback.print_exc()
        send({"word": "error", **_error_words(error)})
    sys.stdout.flush()
    sys.stderr.flush()


def _leave_a_trace() -> None:
    """Lines reach the log when they are printed; a fatal signal, and STACK_SIGNAL, write the Python stacks there."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: object) -> NoReturn:
    """SIGTERM runs the `finally` clauses on its way out."""
    sys.exit(128 + number)


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends (Linux); if it ended before we asked, end now."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            print(f"prctl(PR_SET_PDEATHSIG) failed ({reason}): if the parent is killed, this worker stays behind")
    if os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")


def _sender(pipe: int) -> Callable[[dict[str, Any]], None]:
    """Writes whole lines, whichever thread sends; the text is made first, so that a bad value sends nothing."""
    lock = threading.Lock()

    def send(word: dict[str, Any]) -> None:
        data = memoryview(json.dumps(word, allow_nan=False).encode() + b"\n")
        with lock:
            while data:
                data = data[os.write(pipe, data) :]

    return send


def _find(entry: str) -> Callable[[dict[str, Any], Tell], dict[str, Any]]:
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


def _error_words(error: Exception) -> dict[str, Any]:
    ours = isinstance(error, NpuComposeError)
    return {
        "type": type(error).__name__,
        "message": paragraph(error),
        "exit_status": error.exit_status if ours else NpuComposeError.exit_status,
        "problems": list(getattr(error, "problems", ())) if ours else [],
    }
