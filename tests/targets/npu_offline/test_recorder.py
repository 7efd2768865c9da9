"""A capture of the stand-in runs every call once; the world is as before when it is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.targets.npu_offline.standin.recorder import Recorder


def recorder(*own: torch.Tensor) -> Recorder:
    """One that records for a graph which has allocated `own`."""
    stream = SimpleNamespace(stream_id=0)
    graph: Any = SimpleNamespace(
        blocks={tensor.untyped_storage().data_ptr() for tensor in own},
        device=SimpleNamespace(current_stream=lambda: stream),
        taped_call=lambda call, written: None,
    )
    return Recorder(graph)


def test_memory_from_outside_is_as_before_the_capture_and_the_graphs_own_is_not() -> None:
    outside, own = torch.zeros(3), torch.zeros(3)
    recording = recorder(own)
    with recording:
        outside.add_(1)
        outside[1:].mul_(2)
        own.add_(1)
    assert outside.tolist() == [1, 2, 2]
    recording.undo()
    assert outside.tolist() == [0, 0, 0]
    assert own.tolist() == [1, 1, 1]


def test_a_capture_draws_no_random_numbers() -> None:
    recording = recorder()
    state = torch.get_rng_state()
    with recording:
        torch.rand(7)
    assert not torch.equal(torch.get_rng_state(), state)
    recording.undo()
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_host_waits_for_is_refused() -> None:
    with pytest.raises(RuntimeError, match="needs its answer on the host"), recorder():
        torch.ones(1).item()
