"""Each job one of Slurm, by submitit. Nodes see the folder of the sweep and the store.

A sweep that is killed leaves its jobs in Slurm's hands; what they finish is in the store, where the same command finds
it.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from airflow_free.errors import OrchestratorError, first_line, paragraph
from airflow_free.executors import ActiveRun, Executor, Job, fulfil_here
from airflow_free.forkserver import WorkerTask
from airflow_free.fresh_python import SAFE_PATH
from airflow_free.outcome import Outcome
from airflow_free.stage import Event

FOLDER = "slurm"
"""Of the sweep: what submitit writes."""
BEYOND_MIN = 10
"""Minutes that Slurm grants beyond the job's own limit: to start it, and to see it end."""
ASK_EVERY = 15
"""Looks at files of which one asks Slurm itself; a job that left no file is found dead by that."""


@frozen(kw_only=True)
class SlurmOptions:
    cluster: str = "slurm"
    """`local`: submitit's own processes on this machine instead."""
    jobs: int = 32
    """In the queue or running at once."""
    partition: str | None = None
    time_limit_min: int | None = None
    """What Slurm is given; None: the job's own limit and BEYOND_MIN."""
    cpus: int = 1
    gres: str | None = None
    """Generic resources for each job: `npu:1`."""
    exclusive: bool | None = None
    """A node for each job; None: for those that measure."""
    parameters: Mapping[str, str | int] = field(factory=dict[str, "str | int"])
    """Further options of sbatch."""
    poll_s: float = 2.0


class SlurmExecutor(Executor):
    def __init__(self, options: SlurmOptions, folder: Path) -> None:
        self.options = options
        self.submitit = importlib.import_module("submitit")
        os.environ.update(SAFE_PATH)  # sbatch hands it on to the `python -m submitit` of a node
        try:
            self.executor = self.submitit.AutoExecutor(folder=folder / FOLDER, cluster=options.cluster)
        except RuntimeError as error:
            raise OrchestratorError(f"executor=slurm: {paragraph(error)}") from error
        self.running: dict[int, Any] = {}
        self.looks = 0

    def __exit__(self, *error: object) -> None:
        for job in self.running.values():
            job.cancel(check=False)

    def has_room(self, job: Job) -> bool:
        return len(self.running) < self.options.jobs

    def start(self, number: int, run: ActiveRun) -> None:
        remote = run.remote_task
        self.executor.update_parameters(**self._parameters(run.job, remote.task))
        with _uninterrupted():
            self.running[number] = self.executor.submit(fulfil_here, remote)

    def _parameters(self, job: Job, task: WorkerTask) -> dict[str, Any]:
        options = self.options
        parameters: dict[str, Any] = {
            "name": task.program,
            "timeout_min": options.time_limit_min or math.ceil(task.time_limit_s / 60) + BEYOND_MIN,
            "cpus_per_task": options.cpus,
            "slurm_additional_parameters": {"no-requeue": True, **options.parameters},
        }
        alone = job.measures if options.exclusive is None else options.exclusive
        if alone:
            parameters["slurm_additional_parameters"]["exclusive"] = True
        if options.partition is not None:
            parameters["slurm_partition"] = options.partition
        if options.gres is not None:
            parameters["slurm_gres"] = options.gres
        return parameters

    def events(self) -> Sequence[tuple[int, Event | Outcome]]:
        while True:
            self.looks += 1
            ask = self.looks % ASK_EVERY == 0
            ended = [number for number, job in self.running.items() if job.done(force_check=ask)]
            if ended:
                return [(number, self._outcome(self.running.pop(number))) for number in ended]
            time.sleep(self.options.poll_s)

    def _outcome(self, job: Any) -> Outcome:
        try:
            return job.result()
        except self.submitit.core.utils.FailedJobError as error:
            return Outcome(status="failed", error=first_line(error), exit_status=3)
        except self.submitit.core.utils.UncompletedJobError as error:
            words = f"Slurm ended job {job.job_id} before it sent a result: {first_line(error)}"
            return Outcome(status="crashed", error=words, exit_status=3)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until a job that Slurm has taken is known here, and so can be cancelled."""
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
