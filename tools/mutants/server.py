"""A process with torch and pytest loaded, and nothing of the product: it forks for each order, a run of tests.

Orders come as lines of JSON on standard input, answers go as lines to standard output; `tools.mutants.bench` is the
other end. What a run leaves behind becomes the server's child, and is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
COLLECTING_S = 180.0
GRACE_S = 5.0
"""How long a process has to end after its last word."""
TAIL = 2000
"""Characters of a run's output that are worth keeping."""


def main(*preloaded: str) -> None:
    """Obey until there are no more orders; `preloaded` are the modules that every run finds loaded."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for name in (*preloaded, "pytest", "hypothesis", "tools.mutants.told"):
        importlib.import_module(name)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.collect()
    gc.freeze()
    os.write(answers, b"{}\n")
    for line in sys.stdin:
        os.write(answers, f"{json.dumps(obeyed(json.loads(line)))}\n".encode())


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def obeyed(order: dict[str, Any]) -> dict[str, Any]:
    """What the run said, how it ended, how long it took: {"said": […], "status": 0, "hung": None, "seconds": 2.5}."""
    begun = time.monotonic()
    mine, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine)
        _be(order, pipe)
    os.close(pipe)
    said, hung = _listen(mine, order)
    os.close(mine)
    status = _end(child, GRACE_S if hung is None else 0.0)
    output = Path(order["log"]).read_text(errors="replace")[-TAIL:]
    return {"said": said, "status": status, "hung": hung, "seconds": round(time.monotonic() - begun, 2), "tail": output}


def _listen(pipe: int, order: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """Everything said until the pipe is closed, or one test has taken longer than it may: then its name, too."""
    said: list[dict[str, Any]] = []
    limits, buffer, running = order["limits"], b"", "collecting"
    deadline = time.monotonic() + COLLECTING_S
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return said, running
        data = os.read(pipe, 65536)
        if not data:
            return said, None
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            said.append(json.loads(line))
            running = said[-1].get("begun", running)
            deadline = time.monotonic() + limits.get(running, order["limit"])
            if "over" in said[-1]:
                return said, None


def _end(child: int, grace_s: float) -> int:
    """The child's exit status (negative: a signal), once it and all that it started are gone."""
    status = None
    deadline = time.monotonic() + grace_s
    while status is None and time.monotonic() < deadline:
        pid, word = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(word) if pid else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    while True:
        # What outlives its parent becomes this process's child.
        for left in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(left), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return status


def _be(order: dict[str, Any], pipe: int) -> NoReturn:
    """The forked process: never returns into the server."""
    status = 70
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, handle in ((0, nothing), (1, log), (2, log)):
            os.dup2(handle, number)
        gc.unfreeze()
        os.environ.update(order["environment"])
        status = _tests(order, pipe)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _tests(order: dict[str, Any], pipe: int) -> int:
    import hypothesis
    import pytest

    from tools.mutants.told import Told, Traced

    # A failing example that one mutant leaves behind would catch the next one.
    hypothesis.settings.register_profile("mutants", database=None)
    hypothesis.settings.load_profile("mutants")
    told = Told(pipe, order["tests"])
    plugins: list[object] = [told]
    tracer = _tracer(order["trace"]) if order["trace"] else None
    if tracer is not None:
        plugins.append(Traced(tracer.switch_context))
    status = int(pytest.main([*order["options"], *order["files"]], plugins=plugins))
    if tracer is not None:
        tracer.stop()
        tracer.save()
    told.say(over=status)
    return status


def _tracer(configuration: str) -> Any:
    import coverage

    os.environ["COVERAGE_PROCESS_START"] = configuration
    tracer = coverage.Coverage(config_file=configuration)
    tracer.start()
    return tracer


if __name__ == "__main__":
    main(*sys.argv[1:])
