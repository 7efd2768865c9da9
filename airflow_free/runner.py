"""Runs stages in order, skipping those whose record exists. Knows neither what a stage does nor where it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from airflow_free.errors import OrchestratorError, exit_status_of, paragraph, problems_of
from airflow_free.stage import Event, Facts, Live, Notify, Stage, ignore
from airflow_free.store import Record, Store


class StageFailed(OrchestratorError):
    """A stage raised; `stage` is its name, `cause` what it raised. The exit status is the cause's own."""

    def __init__(self, stage: str, cause: Exception) -> None:
        self.stage, self.cause = stage, cause
        self.facts: Facts = {}
        """What is known all the same, for the report."""
        super().__init__(f"stage '{stage}' failed: {paragraph(cause)}")
        self.exit_status = exit_status_of(cause) or self.exit_status  # pyright: ignore[reportAttributeAccessIssue]
        self.problems = problems_of(cause) or (str(self),)

    def __reduce__(self) -> tuple[type[StageFailed], tuple[str, Exception]]:
        return type(self), (self.stage, self.cause)


@frozen(kw_only=True)
class Finished:
    """A stage that is done: its facts came from the store (`reused`) or from this run."""

    stage: str
    key: str
    facts: Facts
    reused: bool
    seconds: float
    """What the stage took when it ran, which for a reused one was another run."""


@frozen(kw_only=True)
class Runner:
    """Skips and stores; `Stage.run` only works."""

    store: Store
    notify: Notify = ignore
    environment: Mapping[str, Any] = field(factory=dict[str, Any])
    provenance: Mapping[str, Any] = field(factory=dict[str, Any])

    def run(
        self,
        order: Sequence[Stage[Live]],
        keys: Mapping[str, str],
        live: Live,
        *,
        on_finished: Callable[[Finished], None] | None = None,
    ) -> tuple[Finished, ...]:
        """Run what has no record, in the order given, and return all in that order.

        Facts of a stage that ran are read back from what was written, so that a first and a second run return equal
        values. StageFailed leaves the records of the stages before it.
        """
        done: list[Finished] = []
        for stage in order:
            finished = self._one(stage, keys[stage.name], live)
            done.append(finished)
            if on_finished is not None:
                on_finished(finished)
        return tuple(done)

    def _one(self, stage: Stage[Live], key: str, live: Live) -> Finished:
        record = self.store.read(stage.name, key)
        if record is not None:
            self.notify(Event(kind="reused", stage=stage.name, seconds=record.seconds))
            return _finished(record, reused=True)
        self.notify(Event(kind="started", stage=stage.name))
        began = time.perf_counter()
        try:
            facts = stage.run(live, lambda fraction: self.notify(_progress(stage.name, fraction)))
            seconds = time.perf_counter() - began
            record = self._write(stage.name, key, facts, seconds)
        except Exception as error:
            self.notify(Event(kind="failed", stage=stage.name, text=paragraph(error)))
            raise StageFailed(stage.name, error) from error
        self.notify(Event(kind="finished", stage=stage.name, seconds=seconds))
        return _finished(record, reused=False)

    def _write(self, stage: str, key: str, facts: Facts, seconds: float) -> Record:
        try:
            as_read: dict[str, Any] = json.loads(json.dumps(facts, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise OrchestratorError(f"its facts are not plain JSON: {error}") from error
        record = Record(
            stage=stage,
            key=key,
            facts=as_read,
            seconds=seconds,
            environment=self.environment,
            provenance=self.provenance,
        )
        self.store.write(record)
        return record


def _progress(stage: str, fraction: float) -> Event:
    return Event(kind="progress", stage=stage, fraction=fraction)


def _finished(record: Record, *, reused: bool) -> Finished:
    return Finished(stage=record.stage, key=record.key, facts=record.facts, reused=reused, seconds=record.seconds)
