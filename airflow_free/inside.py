"""What runs in a worker's process: the order, the entry that it names, its events and one last word."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from airflow_free.outcome import STACK_SIGNAL
from airflow_free.stage import Tell
from airflow_free.words import paragraph
from npucompose.errors import NpuComposeError

PR_SET_PDEATHSIG = 1


def obey(order: dict[str, Any], pipe: int) -> None:
    """Call the entry of an order and say what came of it into `pipe`, which no child of this process inherits."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
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


def die_with(parent: int) -> None:
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
        "rejected": list(getattr(error, "rejected", ())) if ours else [],
        "facts": dict(getattr(error, "facts", {})) if ours else {},
    }
