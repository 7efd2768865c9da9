"""Where and how the points of a sweep are run, and who is told what came out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from npucompose.errors import unknown
from npucompose.table.options import option

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
        None, "points at once, of those that measure nothing; null: one for each core", ge=1, optional=True
    )
    devices: tuple[int, ...] = option(
        factory=tuple, doc="devices that are handed out, one measuring point on each at a time; empty: as target.index"
    )


@frozen(kw_only=True)
class Ray:
    """Tasks on a Ray cluster that is there already; its nodes need npucompose and no folder in common."""

    name: Literal["ray"] = option("ray", "the choice of conf/executor this is")
    address: str = option("auto", "of the head, host:port; auto: the cluster that this machine belongs to")
    jobs: int | None = option(
        None, "points under way at once; null: as many as the cluster has room for", ge=1, optional=True
    )
    cpus: float | None = option(
        None,
        "CPUs that a point asks for; null: 1, and all that a node has for a point that measures on the CPU",
        gt=0,
        optional=True,
    )
    devices: float | None = option(
        None, "NPUs or GPUs that a point asks for; null: 1 where the target is one of them", ge=0, optional=True
    )
    resources: Mapping[str, float] = option(
        factory=dict, doc="{name: amount} of the cluster's own resources that a point asks for: {a3: 1}"
    )


@frozen(kw_only=True)
class Slurm:
    """Jobs of Slurm, submitted by submitit; folder and store have to lie on a disk that the nodes share."""

    name: Literal["slurm"] = option("slurm", "the choice of conf/executor this is")
    cluster: Literal["slurm", "local"] = option(
        "slurm", "local: submitit's own processes on this machine instead, to try the same without Slurm"
    )
    jobs: int = option(32, "points in the queue or running at once", ge=1)
    partition: str | None = option(None, "Slurm's partition; null: its default")
    time_limit_min: int | None = option(
        None, "what Slurm is told; null: pipeline.time_limit_s and ten minutes", ge=1, optional=True
    )
    cpus: int = option(1, "CPUs for each point", ge=1)
    gres: str | None = option(None, "generic resources for each point: npu:1")
    exclusive: bool | None = option(None, "a node for each point; null: for those that measure")
    parameters: Mapping[str, str | int] = option(
        factory=dict, doc="further options of sbatch: {account: me, qos: high}"
    )
    poll_s: float = option(2.0, "seconds between two looks at the queue", gt=0, le=86_400)

    def __attrs_post_init__(self) -> None:
        """These become lines of a shell script: no text of a file may end one and begin another."""
        for name in self.parameters:
            if name not in PARAMETERS:
                raise ValueError(unknown("option of sbatch", name, PARAMETERS).rstrip("."))
        for name, value in {"partition": self.partition, "gres": self.gres, **self.parameters}.items():
            if value is not None and not PLAIN.fullmatch(str(value)):
                raise ValueError(f"'{name}' must be one plain word for sbatch: {value!r}")


Executor = Local | Ray | Slurm

TrackerName = Literal["none", "mlflow", "tensorboard"]


@frozen(kw_only=True)
class Tracker:
    """Told when a run is finished, from a process of its own; decides no result and can lose none."""

    name: TrackerName = option("none", "the choice of conf/tracker this is")
    place: str | None = option(
        None, "mlflow: a tracking URI; tensorboard: a folder; null: in the store; only the command line can say so"
    )
    experiment: str = option("npucompose", "what the runs are filed under there")
