"""A simulated device in this process: nothing of torch_npu is replaced for it."""

from __future__ import annotations

import pytest

from npu_simulator import classes
from npu_simulator.classes import EventBase, GraphBase, StreamBase
from npu_simulator.device import SimulatedDevice


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimulatedDevice:
    """A device for one test: the base classes of the simulated runtime know which one is theirs."""
    for holder in (StreamBase, EventBase, GraphBase):
        monkeypatch.setattr(holder, "_device", None, raising=False)
    made = SimulatedDevice()
    classes.attach(made)
    return made
