"""What a device is taken to be when a plan's time is predicted: cores, rates and the price of an event. Plain numbers.

A prediction compares plans of one graph on one device; it is no measurement. Every figure can be replaced by one that
was measured (`streams.device.event_us=0.4`).
"""

from __future__ import annotations

import attrs
from attrs import frozen

from npucompose.table.options import option


@frozen(kw_only=True)
class DeviceModel:
    """Nominal figures of one device."""

    name: str
    cube: int
    """Cores for matrix products; 0 where one kind of core computes everything."""
    vector: int
    launch_us: float
    """From the end of one kernel to the start of the next on the same stream."""
    event_us: float
    """From the end of the recording kernel to the start of the waiting one, beyond launch_us."""
    stream_us: float
    """Until the first kernel of a side stream can start."""
    cube_gflops: float
    """Of one core, in matrix products."""
    vector_gflops: float
    """Of one core, in everything else."""
    gbytes_s: float
    """Memory bandwidth of the whole device."""
    fork_us: float | None = None
    """What it costs to spread one kernel over the threads that torch gives it when no streams are in use; None where a
    kernel takes all the cores that it can by itself."""

    def lacks(self, aicore: int, vectorcore: int) -> str | None:
        """`Atlas A2, nominal has 24 cube and 48 vector cores` where that many are not there."""
        if aicore <= (self.cube or self.vector) and vectorcore <= self.vector:
            return None
        cores = f"{self.cube} cube and {self.vector} vector cores" if self.cube else f"{self.vector} cores of one kind"
        return f"{self.name} has {cores}"


ATLAS_A2 = DeviceModel(
    name="Atlas A2, nominal",
    cube=24,
    vector=48,
    launch_us=2.0,
    event_us=2.0,
    stream_us=2.0,
    cube_gflops=13_000.0,
    vector_gflops=200.0,
    gbytes_s=1600.0,
)
"""Cores as TorchAir's document on core limits has them (24 cube, 48 vector); rates and latencies are round assumptions
of the right order and no measurement: calibrate them before a prediction is believed."""


def cpu(cores: int) -> DeviceModel:
    """A machine whose streams are worker threads, a kernel on one core each.

    Round figures of the right order for the native replayer, and no measurement of this machine
    (`streams.cost=measured` and `streams.device.*` replace them). A thread that is awake starts its stream in 0.2 µs
    and one that has gone to sleep in some 50; 2 keeps graphs of a few microseconds, which would lose on the latter, on
    one stream.
    """
    return DeviceModel(
        name=f"CPU with {cores} cores, nominal",
        cube=0,
        vector=cores,
        launch_us=0.1,
        event_us=0.1,
        stream_us=2.0,
        cube_gflops=60.0,
        vector_gflops=4.0,
        gbytes_s=20.0,
        fork_us=5.0,
    )


@frozen(kw_only=True)
class Calibration:
    """Measured figures that replace nominal ones; null keeps the target's own."""

    cube: int | None = option(None, "cube cores; 0: one kind of core computes everything", ge=0, optional=True)
    vector: int | None = option(None, "vector cores", ge=1, optional=True)
    launch_us: float | None = option(None, "between two kernels of one stream", ge=0, optional=True)
    event_us: float | None = option(None, "from a record to the kernel that waits for it", ge=0, optional=True)
    stream_us: float | None = option(None, "until a side stream's first kernel can start", ge=0, optional=True)
    cube_gflops: float | None = option(None, "of one core, in matrix products", gt=0, optional=True)
    vector_gflops: float | None = option(None, "of one core, in everything else", gt=0, optional=True)
    gbytes_s: float | None = option(None, "memory bandwidth of the device", gt=0, optional=True)

    def onto(self, model: DeviceModel) -> DeviceModel:
        """`model` with the figures that are given."""
        given = {name: value for name, value in attrs.asdict(self).items() if value is not None}
        return attrs.evolve(model, **given, name=f"{model.name}, calibrated") if given else model
