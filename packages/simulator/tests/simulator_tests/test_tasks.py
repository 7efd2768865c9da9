"""Task groups by the runtime's rules: what an update changes, and what each wrong use answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npu_simulator.device import SimulatedDevice
from npu_simulator.tasks import TaskGroup, TaskGroups
from simulator_tests.asked import capture, on_stream

aten = torch.ops.aten


class Host:
    """A device, its task groups, two streams and an external event."""

    def __init__(self) -> None:
        self.device = SimulatedDevice()
        self.groups = TaskGroups(self.device)
        self.main, self.update = (SimpleNamespace(stream_id=self.device.new_stream()) for _ in range(2))
        self.event = self.device.new_event(external=True)

    def updated(self, handle: TaskGroup, *calls: Callable[[], Any], stream: Any = None) -> None:
        stream = stream or self.update
        with on_stream(self.device, stream.stream_id):
            self.groups.update_begin(stream, handle)
            for call in calls:
                call()
            self.groups.update_end(stream)


@pytest.fixture
def host() -> Host:
    return Host()


def doubled(host: Host, x: torch.Tensor) -> tuple[Any, TaskGroup, torch.Tensor]:
    """A graph with y = 2x as a group, the group, and z = y + 1."""
    y = torch.zeros(2)
    with capture(host.device, host.main.stream_id) as graph:
        torch.neg(x)
        host.groups.begin(host.main)
        torch.mul(x, 2, out=y)
        handle = host.groups.end(host.main)
        z = y + 1
    return graph, handle, z


def test_a_task_gets_new_arguments_between_replays(host: Host) -> None:
    x = torch.ones(2)
    graph, handle, z = doubled(host, x)
    y = handle.calls[0].out
    assert [call.func for call in handle.calls] == [aten.mul.out]
    assert isinstance(handle.task_group, int)
    graph.replay()
    assert z.tolist() == [3, 3]
    host.updated(handle, lambda: torch.mul(x, 5, out=y))
    assert (y.tolist(), z.tolist()) == ([2, 2], [3, 3]), "an update runs nothing"
    assert host.device.ledger.lines[-1] == "task_update 1 calls"
    graph.replay()
    assert (y.tolist(), z.tolist()) == ([5, 5], [6, 6])


def test_an_update_may_write_other_memory_which_the_rest_of_the_graph_does_not_read(host: Host) -> None:
    x = torch.ones(2)
    graph, handle, z = doubled(host, x)
    other = torch.zeros(2)
    host.updated(handle, lambda: torch.mul(x, 7, out=other))
    graph.replay()
    assert (other.tolist(), z.tolist()) == ([7, 7], [1, 1])


def test_tasks_are_updated_in_order_and_what_is_no_kernel_is_done_at_once(host: Host) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    with capture(host.device, host.main.stream_id) as graph:
        host.groups.begin(host.main)
        y.add_(1)
        y.mul_(2)
        handle = host.groups.end(host.main)
    made: list[torch.Tensor] = []

    def calls() -> None:
        made.append(x.view(1, 2))
        y.add_(3)
        y.mul_(4)

    host.updated(handle, calls)
    assert (made[0].shape, y.tolist()) == ((1, 2), [0, 0])
    graph.replay()
    assert y.tolist() == [12, 12]


def test_launches_on_another_stream_run_while_a_group_is_updated(host: Host) -> None:
    x = torch.ones(2)
    _, handle, _ = doubled(host, x)
    y = handle.calls[0].out
    with on_stream(host.device, host.update.stream_id):
        host.groups.update_begin(host.update, handle)
        torch.mul(x, 5, out=y)
        with on_stream(host.device, host.main.stream_id):
            assert (x + 1).tolist() == [2, 2]
        host.groups.update_end(host.update)
    assert handle.calls[0].args[1] == 5


def test_another_thread_updates_while_the_replay_stands_at_the_external_event(host: Host) -> None:
    """The form of the runtime's guide: wait for the event, reset it, the group; the update records the event."""
    x, y = torch.ones(2), torch.zeros(2)
    with capture(host.device, host.main.stream_id) as graph:
        before = x + 10
        host.device.wait(host.event, host.main.stream_id)
        host.device.reset(host.event, host.main.stream_id)
        host.groups.begin(host.main)
        torch.mul(x, 2, out=y)
        handle = host.groups.end(host.main)

    def update(factor: int) -> None:
        assert host.device.current == 0, "a thread begins on the default stream"
        host.updated(handle, lambda: torch.mul(x, factor, out=y))
        host.device.record(host.event, host.update.stream_id)

    for factor, late in ((3, True), (4, False)):
        thread = threading.Thread(target=update, args=(factor,))
        acts = [graph.replay, lambda t=thread: (t.start(), t.join())]
        with on_stream(host.device, host.main.stream_id):
            for act in acts if late else reversed(acts):
                act()
            assert host.device.current == host.main.stream_id
        assert (before.tolist(), y.tolist()) == ([11, 11], [factor, factor])
    host.device.synchronize()


# What is refused, with the runtime's code.


def refused(code: int, act: Callable[[], Any], *words: str) -> None:
    with pytest.raises(RuntimeError, match=rf"NPU function error: .*, error code is {code}\b") as caught:
        act()
    assert [word for word in words if word not in str(caught.value)] == []


def test_groups_are_opened_once_on_a_stream_that_captures_and_closed_before_the_capture_ends(host: Host) -> None:
    refused(107029, lambda: host.groups.begin(host.main), "TaskGrpBegin(stream)", "not captured")
    refused(107029, lambda: host.groups.end(host.main))
    with capture(host.device, host.main.stream_id):
        refused(107029, lambda: host.groups.begin(host.update))
        refused(107033, lambda: host.groups.end(host.main))
        host.groups.begin(host.main)
        refused(107033, lambda: host.groups.begin(host.main))
        host.groups.end(host.main)
    assert not host.device.graphs

    def left_open() -> None:
        with capture(host.device, host.main.stream_id):
            host.groups.begin(host.main)
            torch.neg(torch.ones(1))

    refused(107033, left_open)
    assert host.device.capturing is None
    doubled(host, torch.ones(2))
    assert len(host.device.graphs) == 1, "the next capture works"


@pytest.mark.parametrize(
    "act",
    [lambda host, side: torch.ones(1) + 1, lambda host, side: host.device.record(host.device.new_event(), side)],
)
def test_a_group_is_interrupted_by_a_task_on_another_stream_of_the_capture(host: Host, act: Any) -> None:
    side, event = host.device.new_stream(), host.device.new_event()

    def captured() -> None:
        with capture(host.device, host.main.stream_id):
            host.device.record(event, host.main.stream_id)
            host.device.wait(event, side)
            host.groups.begin(host.main)
            with on_stream(host.device, side):
                refused(107034, lambda: act(host, side), "on another stream")
            refused(107034, lambda: host.groups.end(host.main))

    refused(507903, captured)


@pytest.mark.parametrize("act", ["record", "wait", "reset"])
def test_only_kernels_can_be_in_a_group(host: Host, act: str) -> None:
    with capture(host.device, host.main.stream_id):
        host.groups.begin(host.main)
        refused(507009, lambda: getattr(host.device, act)(host.event, host.main.stream_id), f"event.{act}()")
        refused(507009, lambda: host.groups.end(host.main))


def test_an_update_is_begun_once_on_a_stream_that_does_not_capture(host: Host) -> None:
    _, handle, _ = doubled(host, torch.ones(2))
    with capture(host.device, host.main.stream_id):
        refused(107027, lambda: host.groups.update_begin(host.main, handle), "107027")
        refused(107027, lambda: host.groups.update_end(host.main))
    refused(107033, lambda: host.groups.update_end(host.update))
    host.groups.update_begin(host.update, handle)
    refused(107033, lambda: host.groups.update_begin(host.update, handle))
    refused(107033, lambda: host.groups.update_begin(host.main, handle))
    refused(507000, lambda: host.groups.update_end(host.update), "aten.mul.out")
    host.groups.update_begin(host.update, handle)
    with capture(host.device, host.main.stream_id), on_stream(host.device, host.update.stream_id):
        refused(107029, lambda: host.groups.begin(host.update))
    refused(507000, lambda: host.groups.update_end(host.update), "aten.mul.out")


def test_an_update_gives_as_many_tasks_as_the_group_has_and_of_the_same_operators(host: Host) -> None:
    x = torch.ones(2)
    graph, handle, _ = doubled(host, x)
    y = handle.calls[0].out
    again = lambda: torch.mul(x, 5, out=y)  # noqa: E731
    refused(507000, lambda: host.updated(handle, again, again), "aten.mul.out")
    host.groups.update_end(host.update)
    with pytest.raises(RuntimeError, match=r"task 0 of the group is aten\.mul\.out, .* updated by aten\.add\.out"):
        host.updated(handle, lambda: torch.add(x, 5, out=y))
    refused(507000, lambda: host.groups.update_end(host.update))
    graph.replay()
    assert y.tolist() == [5, 5], "the last whole update holds"
