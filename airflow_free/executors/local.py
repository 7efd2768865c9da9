"""Jobs forked on this machine from a process that has loaded what they need, each in its slot."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from attrs import evolve, frozen

from airflow_free.executors import ActiveRun, Executor, Job
from airflow_free.outcome import Outcome
from airflow_free.pool import Pool
from airflow_free.stage import Event

SERVER_LOG = "forkserver.log"


@frozen(kw_only=True)
class Slot:
    """What a job takes while it runs: `Slot(device="cuda:0", measures=True)`."""

    device: str
    """`cpu` is the whole machine; `cuda:1`, `npu:0` are devices beside it."""
    measures: bool
    env: tuple[tuple[str, str], ...] = ()
    """The variable that shows the job its device, where devices are handed out."""

    @property
    def whole_machine(self) -> bool:
        return self.measures and self.device == "cpu"


def slots(job: Job, devices: Sequence[int]) -> tuple[Slot, ...]:
    """The slots that the job could take, the best first."""
    device, measures = job.device, job.measures
    if device.variable is None:
        return (Slot(device="cpu", measures=measures),)
    if not devices:
        return (Slot(device=f"{device.kind}:{device.index}", measures=measures),)
    return tuple(
        Slot(device=f"{device.kind}:{index}", measures=measures, env=((device.variable, str(index)),))
        for index in devices
    )


def slot_for(wanted: Sequence[Slot], taken: Collection[Slot], jobs: int) -> Slot | None:
    """A slot beside those that are taken, or None: wait.

    A job that measures on the CPU runs alone. One that measures on a device has it alone, and beside it run only jobs
    that measure on other devices. Jobs that measure nothing share everything, so many at once.
    """
    measures = wanted[0].measures
    if any(slot.measures != measures or slot.whole_machine for slot in taken) or (taken and wanted[0].whole_machine):
        return None
    devices = [slot.device for slot in taken]
    if measures:
        return next((slot for slot in wanted if slot.device not in devices), None)
    if len(taken) >= jobs:
        return None
    return min(wanted, key=lambda slot: devices.count(slot.device))


class LocalExecutor(Executor):
    """`jobs` at once of those that measure nothing, None for one a core; `devices` are handed out, one to a job that
    measures."""

    def __init__(self, folder: Path, *, jobs: int | None = None, devices: Sequence[int] = ()) -> None:
        self.jobs = jobs or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        self.devices = devices
        self.pool = Pool(folder / SERVER_LOG)
        self.taken: dict[int, Slot] = {}

    def __exit__(self, *error: object) -> None:
        self.pool.__exit__(*error)

    def has_room(self, job: Job) -> bool:
        return self._slot(job) is not None

    def _slot(self, job: Job) -> Slot | None:
        return slot_for(slots(job, self.devices), list(self.taken.values()), self.jobs)

    def start(self, number: int, run: ActiveRun) -> None:
        slot = self._slot(run.job)
        assert slot is not None
        self.taken[number] = slot
        self.pool.start(evolve(run.task, number=number, loaded=run.loaded, late_env=dict(slot.env)))

    def events(self) -> Sequence[tuple[int, Event | Outcome]]:
        events = self.pool.events()
        for number, event in events:
            if isinstance(event, Outcome):
                del self.taken[number]
        return events
