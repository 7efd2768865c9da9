"""A job on another machine: what is sent there, the same watched worker as for a single run, what comes back.

Where the machines share no folder, finished stages travel as the records that they are, and the files beside them. The
other machine has to be one whose result the job's key may claim: same versions, same device, same code.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from attrs import field, frozen

from airflow_free.outcome import Limits, Outcome
from airflow_free.stage import Tell
from airflow_free.store import Record, Store
from airflow_free.worker import run_in_worker
from npucompose.compose.tree import Composed
from npucompose.errors import NpuComposeError
from npucompose.experiment import run as experiment
from npucompose.experiment.run import FILES, LOG, Begun, Job, vendor_files
from npucompose.machine import THREAD_VARIABLES, thread_settings

ENTRY_AWAY = "npucompose.experiment.sweep.crews.away:work"
MOST_DIFFERENCES = 5


@frozen(kw_only=True)
class Order:
    """A job as plain data; `surroundings` are the ingredients of its key that belong to a machine."""

    payload: Mapping[str, Any]
    time_limit_s: float
    env: Mapping[str, str]
    surroundings: Mapping[str, Mapping[str, str]]
    limits: Limits = field(factory=Limits)
    records: tuple[str, ...] = ()
    """Stages that are finished already, each as the text of its record."""

    @staticmethod
    def of(begun: Begun) -> Order:
        job = begun.job
        found = (begun.store.read(f.stage, f.key) for f in begun.finished)
        return Order(
            payload=begun.payload,
            time_limit_s=job.checked.experiment.pipeline.time_limit_s,
            env={**thread_settings(), **job.checked.target.environment()},
            surroundings=job.ingredients.surroundings,
            limits=job.limits,
            records=tuple(record.text() for record in found if record is not None),
        )


@frozen(kw_only=True)
class Delivery:
    """What came of it: the outcome, what the worker printed, the records of its stages and the files beside them."""

    outcome: Outcome
    log: bytes = b""
    records: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(factory=dict[str, bytes])
    """{stage/key/name: content}."""

    def unpack(self, begun: Begun) -> Outcome:
        """Put everything where a local worker would have put it."""
        with (begun.run_dir / LOG).open("ab") as log:
            log.write(self.log)
        wanted = begun.job.keys
        for text in self.records:
            record = Record.of_text(text)
            if wanted.get(record.stage) == record.key:
                begun.store.write(record)
        for name, content in self.files.items():
            stage, key, *rest = PurePosixPath(name).parts
            if wanted.get(stage) != key or not rest or ".." in rest:
                raise NpuComposeError(f"a file came back that belongs to no stage of this point: {name!r}.")
            begun.store.put_file(stage, key, "/".join(rest), content)
            begun.store.bring_files(stage, key, begun.run_dir / FILES)
        return self.outcome


def fulfil(order: Order) -> Delivery:
    """On the other machine: run it in a worker of its own, in folders of its own, and bring everything back."""
    _only_the_threads_of(order.env)
    with tempfile.TemporaryDirectory(prefix="npucompose-away-") as place:
        folder = Path(place)
        store = Store(folder / "store")
        for text in order.records:
            store.write(Record.of_text(text))
        before = {record.key for record in store.records()}
        log = folder / LOG
        outcome = run_in_worker(
            ENTRY_AWAY,
            {
                **order.payload,
                "store": str(store.root),
                "files": str(folder / FILES),
                "surroundings": {part: dict(values) for part, values in order.surroundings.items()},
            },
            time_limit_s=order.time_limit_s,
            log_path=log,
            limits=order.limits,
            env=order.env,
        )
        records = [record for record in store.records() if record.key not in before]
        return Delivery(
            outcome=outcome,
            log=log.read_bytes(),
            records=tuple(record.text() for record in records),
            files={
                f"{record.stage}/{record.key}/{name}": store.file(record.stage, record.key, name).read_bytes()
                for record in records
                for name in vendor_files(record.facts)
            },
        )


def fulfil_here(order: Mapping[str, Any]) -> dict[str, Any]:
    """On a machine that sees the same folders: the same worker, which writes where a local one would."""
    _only_the_threads_of(order["env"])
    outcome = run_in_worker(
        ENTRY_AWAY,
        order["payload"],
        time_limit_s=order["time_limit_s"],
        log_path=Path(order["log_path"]),
        limits=Limits(**order["limits"]),
        env=order["env"],
    )
    return attrs.asdict(outcome)


def _only_the_threads_of(env: Mapping[str, str]) -> None:
    """Ray sets OMP_NUM_THREADS to the CPUs of a task; a local worker has what the person's own environment says."""
    for name in THREAD_VARIABLES:
        if name not in env:
            os.environ.pop(name, None)


def work(payload: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """The worker's side: `npucompose.experiment.run.work`, once it is clear that the key fits this machine."""
    here = Job.of(Composed(tree=payload["tree"], provenance=payload["provenance"])).ingredients.surroundings
    differences = list(_differences(payload["surroundings"], here))
    if differences:
        more = len(differences) - MOST_DIFFERENCES
        raise NpuComposeError(
            "this point's key belongs to the machine that planned the sweep, and the node that was to run it differs: "
            f"{'; '.join(differences[:MOST_DIFFERENCES])}{f' and {more} more' if more > 0 else ''}. Plan the sweep on "
            "a machine like the nodes, or choose nodes like it."
        )
    return experiment.work(payload, tell)


def _differences(planned: Mapping[str, Mapping[str, str]], here: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for part, values in planned.items():
        for name in dict.fromkeys([*values, *here[part]]):
            one, other = values.get(name), here[part].get(name)
            if one != other:
                yield f"{part}.{name} is {_short(one)} there and {_short(other)} on the node"


def _short(value: str | None) -> str:
    return "missing" if value is None else value if len(value) <= 40 else f"{value[:12]}…"
