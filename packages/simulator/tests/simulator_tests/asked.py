"""What tests ask of a simulated device and of the order of a capture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npu_simulator.device import SimulatedDevice
from npu_simulator.graph import SimulatedGraph
from npucompose.races import RaceFinder


@contextmanager
def on_stream(device: SimulatedDevice, stream: int) -> Iterator[None]:
    """The stream with this number is the current one."""
    device.enter(stream)
    try:
        yield
    finally:
        device.leave()


@contextmanager
def capture(device: SimulatedDevice, stream: int | None = None, pool: Any = None) -> Iterator[SimulatedGraph]:
    """A capture on `stream`, or on a new one."""
    recording = SimulatedGraph(device)
    with on_stream(device, stream or device.new_stream()):
        recording.begin(pool)
        try:
            yield recording
        finally:
            recording.end()


def happens_before(order: RaceFinder) -> set[tuple[str, str]]:
    """(earlier, later) of the calls that are ordered however long each of them takes."""
    return {
        (first.what, then.what)
        for then in order.tasks
        for first in order.tasks
        if first is not then and then.clock.get(first.stream, 0) >= first.time
    }
