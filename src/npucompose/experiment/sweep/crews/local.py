"""executor=local: points forked on this machine from a process that has torch loaded, each in its seat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from airflow_free.outcome import Outcome
from airflow_free.pool import Order, Pool
from airflow_free.stage import Event
from npucompose.experiment.run import ENTRY, LOG, Begun, Job
from npucompose.experiment.sweep.crew import Crew
from npucompose.experiment.sweep.schedule import Seat, seat_for, seats
from npucompose.schema.executor import Local

SERVER_LOG = "forkserver.log"
LOADED = (
    "npucompose.experiment.run", "npucompose.experiment.stages", "npucompose.compose.session",
    "npucompose.measure.environment", "npucompose.measure.numerics", "npucompose.measure.timing",
    "npucompose.schema.inductor_source:installed", "npucompose.sinking:OperatorTable.own",
)  # fmt: skip
"""What every job needs beside what its target does; behind a colon, a function whose result is read once and kept."""


class LocalCrew(Crew):
    def __init__(self, options: Local, folder: Path) -> None:
        self.options = options
        self.pool = Pool(folder / SERVER_LOG)
        self.taken: dict[int, Seat] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.__exit__(kind, error, trace)

    def has_room(self, job: Job) -> bool:
        return self._seat(job) is not None

    def _seat(self, job: Job) -> Seat | None:
        return seat_for(seats(job, self.options), list(self.taken.values()), self.options)

    def start(self, number: int, begun: Begun) -> None:
        job = begun.job
        seat = self._seat(job)
        assert seat is not None
        self.taken[number] = seat
        self.pool.start(order_of(number, begun, dict(seat.env)))

    def news(self) -> Sequence[tuple[int, Event | Outcome]]:
        told = self.pool.news()
        for number, news in told:
            if isinstance(news, Outcome):
                del self.taken[number]
        return told


def order_of(number: int, begun: Begun, late_env: dict[str, str]) -> Order:
    """What the pool is told of a job."""
    checked = begun.job.checked
    return Order(
        number=number,
        entry=ENTRY,
        payload=begun.payload,
        time_limit_s=checked.experiment.pipeline.time_limit_s,
        log_path=begun.run_dir / LOG,
        limits=begun.job.limits,
        env=checked.target.environment(),
        loaded=(*checked.target.loaded, *LOADED),
        late_env=late_env,
    )
