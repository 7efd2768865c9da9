"""Who may run beside whom: a time is worth something only when nothing else runs on what is measured. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import frozen

from npucompose.experiment.run import Job
from npucompose.machine import usable_cores
from npucompose.schema.executor import Local


@frozen(kw_only=True)
class Seat:
    """What a job takes while it runs: `Seat(device="cuda:0", measures=True)`."""

    device: str
    """`cpu` is the whole machine; `cuda:1`, `npu:0` are devices beside it."""
    measures: bool
    env: tuple[tuple[str, str], ...] = ()
    """The variable that shows the job its device, where devices are handed out."""

    @property
    def whole_machine(self) -> bool:
        return self.measures and self.device == "cpu"


def seats(job: Job, options: Local) -> tuple[Seat, ...]:
    """The seats that the job could take, the best first."""
    target, measures = job.checked.target, job.measures
    variable = target.device_variable
    if variable is None:
        return (Seat(device="cpu", measures=measures),)
    if not options.devices:
        return (Seat(device=f"{target.name}:{target.device_index}", measures=measures),)
    return tuple(
        Seat(device=f"{target.name}:{device}", measures=measures, env=((variable, str(device)),))
        for device in options.devices
    )


def seat_for(wanted: Sequence[Seat], taken: Collection[Seat], options: Local) -> Seat | None:
    """A seat beside those that are taken, or None: wait.

    A job that measures on the CPU runs alone. One that measures on a device has it alone, and beside it run only jobs
    that measure on other devices. Jobs that measure nothing share everything, `options.jobs` at once.
    """
    measures = wanted[0].measures
    if any(seat.measures != measures or seat.whole_machine for seat in taken) or (taken and wanted[0].whole_machine):
        return None
    devices = [seat.device for seat in taken]
    if measures:
        return next((seat for seat in wanted if seat.device not in devices), None)
    if len(taken) >= (options.jobs or usable_cores()):
        return None
    return min(wanted, key=lambda seat: devices.count(seat.device))
