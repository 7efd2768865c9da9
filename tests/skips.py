"""In CI a test may be skipped only for a reason of allowed_skips.yaml: any other skip makes the run red.

`--only-allowed-skips`, or the variable CI, turns it on. An expected failure is no skip.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

ALLOWED = Path(__file__).with_name("allowed_skips.yaml")
OFF = ("", "0", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-allowed-skips", action="store_true", default=os.environ.get("CI", "").lower() not in OFF,
        help="a skip that allowed_skips.yaml does not list is a failure (on where the variable CI is set)",
    )  # fmt: skip
    parser.addoption("--allowed-skips", metavar="FILE", type=Path, default=ALLOWED, help="another list than ours")


def pytest_configure(config: pytest.Config) -> None:
    """Reports of all workers come to the process that controls the session."""
    if config.getoption("--only-allowed-skips") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(yaml.safe_load(config.getoption("--allowed-skips").read_text())), "skips")


class Skips:
    """`allowed`: for each reason, globs of the tests that may give it (`tests`) and of its words (`says`)."""

    def __init__(self, allowed: Sequence[Mapping[str, str]]) -> None:
        self.allowed = allowed
        self.others: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        words = words.removeprefix("Skipped: ")
        if not any(
            fnmatchcase(report.nodeid, one["tests"]) and fnmatchcase(words, one["says"]) for one in self.allowed
        ):
            self.others[report.nodeid] = words

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.others and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.others:
            terminalreporter.section("skipped without a reason that allowed_skips.yaml lists", red=True)
            for test, words in sorted(self.others.items()):
                terminalreporter.line(f"{test}: {words}")
