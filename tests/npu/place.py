"""Where claims are proven: target npu or npu_offline, in processes of their own, with what was found on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen
from nursery import cold, command

from npucompose.errors import ConfigError
from npucompose.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
Where = Literal["npu", "npu_offline"]
LAST = 2000
"""Characters of a process's stderr that are kept as evidence."""


def missing(target: Where) -> str | None:
    """Why claims cannot be proven here, in the words that a person gets."""
    try:
        TARGETS.get(target)().check("max-autotune")
    except ConfigError as error:
        return str(error)
    return None


def process(
    target: Where, script: Path, *arguments: str, folder: Path | None = None, told: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A script in a process that may become a device without CANN."""
    environment = {
        **os.environ,
        **TARGETS.get(target)().environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }
    # A driver is for processes that were not forked from one that has torch.
    started = cold(str(script)) if target == "npu" else command(str(script), environment=environment)
    return subprocess.run(
        [*started, *arguments],
        cwd=folder,
        input=told,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON object that a process printed."""
    assert done.returncode == 0, (done.stdout + done.stderr)[-LAST:]
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


@frozen(kw_only=True)
class Ran:
    """`python run.py …`: exit status, report (empty when there is none), stderr."""

    status: int
    report: Mapping[str, Any]
    error: str
    folder: Path

    @property
    def npu(self) -> Mapping[str, Any]:
        return self.report.get("npu") or {}


@frozen(kw_only=True)
class Place:
    target: Where
    folder: Path
    evidence: dict[str, Any] = field(factory=dict[str, Any])
    """What a claim found; it is kept when the claim does not hold, too."""

    def note(self, **found: Any) -> None:
        self.evidence.update(found)

    def run(self, *overrides: str) -> Ran:
        """One experiment, compared and not measured, with the figures that the report has of it as evidence."""
        chosen = (f"target={self.target}", "pipeline=check", "hydra.run.dir=out", *overrides)
        done = process(self.target, ROOT / "run.py", *chosen, folder=self.folder)
        file = self.folder / "out" / "report.json"
        report = json.loads(file.read_text()) if file.is_file() else {}
        ran = Ran(status=done.returncode, report=report, error=done.stderr, folder=self.folder / "out")
        self.note(overrides=list(chosen), exit_status=ran.status, stderr=ran.error[-LAST:], **_figures(ran))
        return ran

    def printed(self, script: Path, *arguments: str, told: str | None = None) -> Any:
        """The JSON object that a script prints."""
        return printed(process(self.target, script, *arguments, folder=self.folder, told=told))

    @property
    def platform(self) -> str:
        return "device" if self.target == "npu" else "simulated"


NUMERICS = ("bitwise", "max_abs_err", "passed", "compared", "problems")


def _figures(ran: Ran) -> dict[str, Any]:
    report = ran.report
    numerics: Mapping[str, Any] = report.get("numerics") or {}
    graphs: Sequence[Mapping[str, Any]] = report.get("graphs") or []
    return {
        "npu": dict(ran.npu),
        "numerics": {name: numerics.get(name) for name in NUMERICS},
        "fingerprints": [graph["fingerprint"] for graph in graphs],
        "compile": (report.get("stages") or {}).get("compile"),
        "recompiles": report.get("recompiles"),
    }
