"""Runs files of unittest, each file and each of its tests in a fork of its own with a time limit."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

LIMIT = 120.0
"""Seconds that one test gets."""


@frozen
class Outcome:
    """What became of a test; `text` is the traceback, or the reason of a skip."""

    kind: str
    """passed, failed, skipped, died or timeout."""
    text: str = ""


def forked(act: Callable[[], dict[str, Any]], log: Path, limit: float) -> dict[str, Any] | str:
    """What `act` gives in a fork of this process, else `died` or `timeout`; what the fork prints goes into `log`."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setsid()
        with log.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(act()).encode())
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    data, over = _read(reader, time.monotonic() + limit)
    if over:
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if over:
        return "timeout"
    return json.loads(data) if data else "died"


def _read(pipe: int, end: float) -> tuple[bytes, bool]:
    """All that comes, and whether the time was over before its end."""
    data = b""
    with os.fdopen(pipe, "rb", buffering=0) as source:
        while select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
            part = source.read(65536)
            if not part:
                return data, False
            data += part
    return data, True


def outcomes(file: Path, folder: Path, limit: float = LIMIT) -> Iterator[tuple[str, Outcome]]:
    """(test, what became of it); a file that cannot be imported is one test of the name `import`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    sys.argv = [str(file)]
    try:
        module = _imported(file)
    except BaseException:  # noqa: BLE001  a test file may do anything when it is imported
        yield "import", Outcome("failed", traceback.format_exc())
        return
    for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = ".".join(test.id().split(".")[-2:])
        log = folder / f"{name}.log"
        found = forked(lambda test=test: _run(test), log, limit)
        outcome = Outcome(**found) if isinstance(found, dict) else Outcome(found, log.read_text(errors="replace"))
        with log.open("a", encoding="utf-8") as output:
            output.write(f"\n{outcome.kind}\n{outcome.text}")
        yield name, outcome


def _imported(file: Path) -> Any:
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tests(suite: Any) -> list[unittest.TestCase]:
    return [test for inner in suite for test in _tests(inner)] if isinstance(suite, unittest.TestSuite) else [suite]


def _run(test: unittest.TestCase) -> dict[str, Any]:
    result = unittest.TestResult()
    try:
        unittest.TestSuite([test]).run(result)
    except BaseException:  # noqa: BLE001  as above
        return {"kind": "failed", "text": traceback.format_exc()}
    if bad := [*result.errors, *result.failures]:
        return {"kind": "failed", "text": bad[0][1]}
    if result.unexpectedSuccesses:
        return {"kind": "failed", "text": "a success that the test does not expect"}
    if result.skipped:
        return {"kind": "skipped", "text": result.skipped[0][1]}
    return {"kind": "passed", "text": ""}
