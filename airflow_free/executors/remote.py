"""A job on another machine: what is sent there, the same watched worker as for a single run, what comes back.

Where the machines share no folder, finished stages travel as the records that they are, and the files beside them.
Whether the other machine is one whose result the job's key may claim is for the entry to say, in the worker.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import evolve, field, frozen

from airflow_free.errors import OrchestratorError
from airflow_free.executors import ActiveRun
from airflow_free.forkserver import WorkerTask
from airflow_free.outcome import Outcome
from airflow_free.pool import run_in_worker
from airflow_free.store import Record, Store
from airflow_free.worker import find


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
        environment = {**os.environ, **self.env} if self.environment is None else find(self.environment)(self.env)
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
                raise OrchestratorError(f"a file came back that belongs to no stage of this point: {name!r}.")
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
