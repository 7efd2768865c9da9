"""Stages, the graph of their needs, the events of a run, and the runner that skips stages whose record exists. Knows
neither what a stage does nor where it runs.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import attrs
from attrs import field, frozen

from airflow_free.errors import (
    InvalidRequest,
    OrchestratorError,
    exit_status_of,
    paragraph,
    problems_of,
    unknown,
    visible,
)
from airflow_free.store import Record, Store

Live = TypeVar("Live")
Facts = Mapping[str, Any]
"""Plain JSON: what a stage found out, as it goes to disk."""

Kind = Literal["started", "progress", "finished", "reused", "failed", "note"]


@frozen(kw_only=True)
class Event:
    """Something that happened in a run; travels from the worker to the terminal as JSON."""

    kind: Kind
    stage: str = ""
    fraction: float | None = None
    seconds: float | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if value not in (None, "")}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Event:
        """The inverse of `as_dict`, its texts as they may be shown; ValueError for anything else."""
        numbers = (data.get("fraction", 0.0), data.get("seconds", 0.0))
        texts = (data.get("stage", ""), data.get("text", ""))
        if (
            data.get("kind") not in get_args(Kind)
            or not set(data) <= {one.name for one in attrs.fields(Event)}
            or not all(type(one) in (int, float) and math.isfinite(one) for one in numbers)
            or not all(isinstance(one, str) for one in texts)
        ):
            raise ValueError("no event")
        shown: dict[str, Any] = {name: visible(v) if isinstance(v, str) else v for name, v in data.items()}
        return Event(**shown)


Notify = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A `Notify` for those who do not listen."""


class Stage(ABC, Generic[Live]):
    """A step with a result; skipped exactly when nothing it reads or needs changed.

    The facts go to disk. Live values (a compiled program, a connection) do not: a stage asks `live` for them, an object
    that the caller makes and whose methods remember what they made. So a stage whose needs were skipped gets its
    live values remade, and nobody writes a record for that.

        class Bake(Stage[Kitchen]):
            name, needs, reads = "bake", ("knead",), ("oven.heat",)

            def run(self, live, progress):
                return {"weight": live.dough().weight}
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Stages whose facts or live values this one builds on: their keys are part of this stage's key."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of the experiment that the result depends on, beyond those that the needed stages read; dotted paths
    (`oven.heat`) name a part of a field, one that may be missing ends in a question mark (`oven.fan?`)."""
    measures: ClassVar[bool] = False
    """The result is a time; refused where a time means nothing."""

    @abstractmethod
    def run(self, live: Live, progress: Callable[[float], None]) -> Facts:
        """Do the work and return plain JSON; `progress(0.4)` says that two fifths are done."""


def _can_be_ordered(_: Any, __: Any, stages: Mapping[str, Stage[Any]]) -> None:
    for stage in stages.values():
        for need in stage.needs:
            if need not in stages:
                raise InvalidRequest(unknown("stage", need, list(stages), where=f"needs of stage '{stage.name}'"))
    try:
        tuple(TopologicalSorter({name: stage.needs for name, stage in stages.items()}).static_order())
    except CycleError as error:
        raise InvalidRequest(f"stages need each other in a circle: {' -> '.join(error.args[1])}.") from error


@frozen
class StageGraph:
    """Stages by name, in the order given; wrong when two share a name, a need is unknown or needs run in a circle.

    `StageGraph.from_stages([Knead(), Bake(), Taste()]).order(["taste"])` is knead, bake, taste.
    """

    stages: Mapping[str, Stage[Any]] = field(validator=_can_be_ordered)

    @staticmethod
    def from_stages(stages: Iterable[Stage[Any]]) -> StageGraph:
        by_name: dict[str, Stage[Any]] = {}
        for stage in stages:
            if stage.name in by_name:
                raise InvalidRequest(f"two stages are named '{stage.name}'.")
            by_name[stage.name] = stage
        return StageGraph(by_name)

    def order(
        self, wanted: Iterable[str], *, where: str = "the order", cannot_measure: str | None = None
    ) -> tuple[Stage[Any], ...]:
        """The wanted stages and all they need, needs first, otherwise in the order of the graph.

        `cannot_measure` says why a time means nothing here ("this is a simulator and has no speed"): then a stage that
        measures is refused. `where` is the place that names the stages.
        """
        chosen: dict[str, None] = {}
        problems: list[str] = []
        for name in wanted:
            if name not in self.stages:
                problems.append(unknown("stage", name, list(self.stages), where=where))
                continue
            self._add(name, chosen)
        measuring = [name for name in chosen if self.stages[name].measures]
        if cannot_measure is not None and measuring:
            problems.append(f"{cannot_measure}; stage {', '.join(measuring)} measures @ {where}.")
        if problems:
            raise InvalidRequest(*problems)
        return tuple(self.stages[name] for name in chosen)

    def _add(self, name: str, chosen: dict[str, None]) -> None:
        needs = self.stages[name].needs
        for need in [known for known in self.stages if known in needs]:
            self._add(need, chosen)
        chosen.setdefault(name)


class StageFailed(OrchestratorError):
    """A stage raised; `stage` is its name, `cause` what it raised. The exit status is the cause's own."""

    def __init__(self, stage: str, cause: Exception | None = None) -> None:
        cause = OrchestratorError("no cause was given") if cause is None else cause
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

    @staticmethod
    def from_record(record: Record, *, reused: bool) -> Finished:
        return Finished(stage=record.stage, key=record.key, facts=record.facts, reused=reused, seconds=record.seconds)


@frozen(kw_only=True)
class Runner:
    """Skips and stores; `Stage.run` only works."""

    store: Store
    notify: Notify = ignore
    environment: Mapping[str, Any] = field(factory=dict[str, Any])
    provenance: Mapping[str, Any] = field(factory=dict[str, Any])

    def run(self, order: Sequence[Stage[Live]], keys: Mapping[str, str], live: Live) -> tuple[Finished, ...]:
        """Run what has no record, in the order given, and return all in that order.

        Facts of a stage that ran are read back from what was written, so that a first and a second run return equal
        values. StageFailed leaves the records of the stages before it.
        """
        return tuple(self._one(stage, keys[stage.name], live) for stage in order)

    def _one(self, stage: Stage[Live], key: str, live: Live) -> Finished:
        record = self.store.read(stage.name, key)
        if record is not None:
            self.notify(Event(kind="reused", stage=stage.name, seconds=record.seconds))
            return Finished.from_record(record, reused=True)
        self.notify(Event(kind="started", stage=stage.name))
        began = time.perf_counter()
        try:
            facts = stage.run(
                live, lambda fraction: self.notify(Event(kind="progress", stage=stage.name, fraction=fraction))
            )
            seconds = time.perf_counter() - began
            record = self._write(stage.name, key, facts, seconds)
        except Exception as error:
            self.notify(Event(kind="failed", stage=stage.name, text=paragraph(error)))
            raise StageFailed(stage.name, error) from error
        self.notify(Event(kind="finished", stage=stage.name, seconds=seconds))
        return Finished.from_record(record, reused=False)

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
