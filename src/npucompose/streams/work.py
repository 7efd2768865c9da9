"""What one kernel asks of a device. Knows only numbers; loads no torch."""

from __future__ import annotations

from attrs import frozen


@frozen(slots=True)
class Work:
    """A kernel that runs alone: `Work(us=5.0, cube=24)`."""

    us: float
    cube: int = 0
    """Cube cores that it fills; a device without any computes everything on its vector cores."""
    vector: int = 0
    bandwidth: float = 0.0
    """Share of the device's memory bandwidth that it takes."""
    gang: bool = False
    """It starts with all its cores or not at all: a collective."""
