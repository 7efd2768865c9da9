"""One file with every claim, whether it held and what was found: what a person with an NPU sends back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from npucompose.report.files import write_atomically
from npucompose.version import __version__
from tests.npu.place import ROOT, Where, printed, process

SCHEMA = 1
TESTS = "tests/npu/test_claims.py"
FOUND = "npu claim"
"""The property of a test report that carries a claim's result from whichever process proved it."""


class Results:
    """Gathers the claims of a pytest session, in its controlling process, and writes them at its end."""

    def __init__(self, config: pytest.Config) -> None:
        self.target: Where = config.getoption("--npu-target")
        self.asked: str | None = config.getoption("--npu-result")
        self.found: dict[str, dict[str, Any]] = {}
        self.skipped: list[str] = []
        self.written: Path | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if TESTS not in report.nodeid:
            return
        if report.skipped and isinstance(report.longrepr, tuple):
            self.skipped.append(report.longrepr[2].removeprefix("Skipped: "))
        for name, value in report.user_properties:
            if name == FOUND and report.when == "call":
                error = None if report.passed else str(report.longrepr)
                result = {**json.loads(str(value)), "passed": report.passed, "error": error}
                self.found[result["name"]] = {**result, "seconds": round(report.duration, 3)}

    def pytest_sessionfinish(self) -> None:
        if not self.found:
            return
        data = result(self.target, self.found, device(self.target))
        self.written = Path(self.asked) if self.asked else default_path(data)
        self.written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.written, json.dumps(data, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.skipped:
            terminalreporter.write_line(f"npu: {len(self.skipped)} claims were skipped: {self.skipped[0]}")
        if self.written is not None:
            held = sum(result["passed"] for result in self.found.values())
            terminalreporter.write_line(f"npu: {held} of {len(self.found)} claims held; written to {self.written}")


def device(target: Where) -> dict[str, Any]:
    """Which device this is; AssertionError with the last lines of the loader where there is none."""
    return printed(process(target, Path(__file__).with_name("device.py"), target))


def result(target: Where, found: Mapping[str, Mapping[str, Any]], on: Mapping[str, Any]) -> dict[str, Any]:
    """The whole file: claims in the order of the list, and which of them are missing."""
    from npucompose.measure.environment import environment
    from npucompose.schema.facts import facts_of
    from tests.npu.claims import CLAIMS

    names: Sequence[str] = [claim.name for claim in CLAIMS]
    missing = [name for name in names if name not in found]
    return {
        "schema": SCHEMA,
        "target": target,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "npucompose": __version__,
        "device": dict(on),
        "environment": facts_of(environment({})),
        "held": sum(bool(found[name]["passed"]) for name in names if name in found),
        "failed": [name for name in names if name in found and not found[name]["passed"]],
        "missing": missing,
        "complete": not missing,
        "claims": [dict(found[name]) for name in names if name in found],
    }


def default_path(data: Mapping[str, Any]) -> Path:
    """benchmarks/results/npu-Ascend910B2-2026-11-21.json"""
    name = re.sub(r"[^A-Za-z0-9]+", "_", str(data["device"]["name"]))
    return ROOT / "benchmarks" / "results" / f"npu-{name}-{str(data['date'])[:10]}.json"
