"""What NPUGraph refuses by itself, and what of a capture's calls a replay runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_simulator.classes import GraphBase
from npu_simulator.device import SimulatedDevice
from simulator_tests.asked import capture, on_stream


def captured(device: SimulatedDevice) -> GraphBase:
    graph = GraphBase()
    with on_stream(device, device.new_stream()):
        graph.capture_begin()
        graph.capture_end()
    return graph


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (GraphBase.replay, r"Called NPUGraph::replay without a preceding successful capture\."),
        (GraphBase.pool, r"Called NPUGraph::pool\(\) without a preceding successful capture\."),
        (GraphBase.super_kernel_optimize, "Called NPUGraph::super_kernel_optimize without a preceding"),
    ],
)
def test_a_graph_is_asked_for_nothing_before_its_capture_and_behind_its_reset(
    device: SimulatedDevice, act: Callable[[GraphBase], Any], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        act(GraphBase())
    graph = captured(device)
    act(graph)
    graph.reset()
    with pytest.raises(RuntimeError, match=words):
        act(graph)


def test_a_dump_before_the_capture_is_warned_of_and_writes_nothing(device: SimulatedDevice, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Called NPUGraph::debug_dump without a preceding successful capture"):
        GraphBase().debug_dump(str(tmp_path / "dump.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_capture_begins_once_for_each_graph_on_a_stream_of_its_own_below_queue_2(device: SimulatedDevice) -> None:
    graph = captured(device)
    with on_stream(device, device.new_stream()):
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match=r"Expected `global`, `thread_local`, or `relaxed`, got local"):
            GraphBase().capture_begin(capture_error_mode="local")
        device.options["TASK_QUEUE_ENABLE"] = "2"
        with pytest.raises(RuntimeError, match="Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture"):
            GraphBase().capture_begin()
    device.options.clear()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        GraphBase().capture_begin()
    assert not device.runtime.capturing


def test_a_capture_ends_on_its_own_stream_and_by_its_own_graph(device: SimulatedDevice) -> None:
    graph, stream = GraphBase(), device.new_stream()
    with on_stream(device, stream):
        graph.capture_begin()
        with on_stream(device, device.new_stream()), pytest.raises(RuntimeError, match="must end on the same stream"):
            graph.capture_end()
        with pytest.raises(RuntimeError, match=r"capture_end\(\) called before capture_begin\(\)"):
            GraphBase().capture_end()  # the runtime ends what the stream captures, as on a device
    assert not device.runtime.capturing
    with on_stream(device, stream), pytest.raises(RuntimeError, match=r"called before capture_begin\(\)") as caught:
        GraphBase().capture_end()
    assert "error code is 107029" in str(caught.value.__cause__)


def test_a_refused_synchronise_leaves_the_capture_valid_and_a_crossed_event_does_not(device: SimulatedDevice) -> None:
    with capture(device) as held:
        with pytest.raises(RuntimeError, match="error code is 107027"):
            device.synchronize()
        torch.ones(2) + 1
    held.replay()
    with pytest.raises(RuntimeError, match="error code is 507903"):
        crossed(device)
    with capture(device) as after:
        torch.ones(2) + 1
    after.replay()


def crossed(device: SimulatedDevice) -> None:
    """A capture waits for an event of another one, and both end."""
    event = device.new_event()
    with capture(device):
        device.record(event, device.current)
        with pytest.raises(RuntimeError, match="error code is 507903"), capture(device):
            waits(device, event)


def waits(device: SimulatedDevice, event: Any) -> None:
    with pytest.raises(RuntimeError, match="error code is 107032"):
        device.wait(event, device.current)


@torch.library.custom_op("strict_captures::told", mutates_args=())
def told(x: torch.Tensor) -> torch.Tensor:
    TOLD.append("called")
    return x * 2


TOLD: list[str] = []


def test_the_python_of_a_custom_operator_runs_at_the_capture_alone(device: SimulatedDevice) -> None:
    TOLD.clear()
    x = torch.ones(2)
    with capture(device) as recording:
        y = told(x) + 1
    x.fill_(4)
    recording.replay()
    assert TOLD == ["called"]
    assert y.tolist() == [9, 9]
    assert [line.partition(" on ")[0] for line in recording.notes] == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_a_branch_is_captured_where_the_host_knows_it_and_refused_where_it_would_read_it(
    device: SimulatedDevice,
) -> None:
    x = torch.ones(2)

    def choose(condition: Any) -> torch.Tensor:
        return torch.ops.higher_order.cond(condition, lambda y: y + 1, lambda y: y - 1, (x,))

    with capture(device) as recording:
        y = choose(True)
        with pytest.raises(RuntimeError, match="error code is 107027"):
            choose(x.sum() > 0)
    x.fill_(4)
    recording.replay()
    assert y.tolist() == [5, 5]


def test_a_higher_order_operator_that_is_not_known_is_refused_by_its_name(device: SimulatedDevice) -> None:
    x = torch.ones(2)
    with capture(device), pytest.raises(NotImplementedError, match=r"a capture of torch.ops.higher_order.while_loop"):
        torch.ops.higher_order.while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,), ())


def test_memory_that_a_capture_resized_has_its_size_and_values_again(device: SimulatedDevice) -> None:
    x = torch.ones(2)
    with capture(device) as recording:
        x.resize_(8).fill_(3)
    assert x.untyped_storage().nbytes() == 8
    assert x.as_strided((2,), (1,)).tolist() == [1, 1]
    assert ["resize_ moves a tensor" in line for line in recording.outside] == [True]
