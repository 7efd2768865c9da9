"""Who runs the points of a sweep: what the loop of `sweep.run` needs of this machine, Ray or Slurm."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from airflow_free.outcome import Outcome
from airflow_free.stage import Event
from npucompose.errors import MissingExtra
from npucompose.experiment.run import Begun, Job
from npucompose.schema.executor import Executor, Local, Ray

PACKAGES = {"ray": "ray", "slurm": "submitit"}
"""What an executor needs: a package that the extra of the executor's name brings."""


class Crew(ABC):
    """`with crew_of(executor, folder) as crew`; leaving it ends whatever still runs.

    A job's last news is an Outcome, and the job is run once: nobody repeats one that crashed.
    """

    def __enter__(self) -> Crew:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def has_room(self, job: Job) -> bool:
        """Whether the job could be started now; a time is worth something only where nothing else runs beside it."""

    @abstractmethod
    def start(self, number: int, begun: Begun) -> None:
        """Have it run, under this number; asked for only when there is room. Returns at once."""

    @abstractmethod
    def news(self) -> Sequence[tuple[int, Event | Outcome]]:
        """Sleep until something happened and tell it."""


def check_installed(executor: Executor) -> None:
    """Raise MissingExtra where the package of an executor is not there; asked before anything is made."""
    package = PACKAGES.get(executor.name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise MissingExtra(f"executor={executor.name}", package, executor.name)


def crew_of(executor: Executor, folder: Path) -> Crew:
    """The crew for a sweep whose folder is `folder`."""
    if isinstance(executor, Local):
        from npucompose.experiment.sweep.crews.local import LocalCrew

        return LocalCrew(executor, folder)
    if isinstance(executor, Ray):
        from npucompose.experiment.sweep.crews.ray import RayCrew

        return RayCrew(executor)
    from npucompose.experiment.sweep.crews.slurm import SlurmCrew

    return SlurmCrew(executor, folder)
