"""What one kernel asks of a device. Knows only numbers; loads no torch."""

from __future__ import annotations

from attrs import frozen


@frozen(slots=True)
class Work:
    """A kernel that runs alone: `Work(us=5.0, cube=24)`."""

    us: float
    """On its stream, beside others."""
    in_a_row_us: float | None = None
    """When all kernels run one after the other and this one may take threads of its own; None: the same."""
    cube: int = 0
    """Cube cores that it fills; a device without any computes everything on its vector cores."""
    vector: int = 0
    bandwidth: float = 0.0
    """Share of the device's memory bandwidth that it takes."""
    gang: bool = False
    """It starts with all its cores or not at all: a collective."""
