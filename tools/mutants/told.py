"""The pytest plugin of a forked process: runs the tests that were asked for and says what becomes of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

TRACED_TEST = "NPUCOMPOSE_TRACED_TEST"
"""The environment variable by which a subprocess knows for which test it is traced."""


class Told:
    """Keeps the tests named in `wanted` (all, where it is None), and writes a line for each event to `pipe`."""

    def __init__(self, pipe: int, wanted: Sequence[str] | None) -> None:
        self.pipe = pipe
        self.wanted = None if wanted is None else frozenset(wanted)

    def say(self, **words: Any) -> None:
        os.write(self.pipe, f"{json.dumps(words)}\n".encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.wanted is not None:
            dropped = [item for item in items if item.nodeid not in self.wanted]
            items[:] = [item for item in items if item.nodeid in self.wanted]
            config.hook.pytest_deselected(items=dropped)
        self.say(collected=len(items))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(failed=report.nodeid, words=_last_line(report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(failed=report.nodeid, words=_last_line(report.longreprtext))
        elif report.when == "call" or report.skipped:
            self.say(ended=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))


class Traced:
    """Tells coverage whose lines it sees. What a module or a session shares belongs to no test."""

    def __init__(self, switch: Callable[[str], None]) -> None:
        self.switch = switch
        self.test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now(item.nodeid)
        try:
            return (yield)
        finally:
            self._now("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        test = self.test
        self._now("")
        try:
            return (yield)
        finally:
            self._now(test)

    def _now(self, test: str) -> None:
        self.test = test
        self.switch(test)
        os.environ[TRACED_TEST] = test


def _last_line(text: str) -> str:
    """The error itself, of a traceback."""
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0].removeprefix("E").strip()[:200]
