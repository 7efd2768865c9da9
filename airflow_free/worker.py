"""One job in one fresh process: started, watched without spinning, ended with its children. Knows no stage.

The parent side is `run_in_worker`. The worker side is `airflow_free.inside`: it imports "module:function", calls
`function(payload, tell)` and sends what it returns. A sweep's jobs are forked instead (`airflow_free.pool`).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from attrs import evolve

from airflow_free.outcome import GRACE_S, STACK_S, STACK_SIGNAL, Hearing, Outcome, last_lines, outcome_of
from airflow_free.stage import Tell, silent

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from airflow_free.inside import main; main()"
"""Instead of `-m airflow_free.inside`: that would need this package on the path before the path could be set."""


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
    outcome = outcome_of(watched.hearing.last_word, returncode, time_limit_s if timed_out else None)
    lines = () if outcome.status == "done" else last_lines(log_path, log_start)
    return evolve(outcome, last_lines=lines, seconds=time.monotonic() - began)


class _Watched:
    """A running worker, the pipe it talks through, and a thread that sleeps until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        self.process = process
        self.hearing = Hearing(pipe)
        self.bell_out, self.bell_in = os.pipe()
        self.selector = selectors.DefaultSelector()
        self.selector.register(pipe, selectors.EVENT_READ)
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
                return self.hearing.last_word is not None
            ready = {key.fd for key, _ in self.selector.select(left)}
            if self.hearing.pipe in ready:
                had_word = self.hearing.last_word is not None
                self._read(on_event)
                if self.hearing.last_word is not None and not had_word:
                    deadline = time.monotonic() + GRACE_S
            if self.bell_out in ready:
                self._read(on_event)
                return True

    def _read(self, on_event: Tell) -> None:
        self.hearing.read(on_event)
        if self.hearing.ended and self.hearing.pipe in self.selector.get_map():
            self.selector.unregister(self.hearing.pipe)

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
        self.hearing.close()
        for handle in (self.bell_out, self.bell_in):
            os.close(handle)
