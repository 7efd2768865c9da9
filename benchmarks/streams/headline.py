"""The command that README and `make run` show, as often as asked, each time in a process and a cache of its own: the
native replayer is built and kernels are timed anew.

What is read is what the run wrote in its report: whether the plan is applied, what was predicted, and what the trial of
capture measured in turns, on the plan's streams and on one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

from attrs import frozen

from benchmarks.streams.goals import Goal, Part, table_of
from npucompose.machine import CACHE_VARIABLE

COMMAND = ("mode=reduce-overhead", "passes=stream_plan")
LOWER_QUARTILE = 1.05
SECONDS = 60.0


@frozen(kw_only=True)
class Run:
    """Times in microseconds; None where the plan was not tried."""

    applied: bool
    why: str
    predicted: float | None
    plan_us: float | None
    one_stream_us: float | None
    speedup: float
    seconds: float

    @property
    def ratio(self) -> float:
        """One stream ÷ plan; 0 for a plan that was not tried."""
        return self.one_stream_us / self.plan_us if self.one_stream_us and self.plan_us else 0.0


def headline(runs: int) -> Part:
    """Goals: the plan is applied in every run, and a quarter of the way up the runs it saves a twentieth."""
    found = [_run() for _ in range(runs)]
    columns = ("plan", "predicted", "plan, µs", "one stream, µs", "one ÷ plan", "over eager", "seconds")
    table = table_of(f"python run.py {' '.join(COMMAND)}", *columns)
    for one in found:
        applied = "applied" if one.applied else f"not applied: {one.why}"
        figures = [_figure(one.predicted, ".2f"), _figure(one.plan_us, ".1f"), _figure(one.one_stream_us, ".1f")]
        table.add_row(applied, *figures, f"{one.ratio:.2f}", f"{one.speedup:.2f}", f"{one.seconds:.0f}")
    low = quantiles([one.ratio for one in found], n=4)[0] if len(found) > 1 else found[0].ratio
    applied, longest = sum(one.applied for one in found), max(one.seconds for one in found)
    goals = (
        Goal("the plan is applied in every run", applied == len(found), f"{applied} of {len(found)}"),
        Goal(f"one stream ÷ plan, lower quartile: above {LOWER_QUARTILE}", low > LOWER_QUARTILE, f"{low:.3f}"),
        Goal(f"a run takes under {SECONDS:g} s", longest < SECONDS, f"{longest:.0f} s"),
    )
    return Part(tables=[table], goals=goals, figures=[one.ratio for one in found])


def _figure(value: float | None, form: str) -> str:
    return "?" if value is None else format(value, form)


def _run() -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        cache.mkdir(mode=0o700)
        begun = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "npucompose", "run", *COMMAND, "hydra.run.dir=run"],
            cwd=folder, env={**os.environ, CACHE_VARIABLE: str(cache)}, capture_output=True, check=True,
        )  # fmt: skip
        seconds = perf_counter() - begun
        return _read(json.loads((folder / "run" / "report.json").read_text(encoding="utf-8")), seconds)


def _read(report: dict[str, Any], seconds: float) -> Run:
    streams = report["streams"]
    (trial,) = streams["trials"] or [{}]
    predicted = streams["serial_us"] / streams["predicted_us"] if streams["predicted_us"] else None
    return Run(
        applied=streams["applied"],
        why=streams["why"],
        predicted=predicted,
        plan_us=trial.get("plan_us"),
        one_stream_us=trial.get("one_stream_us"),
        speedup=report["stages"]["benchmark"]["speedup"].get("eager", 0.0),
        seconds=seconds,
    )
