"""The stand-in's device, streams, events and recordings in this process: nothing of torch_npu is replaced for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose.schema.soc import device_of
from npucompose.targets.npu_offline.standin import graphs
from npucompose.targets.npu_offline.standin.device import RESERVED_TASKS, Device
from npucompose.targets.npu_offline.standin.graphs import (
    NPUGraph,
    graph,
    owner_of,
    task_group_begin,
    task_group_end,
    task_update_begin,
    task_update_end,
)
from npucompose.targets.npu_offline.standin.recorder import Call, tensors
from npucompose.targets.npu_offline.standin.streams import DEVICE_TYPE, Event, ExternalEvent, Stream

aten = torch.ops.aten


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device for one test: the classes of the stand-in know which one is theirs."""
    for holder, name in ((Stream, "device_of"), (Event, "device_of"), (NPUGraph, "device"), (graph, "device")):
        monkeypatch.setattr(holder, name, None, raising=False)
    made = Device()
    NPUGraph.device = graph.device = made
    yield made
    assert graphs._UPDATING == []


# Streams and events.


def test_streams_are_numbered_from_the_default_one_and_are_equal_by_their_number(device: Device) -> None:
    first, second = Stream(), Stream(priority=-1)
    assert (device.default_stream.stream_id, first.stream_id, second.stream_id) == (0, 1, 2)
    assert (first.priority, second.priority) == (0, -1)
    again = Stream(stream_id=2, device_index=0, device_type=DEVICE_TYPE)
    assert again == second
    assert hash(again) == hash(second)
    assert first != second
    assert first != 1
    assert (first.device_index, first.device_type) == (0, 20)
    assert Stream().stream_id == 3
    assert first.query()
    assert Event().query()


def test_a_stream_is_current_inside_its_context_only(device: Device) -> None:
    first, second = Stream(), Stream()
    with first as entered:
        assert entered is first is device.current_stream()
        with device.stream(second) as inner:
            assert inner is second is device.current_stream()
        with device.stream(None) as inner:
            assert inner is first
        assert device.current_stream() is first
    with pytest.raises(KeyError), device.stream(first):
        raise KeyError
    assert device.current_stream() is device.default_stream
    device.set_stream(second)
    assert device.current_stream() is second
    assert len(device._stack) == 1


def test_pools_are_two_integers_and_new_each_time(device: Device) -> None:
    assert [device.new_pool(), device.new_pool()] == [(1, 0), (2, 0)]


def test_records_and_waits_are_noted_on_the_stream_that_they_name(device: Device) -> None:
    first, second = Stream(), Stream()
    event = first.record_event()
    assert first.record_event(event) is event
    second.wait_event(event)
    event.record()
    event.wait(first)
    event.wait()
    second.wait_stream(first)
    event.reset()
    assert device.ledger.counts == {"event_record": 4, "event_wait": 4}
    assert event.number == 1
    assert device.ledger.lines == [
        "event_record event 1 on stream 1", "event_record event 1 on stream 1", "event_wait event 1 on stream 2",
        "event_record event 1 on stream 0", "event_wait event 1 on stream 1", "event_wait event 1 on stream 0",
        "event_record event 2 on stream 1", "event_wait event 2 on stream 2",
    ]  # fmt: skip


def test_a_limit_is_the_streams_own(device: Device) -> None:
    first, second = Stream(), Stream()
    device.limit(first, 8, 16)
    assert first.limit == {"cube_core_num": 8, "vector_core_num": 16}
    assert second.limit == device.cores == {"cube_core_num": 24, "vector_core_num": 48}
    assert device.ledger.counts == {"stream_limit": 1}
    recording = NPUGraph()
    with graph(recording):
        device.limit(second, 4, 8)
    assert recording.told == [f"limit stream {second.stream_id} to 4 cube and 8 vector cores"]


def test_more_cores_than_the_soc_has_are_refused_and_the_soc_is_named(device: Device) -> None:
    device.soc = device_of("Ascend910B4")
    with pytest.raises(RuntimeError, match="Ascend910B4, nominal has 20 cube and 40 vector cores"):
        device.limit(Stream(), 24, 40)
    assert Stream().limit == {"cube_core_num": 20, "vector_core_num": 40}


def test_captured_graphs_hold_streams_by_the_depth_of_their_queues_until_they_are_given_up(device: Device) -> None:
    device.soc = evolve(device.soc, streams=4, depth=RESERVED_TASKS + 2)
    first, second = captured()[0], captured()[0]
    assert device.captured_streams == 2, "two kernels each fill one queue"
    assert device.hold_streams([3]) == 2, "the third task goes on in a further stream"
    with pytest.raises(RuntimeError, match=r"207008.*hold 4 streams, this one needs 1, and Ascend910B1 has 4"):
        captured()
    first.reset()
    assert device.captured_streams == 3
    captured()
    assert second.kernels == 2


# Captures and replays.


def captured(stream: Any = None, pool: Any = None) -> tuple[NPUGraph, torch.Tensor, torch.Tensor]:
    """y = relu(x + 1), recorded."""
    x = torch.zeros(3)
    recording = NPUGraph()
    with graph(recording, pool=pool, stream=stream):
        y = aten.relu(x + 1)
    return recording, x, y


def test_a_replay_computes_into_the_memory_of_the_capture(device: Device) -> None:
    recording, x, y = captured(pool=(7, 0))
    assert device.graphs == [recording]
    assert (recording.kernels, recording.replays, recording.pool()) == (2, 0, (7, 0))
    assert recording.told == ["aten.add.Tensor on stream 1", "aten.relu.default on stream 1"]
    assert 0 < recording.seconds < 60
    assert device.ledger.lines == ["capture 2 kernels, pool (7, 0)"]
    x.copy_(torch.tensor([-3.0, 0.0, 4.0]))
    before = y.data_ptr()
    recording.replay()
    assert (y.tolist(), y.data_ptr(), recording.replays) == ([0.0, 1.0, 5.0], before, 1)
    assert device.ledger.counts["replay"] == 1
    assert recording.pool_bytes == 24
    assert set(recording.blocks) >= {before}
    assert torch.is_grad_enabled()


def test_a_capture_leaves_the_world_as_it_was_and_a_replay_records_no_gradient(device: Device) -> None:
    x, recording = torch.zeros(3, requires_grad=True), NPUGraph()
    outside = torch.zeros(3)
    state = torch.get_rng_state()
    with torch.no_grad(), graph(recording):
        y = x * 2
        outside.add_(1)
        torch.rand(2)
    assert outside.tolist() == [0, 0, 0]
    assert torch.equal(torch.get_rng_state(), state)
    recording.replay()
    assert outside.tolist() == [1, 1, 1]
    assert not y.requires_grad


def test_a_capture_runs_on_its_stream_and_ends_there(device: Device) -> None:
    stream = Stream()
    recording, _, _ = captured(stream)
    assert recording.told[0] == f"aten.add.Tensor on stream {stream.stream_id}"
    assert device.current_stream() is device.default_stream
    named, _, _ = captured("torch.npu.Stream()")
    assert named.told[0] == f"aten.add.Tensor on stream {stream.stream_id + 1}"
    assert device.capturing is None


def test_an_empty_capture_is_no_recording_and_two_at_once_are_refused(device: Device) -> None:
    with graph(NPUGraph()):
        pass
    assert device.graphs == []
    assert device.ledger.counts["capture"] == 0
    recording = NPUGraph()
    with graph(recording), pytest.raises(RuntimeError, match="a capture is open already"):
        NPUGraph().capture_begin()
    assert device.capturing is None


def test_a_recording_that_was_given_up_replays_nothing(device: Device) -> None:
    recording, x, y = captured()
    recording.reset()
    x.fill_(5)
    recording.replay()
    assert y.tolist() == [1.0, 1.0, 1.0]
    assert (recording.kernels, recording.pool_bytes, recording.blocks) == (0, 0, {})


def test_the_memory_of_recordings_is_found_by_its_address(device: Device) -> None:
    x = torch.zeros(3)
    recording = NPUGraph()
    with graph(recording):
        y = x + 1
        found = owner_of(y.data_ptr())
        assert found is not None
        assert found.data_ptr() == y.data_ptr()
    found = owner_of(y.data_ptr())
    assert found is not None
    assert found.data_ptr() == y.data_ptr()
    assert owner_of(x.data_ptr()) is None
    recording.reset()
    assert owner_of(y.data_ptr()) is None


def test_only_memory_that_a_capture_makes_is_its_own(device: Device) -> None:
    x = torch.zeros(4)
    recording = NPUGraph()
    with graph(recording):
        x.add_(1)
        view = x[1:]
        made = torch.empty(2)
        unsafe = aten._unsafe_view(x, [2, 2])
        torch.empty(0)
    assert set(recording.blocks) == {made.data_ptr()}
    assert recording.kernels == 1
    assert view.data_ptr() == x.data_ptr() + 4
    assert unsafe.data_ptr() == x.data_ptr()
    assert recording.told == ["aten.add_.Tensor on stream 1"]


def test_what_streams_touch_without_an_event_is_told_and_with_one_it_is_not(device: Device) -> None:
    for waits in (False, True):
        x, aside = torch.zeros(3), Stream()
        recording = NPUGraph()
        with graph(recording, stream=Stream()):
            y = x + 1
            if waits:
                aside.wait_stream(device.current_stream())
            with aside:
                aten.relu(y)
        assert bool(recording.order.unordered) is not waits
        assert len(recording.order.clocks) == 2
    assert [line.partition(" event")[0] for line in recording.told] == [
        "aten.add.Tensor on stream 4", "record", "wait", "aten.relu.default on stream 3"
    ]  # fmt: skip


def test_writing_in_place_on_another_stream_is_a_touch_too(device: Device) -> None:
    x, recording, aside = torch.zeros(3), NPUGraph(), Stream()
    with graph(recording):
        torch.neg(x)
        with aside:
            x.mul_(2)
    assert len(recording.order.unordered) == 1
    other = NPUGraph()
    out = torch.zeros(3)
    with graph(other):
        torch.add(x, 1, out=out)
        with aside:
            torch.neg(out)
    assert len(other.order.unordered) == 1


def test_a_replay_stands_at_an_external_event_until_the_host_signals_it(device: Device) -> None:
    event, stream = ExternalEvent(), Stream()
    x, recording = torch.zeros(2), NPUGraph()
    with graph(recording):
        first = x + 1
        event.wait(stream)
        event.reset(stream)
        second = x + 2
    assert recording.told[1] == f"wait external event {event.number} on stream {stream.stream_id}"
    x.fill_(10)
    recording.replay()
    assert (first.tolist(), second.tolist()) == ([11, 11], [2, 2])
    with pytest.raises(RuntimeError, match=rf"waits for external event {event.number}, which nobody has signalled"):
        stream.synchronize()
    with pytest.raises(RuntimeError, match="nobody has signalled"):
        Event().synchronize()
    with pytest.raises(RuntimeError, match="nobody has signalled"):
        recording.replay()
    assert recording.replays == 1
    event.record(stream)
    assert second.tolist() == [12, 12]
    assert not event.signalled
    stream.synchronize()
    event.record(stream)
    x.fill_(20)
    recording.replay()
    assert second.tolist() == [22, 22]
    event.record()
    assert event.signalled
    event.reset()
    assert not event.signalled


def test_a_recording_is_written_down_as_it_was_told(device: Device, tmp_path: Path) -> None:
    recording, _, _ = captured()
    recording.debug_dump(str(tmp_path / "dump.txt"), True)
    assert (tmp_path / "dump.txt").read_text() == "aten.add.Tensor on stream 1\naten.relu.default on stream 1"
    recording.super_kernel_optimize({"a": 1}, None)
    assert device.ledger.lines[-1] == "super_kernel_optimize {'a': 1} None"


# Tasks.


def test_a_task_gets_new_arguments_between_replays(device: Device) -> None:
    x, recording, stream = torch.ones(2), NPUGraph(), Stream()
    with graph(recording):
        torch.neg(x)
        task_group_begin(stream)
        y = aten.mul(x, 2)
        handle = task_group_end(stream)
        z = y + 1
    assert [call.func for call in handle.calls] == [aten.mul.Tensor]
    assert device.ledger.counts["task_group"] == 1
    task_update_begin(stream, handle)
    assert aten.mul(x, 5) is y
    task_update_end(stream)
    assert y.tolist() == [2, 2]
    assert device.ledger.lines[-1] == "task_update 1 calls"
    recording.replay()
    assert (y.tolist(), z.tolist()) == ([5, 5], [6, 6])
    task_update_begin(stream, handle)
    with pytest.raises(RuntimeError, match=r"aten\.neg\.default is no task of the captured group: aten\.mul\.Tensor"):
        torch.neg(x)
    task_update_end(stream)


def test_groups_are_refused_outside_a_capture(device: Device) -> None:
    for act in (task_group_begin, task_group_end):
        with pytest.raises(RuntimeError, match=rf"{act.__name__} outside a capture"):
            act(device.default_stream)


# Calls.


def call(func: Any, *args: Any, **kwargs: Any) -> Call:
    return Call(func=func, args=args, kwargs=kwargs, out=func(*args, **kwargs), stream=0)


def test_a_call_computes_where_it_writes_or_gives_memory_of_its_own() -> None:
    x, out = torch.ones(4), torch.empty(4)
    assert call(aten.add.Tensor, x, 1).computes
    assert call(aten.add_.Tensor, x, 1).computes
    assert call(aten.add.out, x, x, out=out).computes
    assert call(aten.contiguous.default, x).computes is False
    assert call(aten.view.default, x, [2, 2]).computes is False
    assert call(aten._unsafe_view.default, x, [2, 2]).computes is False
    assert call(aten.split_with_sizes_copy.default, x, [1, 3]).computes
    for factory in (call(aten.empty_like.default, x), call(aten.new_empty.default, x, [2])):
        assert factory.computes is False


def test_a_call_runs_again_into_its_own_results() -> None:
    x = torch.ones(4)
    both = call(aten.split_with_sizes_copy.default, x, [1, 3])
    same = call(aten.contiguous.default, x)
    x.fill_(7)
    both.run()
    same.run()
    assert [part.tolist() for part in both.out] == [[7], [7, 7, 7]]
    added = call(aten.add_.Tensor, x, 1)
    added.run()
    assert x.tolist() == [9] * 4


def test_the_tensors_of_an_argument_are_found_in_lists() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    found = tensors([a, (b, [c]), 1, "x", None, {"d": a}])
    assert [id(tensor) for tensor in found] == [id(a), id(b), id(c)]
    assert tensors(a) == [a]
