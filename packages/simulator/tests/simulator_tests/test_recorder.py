"""A capture of the simulated runtime runs every call once; the world is as before when it is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npu_simulator.device import SimulatedDevice
from npu_simulator.recorder import RecordedCall
from simulator_tests.asked import capture


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


def test_memory_from_outside_is_as_before_the_capture_and_the_graphs_own_is_not(device: SimulatedDevice) -> None:
    outside = torch.zeros(3)
    with capture(device):
        own = torch.zeros(3)
        outside.add_(1)
        outside[1:].mul_(2)
        own.add_(1)
    assert outside.tolist() == [0, 0, 0]
    assert own.tolist() == [1, 1, 1]


def test_a_capture_draws_no_random_numbers(device: SimulatedDevice) -> None:
    state, own = torch.get_rng_state(), torch.Generator().manual_seed(3)
    of_its_own = own.get_state()
    with capture(device):
        torch.rand(7)
        torch.rand(2, generator=own)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(own.get_state(), of_its_own)


def test_an_empty_copy_holds_real_values_and_keywords_reach_the_call(device: SimulatedDevice) -> None:
    x = torch.tensor([3.0, 4.0])
    with capture(device) as recording:
        like = torch.empty_like(x)
        out = torch.zeros(2)
        torch.add(x, 1, out=out)
        torch.ops.aten.add_.Tensor(self=out, other=x)
    assert like.tolist() == [3, 4]
    assert out.tolist() == [7, 9]
    calls = {str(call.func): call for call in recording.tape}
    assert [bool(calls[name].computes) for name in ("aten.empty_like.default", "aten.add.out", "aten.add_.Tensor")] == [
        False, True, True
    ]  # fmt: skip
    assert calls["aten.add.out"].kwargs["out"] is out
    assert all(isinstance(call.kwargs, dict) for call in recording.tape)


def test_memory_is_remembered_as_it_was_before_its_first_write(device: SimulatedDevice) -> None:
    outside = torch.zeros(2)
    with capture(device):
        outside.add_(1)
        outside.add_(1)
        torch.add(outside, 1, out=outside)
    assert outside.tolist() == [0, 0]


def test_a_call_that_writes_runs_once_more_and_copies_nothing() -> None:
    x = torch.zeros(2)
    torch.ops.aten.add_.Tensor(x, 1)
    other = torch.full((2,), 9.0)
    RecordedCall(func=torch.ops.aten.add_.Tensor, args=(x, 1), kwargs={}, out=other, stream=0).run()
    assert (x.tolist(), other.tolist()) == ([2, 2], [9, 9])
    two = RecordedCall(func=torch.ops.aten.neg.default, args=(x,), kwargs={}, out=(x, x), stream=0)
    with pytest.raises(ValueError, match="zip"):
        two.run()


def test_what_writes_computes_and_a_view_does_not() -> None:
    x = torch.zeros(2)

    def computes(func: Any, out: torch.Tensor, *more: Any) -> bool:
        return RecordedCall(func=func, args=(x, *more), kwargs={}, out=out, stream=0).computes

    assert computes(torch.ops.aten.add_.Tensor, x, 1)
    assert computes(torch.ops.aten.neg.default, -x)
    assert not computes(torch.ops.aten.view.default, x.view(1, 2), [1, 2])
    assert not computes(torch.ops.aten._unsafe_view.default, x.view(1, 2), [1, 2])


def test_a_file_that_a_call_writes_and_what_it_prints_are_made_at_every_replay() -> None:
    for name in ("save_npugraph_tensor", "print_npugraph_tensor"):
        schema = torch._C.parse_schema(f"npu::{name}(Tensor input) -> ()")
        func: Any = SimpleNamespace(_schema=schema, is_view=False)
        assert RecordedCall(func=func, args=(torch.ones(1),), kwargs={}, out=None, stream=0).computes
    scope: Any = SimpleNamespace(_schema=torch._C.parse_schema("air::record(Tensor input) -> Tensor"), is_view=False)
    assert not RecordedCall(func=scope, args=(), kwargs={}, out=torch.ones(1), stream=0).computes
