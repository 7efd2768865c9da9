"""What a sweep costs beside its points: planning, the start of a job, and a question to a large ledger.

    python benchmarks/sweep.py

Prints the median of several tries and the slowest; run it on a machine that does nothing else.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import evolve

from airflow_free.outcome import Outcome
from airflow_free.pool import Pool, run_in_worker
from airflow_free.stage import Event
from airflow_free.store import Store
from npucompose.compose.tree import Composer
from npucompose.experiment.job import Job
from npucompose.experiment.run import ActiveRun
from npucompose.experiment.sweep.plan import SweepPlan
from npucompose.experiment.sweep.run import PointEntry, PointLedger
from npucompose.results.record import Figures

TRIES = 7
POINTS = [
    "mode=eager,reduce-overhead",
    "passes=[],[stream_plan]",
    "model=add,mlp,tiny_ops,mm_abs_sub,parallel_branches",
]
JOB = ["model=add", "pipeline=compile_only"]
RECORDS = 100_000


def main() -> None:
    _tell("1,000 points over 20 combinations, planned and checked", planning)
    warm, whole = job_starts()
    _show("job start, from the order to the first stage (warm)", warm)
    _show("one compile_only job of model=add, warm, from order to end", whole)
    _tell("job start, from the order to the first stage (cold)", cold_start)
    with tempfile.TemporaryDirectory() as folder:
        with PointLedger.open(Path(folder)) as ledger:
            ledger.write(_many(RECORDS))
        _tell(
            f"npucompose report on a ledger of {RECORDS:,} points, the process included",
            lambda: _report(Path(folder)),
        )


def _tell(what: str, act: Callable[[], float]) -> None:
    _show(what, [act() for _ in range(TRIES)])


def _show(what: str, seconds: list[float]) -> None:
    print(
        f"{what}: median {statistics.median(seconds):.3f} s, slowest {max(seconds):.3f} s of {len(seconds)}", flush=True
    )


def planning() -> float:
    began = time.perf_counter()
    plan = SweepPlan.from_overrides([*POINTS, "seed=range(0,50)"], Composer())
    seconds = time.perf_counter() - began
    assert len(plan.points) == 1000
    assert not plan.illegal
    return seconds


def job_starts() -> tuple[list[float], list[float]]:
    """(seconds to the first stage, seconds to the end) of jobs one after the other, after one that warms up."""
    starts, ends = [], []
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder) / "forkserver.log") as pool:
        for number in range(TRIES + 1):
            job = Job.from_composed(Composer().compose([*JOB, f"seed={number}"]))
            begun = ActiveRun.begin(job, Path(folder), Store(Path(folder) / "store"))
            began, first = time.perf_counter(), 0.0
            pool.start(evolve(begun.task, number=number, loaded=begun.loaded))
            for news in _all_news(pool):
                if isinstance(news, Event) and not first:
                    first = time.perf_counter() - began
                if isinstance(news, Outcome):
                    assert news.status == "done", news
            starts.append(first)
            ends.append(time.perf_counter() - began)
    return starts[1:], ends[1:]


def _all_news(pool: Pool) -> Iterator[Event | Outcome]:
    while pool.running:
        yield from (news for _, news in pool.events())


def cold_start() -> float:
    with tempfile.TemporaryDirectory() as folder:
        job = Job.from_composed(Composer().compose(JOB))
        begun = ActiveRun.begin(job, Path(folder), Store(Path(folder) / "store"))
        began, first = time.perf_counter(), []
        task = evolve(begun.task, time_limit_s=600)
        run_in_worker(task, lambda event: first.append(time.perf_counter() - began))
        return first[0]


def _many(number: int) -> list[PointEntry]:
    return [
        PointEntry(
            key=f"{n:064x}",
            status="ok" if n % 10 else "failed",
            overrides=(f"seed={n}", "model=add", "mode=reduce-overhead"),
            run_dir=f"multirun/{n}",
            figures=Figures(model="add", target="cpu", mode="reduce-overhead", p50_us=float(n % 977), speedup=1.5),
        )
        for n in range(number)
    ]


def _report(folder: Path) -> float:
    began = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "import sys; from npucompose.cli import main; sys.exit(main())",
        "report",
        str(folder),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
