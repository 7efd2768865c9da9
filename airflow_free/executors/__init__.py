"""Who runs jobs: one file for each kind of executor. What is in a job is no business of theirs.

Ray's and Slurm's need a package that this one does not bring; they import it when they are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.stage import Event
from airflow_free.store import Store

if TYPE_CHECKING:
    from airflow_free.executors.remote import RemoteTask


@frozen(kw_only=True)
class Device:
    """What a job runs on: `Device(kind="cuda", variable="CUDA_VISIBLE_DEVICES", index=1)`, or the machine itself."""

    kind: str = "cpu"
    variable: str | None = None
    """Shows a process the devices that it may use; None where the job runs on the whole machine."""
    index: int = 0


class Job(Protocol):
    """What there is to run."""

    @property
    def keys(self) -> Mapping[str, str]:
        """{stage: key}."""
        ...

    @property
    def device(self) -> Device: ...

    @property
    def measures(self) -> bool:
        """Whether it takes times, which other jobs beside it would spoil."""
        ...


class ActiveRun(Protocol):
    """A job about to run in a folder."""

    @property
    def job(self) -> Any: ...  # a Job; a protocol's property would have to be matched exactly

    @property
    def store(self) -> Store: ...

    @property
    def task(self) -> WorkerTask:
        """For a worker of this machine."""
        ...

    @property
    def remote_task(self) -> RemoteTask:
        """For one of another machine."""
        ...

    @property
    def loaded(self) -> tuple[str, ...]:
        """What a process that forks many such jobs should have loaded: see `WorkerTask.loaded`."""
        ...

    @property
    def files(self) -> Path:
        """Where stages leave files beside their facts."""
        ...


class Executor(ABC):
    """`with LocalExecutor(…) as executor`; leaving it ends whatever still runs.

    A job's last event is an Outcome, and the job is run once: nobody repeats one that crashed.
    """

    def __enter__(self) -> Executor:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def has_room(self, job: Job) -> bool:
        """Whether the job could be started now; a time is worth something only where nothing else runs beside it."""

    @abstractmethod
    def start(self, number: int, run: ActiveRun) -> None:
        """Have it run, under this number; asked for only when there is room. Returns at once."""

    @abstractmethod
    def events(self) -> Sequence[tuple[int, Event | Outcome]]:
        """Sleep until something happened and return it."""
