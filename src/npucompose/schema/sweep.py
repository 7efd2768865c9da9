"""The points of a sweep: how they are found, where and how they are run, and who is notified of what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from npucompose.errors import unknown
from npucompose.table.options import NAME, option

PARAMETERS = (
    "account", "comment", "constraint", "exclude", "hint", "licenses", "mem", "nice", "nodelist", "qos", "reservation",
)  # fmt: skip
"""Options of sbatch that say where and when, and name neither a file nor a program."""

PLAIN = re.compile(r"[\w.,:@=+*&|()\[\]/-]+")


@frozen(kw_only=True)
class Local:
    """Forked from a process of this machine that has torch loaded."""

    name: Literal["local"] = option("local", "the choice of conf/executor this is")
    jobs: int | None = option(
        None, "jobs at once, of those that measure nothing; null: one for each core", ge=1, optional=True
    )
    devices: tuple[int, ...] = option(
        factory=tuple, doc="devices to use, one measuring job on each at a time; empty: target.index", ge=0
    )


@frozen(kw_only=True)
class Ray:
    """Tasks on a Ray cluster that is there already; its nodes need npucompose and no folder in common."""

    name: Literal["ray"] = option("ray", "the choice of conf/executor this is")
    address: str = option("auto", "host:port of the head node; auto: the cluster that this machine belongs to")
    jobs: int | None = option(None, "jobs at once; null: as many as fit into the cluster", ge=1, optional=True)
    cpus: float | None = option(
        None,
        "CPUs for each job; null: 1, or all of a node for a job that measures on the CPU",
        gt=0,
        optional=True,
    )
    devices: float | None = option(
        None, "NPUs or GPUs for each job; null: 1 if the target is one of them", ge=0, optional=True
    )
    resources: Mapping[str, float] = option(
        factory=dict, doc="{name: amount} of the cluster's own resources for each job: {a3: 1}"
    )


@frozen(kw_only=True)
class Slurm:
    """Jobs of Slurm, submitted by submitit; folder and store have to lie on a disk that the nodes share."""

    name: Literal["slurm"] = option("slurm", "the choice of conf/executor this is")
    cluster: Literal["slurm", "local"] = option(
        "slurm", "local: submitit's own processes on this machine instead, to try the same without Slurm"
    )
    jobs: int = option(32, "jobs in the queue or running at once", ge=1)
    partition: str | None = option(None, "Slurm's partition; null: its default")
    time_limit_min: int | None = option(
        None, "Slurm's time limit; null: pipeline.time_limit_s plus ten minutes", ge=1, optional=True
    )
    cpus: int = option(1, "CPUs for each job", ge=1)
    gres: str | None = option(None, "generic resources for each job: npu:1")
    exclusive: bool | None = option(None, "a whole node for each job; null: for jobs that measure")
    parameters: Mapping[str, str | int] = option(
        factory=dict, doc="further options of sbatch: {account: me, qos: high}"
    )
    poll_s: float = option(2.0, "seconds between two queries of the queue", gt=0, le=86_400)

    def __attrs_post_init__(self) -> None:
        """These become lines of a shell script: no text of a file may end one and begin another."""
        for name in self.parameters:
            if name not in PARAMETERS:
                raise ValueError(unknown("option of sbatch", name, PARAMETERS).rstrip("."))
        for name, value in {"partition": self.partition, "gres": self.gres, **self.parameters}.items():
            if value is not None and not PLAIN.fullmatch(str(value)):
                raise ValueError(f"'{name}' must be one plain word for sbatch: {value!r}")


Executor = Local | Ray | Slurm


@frozen(kw_only=True)
class Tracker:
    """Told when a run is finished, from a process of its own; decides no result and can lose none."""

    name: str = option("none", "the choice of conf/tracker this is", name=NAME)
    place: str | None = option(
        None,
        "mlflow: a tracking URI; tensorboard: a folder; wandb: a server's address; null: in the store; "
        "accepted only on the command line",
    )
    experiment: str = option("npucompose", "name of the experiment in the tracker")


# How the points are found: all that the command line spells out, or asked for one after another.

Direction = Literal["minimize", "maximize"]


@frozen(kw_only=True)
class Dimension:
    """What one key may be: `{one_of: [eager, reduce-overhead]}`, `{low: 1, high: 8}`, `{low: 0.1, high: 9, log: true}`.

    It is an integer where `low`, `high` and `step` are.
    """

    one_of: tuple[Any, ...] | None = option(None, "the values, as they are written in YAML")
    low: int | float | None = option(None, "the smallest number")
    high: int | float | None = option(None, "the largest number")
    step: int | float | None = option(None, "from one number to the next; null: 1 for integers, none for others")
    log: bool = option(False, "small numbers matter as much as large ones")
    when: Mapping[str, tuple[Any, ...]] = option(
        factory=dict, doc="{key named before: its values} for which this key is set at all"
    )

    def __attrs_post_init__(self) -> None:
        if (self.one_of is None) == (self.low is None or self.high is None):
            raise ValueError("a dimension has either 'one_of', or 'low' and 'high'")
        if self.one_of is not None:
            if not self.one_of or self.step is not None or self.log:
                raise ValueError("'one_of' takes at least one value, and neither 'step' nor 'log'")
            return
        assert self.low is not None
        assert self.high is not None
        if self.low > self.high or (self.step is not None and self.step <= 0):
            raise ValueError(f"from 'low' {self.low} to 'high' {self.high} by 'step' {self.step} there is nothing")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("'log' needs a 'low' above 0 and takes no 'step'")

    @property
    def whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step) if number is not None)


@frozen(kw_only=True)
class NoSearch:
    """Every combination of the values on the command line."""

    name: Literal["none"] = option("none", "the choice of conf/search this is")


@frozen(kw_only=True)
class Optuna:
    """Optuna proposes points of `space`, told what became of those before."""

    name: Literal["optuna"] = option("optuna", "the choice of conf/search this is")
    trials: int = option(50, "number of trials in all; a larger number continues an earlier search", ge=1)
    objectives: Mapping[str, Direction] = option(
        factory=dict,
        doc="{figure of `npucompose report`: minimize or maximize}; several: a front",
    )
    space: Mapping[str, Dimension] = option(factory=dict, doc="{group or dotted key: what it may be}")
    sampler: Literal["tpe", "random"] = option("tpe", "what proposes trials")
    seed: int = option(0, "of the sampler", ge=0)


Search = NoSearch | Optuna
