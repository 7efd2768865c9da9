"""Who runs jobs: one file for each kind of executor; here is what they run, and what travels to another machine and
back. What is in a job is no business of theirs.

Ray's and Slurm's need a package that this one does not bring; they import it when they are made.
"""

from __future__ import annotations

import os
import pkgutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from attrs import evolve, field, frozen

from airflow_free.errors import OrchestratorError
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.pool import run_in_worker
from airflow_free.stage import Event
from airflow_free.store import Record, Store


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
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    def has_room(self, job: Job) -> bool:
        """Whether the job could be started now; a time is worth something only where nothing else runs beside it."""

    @abstractmethod
    def start(self, number: int, run: ActiveRun) -> None:
        """Have it run, under this number; asked for only when there is room. Returns at once."""

    @abstractmethod
    def events(self) -> Sequence[tuple[int, Event | Outcome]]:
        """Sleep until something happened and return it."""


@frozen(kw_only=True)
class RemoteTask:
    """A task as plain data. In its payload `store` and `files` name the folders of the records and of what lies beside
    them: on another machine they are replaced by folders there."""

    task: WorkerTask
    """Without an environment, which would be that of this machine."""
    env: Mapping[str, str] = field(factory=dict[str, str])
    """Variables that the worker needs."""
    environment: str | None = None
    """A "module:function" that makes, on the other machine, the whole environment out of `env`; None: `env` over that
    machine's own."""
    records: tuple[str, ...] = ()
    """Stages that are finished already, each as the text of its record."""

    def on_this_machine(self, **changes: Any) -> WorkerTask:
        environment = (
            {**os.environ, **self.env} if self.environment is None else pkgutil.resolve_name(self.environment)(self.env)
        )
        return evolve(self.task, environment=environment, **changes)


@frozen(kw_only=True)
class Delivery:
    """What came of it: the outcome, what the worker printed, the records of its stages and the files beside them."""

    outcome: Outcome
    log: bytes = b""
    records: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(factory=dict[str, bytes])
    """{stage/key/name: content}."""

    def unpack(self, run: ActiveRun) -> Outcome:
        """Put everything where a local worker would have put it."""
        with run.task.log_path.open("ab") as log:
            log.write(self.log)
        wanted = run.job.keys
        for text in self.records:
            record = Record.from_text(text)
            if wanted.get(record.stage) == record.key:
                run.store.write(record)
        for name, content in self.files.items():
            stage, key, *rest = PurePosixPath(name).parts
            if wanted.get(stage) != key or not rest or ".." in rest:
                raise OrchestratorError(f"a file came back that belongs to no stage of this job: {name!r}.")
            run.store.put_file(stage, key, "/".join(rest), content)
            run.store.bring_files(stage, key, run.files)
        return self.outcome


def remote_task(task: WorkerTask, store: Store, finished: Iterable[tuple[str, str]], **about: Any) -> RemoteTask:
    """Of a task whose stages (name, key) in `finished` have records; `about` are further fields."""
    found = (store.read(stage, key) for stage, key in finished)
    records = tuple(record.text() for record in found if record is not None)
    return RemoteTask(task=evolve(task, environment=None), records=records, **about)


def fulfil(remote: RemoteTask) -> Delivery:
    """On the other machine: run it in a worker of its own, in folders of its own, and bring everything back."""
    with tempfile.TemporaryDirectory(prefix=f"{remote.task.program}-away-") as place:
        folder = Path(place)
        store = Store(folder / "store")
        for text in remote.records:
            store.write(Record.from_text(text))
        before = {record.key for record in store.records()}
        log = folder / "run.log"
        payload = {**remote.task.payload, "store": str(store.root), "files": str(folder / "files")}
        outcome = run_in_worker(remote.on_this_machine(payload=payload, log_path=log))
        made = [record for record in store.records() if record.key not in before]
        return Delivery(
            outcome=outcome,
            log=log.read_bytes(),
            records=tuple(record.text() for record in made),
            files={
                f"{record.stage}/{record.key}/{name}": store.file(record.stage, record.key, name).read_bytes()
                for record in made
                for name in store.file_names(record.stage, record.key)
            },
        )


def fulfil_here(remote: RemoteTask) -> Outcome:
    """On a machine that sees the same folders: the same worker, which writes where a local one would."""
    return run_in_worker(remote.on_this_machine())
