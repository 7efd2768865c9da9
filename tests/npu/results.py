"""One file with every claim, whether it held and what was found: what a person with an NPU sends back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_free.store import write_atomically
from npucompose.results.premises import SCHEMA
from npucompose.version import __version__
from tests.npu.place import ROOT, Where, printed, process

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
        self.asked_for_claims = False
        self.loud: str | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.asked_for_claims = any(TESTS in item.nodeid for item in items)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        left_out = sum(TESTS in item.nodeid for item in items)
        self.asked_for_claims = self.asked_for_claims and not left_out

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

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any = None) -> None:
        """Where a device is visible and no claim was run, the session is red and its file says so of every claim."""
        seen = visible() if self.asked_for_claims and self.target == "npu" and not self.found else None
        if seen is not None:
            why = f": {self.skipped[0]}" if self.skipped else ""
            self.loud = f"npu: a device is visible ({seen}) and nothing ran{why}"
            if session is not None:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not self.found and seen is None:
            return
        on = device(self.target) if self.found else {"name": "unknown", "visible": seen, "why": self.loud}
        data = result(self.target, self.found, on)
        self.written = Path(self.asked) if self.asked else default_path(data)
        self.written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.written, json.dumps(data, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.loud is not None:
            terminalreporter.write_line(self.loud, red=True, bold=True)
        elif self.skipped:
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
    from npucompose.table.structure import facts_of
    from tests.npu.claims import CLAIMS

    says = {claim.name: claim.says for claim in CLAIMS}
    names: Sequence[str] = list(says)
    missing = [name for name in names if name not in found]
    claims = [_with_verdict(name, says[name], found.get(name)) for name in names]
    device_facts = {"soc": on.get("name"), **on}
    return {
        "schema": SCHEMA,
        "target": target,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "npucompose": __version__,
        "device": device_facts,
        "environment": facts_of(environment({})),
        "held": sum(bool(found[name]["passed"]) for name in names if name in found),
        "failed": [name for name in names if name in found and not found[name]["passed"]],
        "missing": missing,
        "complete": not missing,
        "verdicts": {v: sum(claim["verdict"] == v for claim in claims) for v in ("proven", "refuted", "not run")},
        "claims": claims,
    }


def _with_verdict(name: str, says: str, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """proven, refuted or not run, as npucompose.results.premises reads it."""
    if found is None:
        return {"name": name, "says": says, "verdict": "not run"}
    return {**found, "verdict": "proven" if found["passed"] else "refuted"}


def visible() -> str | None:
    """What shows that this host has an NPU, whether or not its Python can use it: its files, or who chose one."""
    files = sorted(str(path) for path in Path("/dev").glob("davinci[0-9]*"))
    chosen = os.environ.get("ASCEND_RT_VISIBLE_DEVICES") or os.environ.get("ASCEND_VISIBLE_DEVICES")
    return files[0] if files else f"ASCEND_RT_VISIBLE_DEVICES={chosen}" if chosen else None


def default_path(data: Mapping[str, Any]) -> Path:
    """benchmarks/results/npu-Ascend910B2-2026-11-21.json"""
    name = re.sub(r"[^A-Za-z0-9]+", "_", str(data["device"]["name"]))
    return ROOT / "benchmarks" / "results" / f"npu-{name}-{str(data['date'])[:10]}.json"
