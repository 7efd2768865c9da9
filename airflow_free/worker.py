"""What runs in a worker's process: the entry that a task names, its events and one final message."""

from __future__ import annotations

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

from airflow_free.errors import OrchestratorError, exit_status_of, paragraph
from airflow_free.outcome import STACK_SIGNAL


def handle(task: dict[str, Any], pipe: int) -> None:
    """Call the entry of a task and write what came of it into `pipe`, which no child of this process inherits."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.set_inheritable(pipe, False)
    send = _sender(pipe)
    sys.argv[:] = [task["entry"]]
    try:
        entry = find(task["entry"])
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


def find(entry: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, function = entry.partition(":")
    return getattr(importlib.import_module(module), function)


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
