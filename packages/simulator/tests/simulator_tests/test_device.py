"""The simulator's device, streams, events and recordings in this process: nothing of torch_npu is replaced for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from npu_simulator.classes import EventBase, GraphBase, StreamBase
from npu_simulator.device import RESERVED_TASKS, SimulatedDevice
from npu_simulator.graph import SimulatedGraph, owner_of
from npu_simulator.recorder import RecordedCall, tensors
from npu_simulator.streams import DEVICE_TYPE
from npucompose.errors import CompileError
from npucompose.vendor.devices import device_of
from simulator_tests.asked import capture, on_stream

aten = torch.ops.aten


# Streams and events.


def test_streams_are_numbered_by_their_pool_and_are_equal_by_their_number(device: SimulatedDevice) -> None:
    first, second = StreamBase(), StreamBase(priority=-1)
    assert (device.current, first.stream_id, second.stream_id) == (0, 96, 128)
    again = StreamBase(stream_id=128, device_index=0, device_type=DEVICE_TYPE)
    assert again == second
    assert hash(again) == hash(second)
    assert first != second
    assert StreamBase(stream_id=0, device_index=0, device_type=DEVICE_TYPE).stream_id == 0
    assert isinstance(first, torch.Stream)
    assert (first.device_index, first.device_type) == (0, 20)
    assert (StreamBase().stream_id, StreamBase(is_sync_launch=1).stream_id) == (97, 64)
    assert first.query()
    assert EventBase().query()
    assert first.npu_stream != second.npu_stream
    assert EventBase().npu_event


def test_what_only_a_driver_has_is_refused_by_its_name(device: SimulatedDevice) -> None:
    event = EventBase()
    for name, act in {
        "torch.npu.Event.elapsed_time": lambda: event.elapsed_time(event),
        "torch.npu.Event.recorded_time": event.recorded_time,
        "torch.npu.Event.ipc_handle": event.ipc_handle,
        "torch.npu.Event.from_ipc_handle": lambda: EventBase.from_ipc_handle("npu", b""),
    }.items():
        with pytest.raises(CompileError, match=f"target=npu_offline has no {name}: there is no"):
            act()


def test_a_stream_is_current_inside_its_context_only(device: SimulatedDevice) -> None:
    first, second = StreamBase(), StreamBase()
    with first as entered:
        assert entered is first
        assert device.current == first.stream_id
        with on_stream(device, second.stream_id):
            assert device.current == second.stream_id
        assert device.current == first.stream_id
    with pytest.raises(KeyError), first:
        raise KeyError
    assert device.current == 0
    device.set_stream(97)
    assert device.current == 97


def test_another_thread_begins_on_the_default_stream(device: SimulatedDevice) -> None:
    found: list[int] = []
    with on_stream(device, device.new_stream()):
        thread = threading.Thread(target=lambda: found.append(device.current))
        thread.start()
        thread.join()
    assert found == [0]


def test_pools_are_two_integers_and_new_each_time(device: SimulatedDevice) -> None:
    """Ascend/pytorch, core/npu/MemPool.cpp:62: a graph's own pool is (n, 0), one that a user asked for (0, n)."""
    assert [device.new_pool(), device.new_pool(), device.new_pool(of_a_graph=True)] == [(0, 1), (0, 2), (1, 0)]
    first, second, third = SimulatedGraph(device), SimulatedGraph(device), SimulatedGraph(device)
    with on_stream(device, device.new_stream()):
        for recording, pool in ((first, None), (second, device.new_pool()), (third, (2, 0))):
            recording.begin(pool)
            recording.end()
    assert (first.pool, second.pool, third.pool) == ((2, 0), (0, 3), (2, 0))
    with pytest.raises(RuntimeError, match=r"pool\.first && pool\.second"), on_stream(device, device.new_stream()):
        SimulatedGraph(device).begin((1, 1))


def test_records_and_waits_are_noted_on_the_stream_that_they_name(device: SimulatedDevice) -> None:
    first, second, event = StreamBase(), StreamBase(), EventBase()
    event.record(first)
    event.wait(second)
    event.record(StreamBase(stream_id=0, device_type=DEVICE_TYPE))
    event.reset(first)
    assert device.ledger.counts == {"event_record": 2, "event_wait": 1}
    assert device.ledger.lines == [
        "event_record event 1 on stream 96", "event_wait event 1 on stream 97", "event_record event 1 on stream 0",
    ]  # fmt: skip


def test_a_limit_is_the_streams_own_and_told_as_it_stands_before_the_next_kernel(device: SimulatedDevice) -> None:
    first, second = device.new_stream(), device.new_stream()
    device.limit(first, "cube_core_num", 8)
    device.limit(first, "vector_core_num", 16)
    assert device.limits(first) == {"cube_core_num": 8, "vector_core_num": 16}
    assert device.limits(second) == device.cores == {"cube_core_num": 24, "vector_core_num": 48}
    assert device.ledger.counts == {"stream_limit": 2}
    with capture(device) as recording:
        device.limit(second, "cube_core_num", 4)
        device.limit(second, "vector_core_num", 8)
        device.limit(first, "vector_core_num", 8)
        device.reset_limit(first)
    assert recording.notes == [
        f"limit stream {second} to 4 cube and 8 vector cores", f"limit stream {first} to 24 cube and 48 vector cores"
    ]  # fmt: skip


def test_more_cores_than_the_soc_has_are_refused_and_the_soc_is_named() -> None:
    device = SimulatedDevice(device_of("Ascend910B4"))
    with pytest.raises(RuntimeError, match="Ascend910B4, nominal has 20 cube and 40 vector cores"):
        device.limit(device.new_stream(), "cube_core_num", 24)
    assert device.limits(device.new_stream()) == {"cube_core_num": 20, "vector_core_num": 40}


def test_captured_graphs_hold_streams_by_the_depth_of_their_queues_until_they_are_given_up(
    device: SimulatedDevice,
) -> None:
    device.soc = evolve(device.soc, streams=4, depth=RESERVED_TASKS + 2)

    def two_kernels() -> SimulatedGraph:
        with capture(device) as recording:
            torch.ones(2).add(1)
        return recording

    first, second = two_kernels(), two_kernels()
    assert device.captured_streams == 2, "two kernels fill one queue"
    assert device.hold_streams([3]) == 2, "the third task goes on in a further stream"
    with pytest.raises(
        RuntimeError, match=r"207008[^$]*hold 4 streams, this one needs 1, and Ascend910B1 has 4"
    ) as caught:
        two_kernels()
    assert "stream resources are insufficient" in str(caught.value).lower(), "what vllm-ascend looks for"
    first.reset()
    assert device.captured_streams == 3
    two_kernels()
    assert second.kernels == 2


def test_memory_that_another_stream_uses_is_noted(device: SimulatedDevice) -> None:
    used = torch.ones(2, 3)
    with capture(device) as recording:
        device.use(used, 7)
    assert recording.notes == ["record_stream of [2, 3] on stream 7"]
    assert device.ledger.counts["record_stream"] == 1


# Captures and replays.


def captured(
    device: SimulatedDevice, stream: Any = None, pool: Any = None
) -> tuple[SimulatedGraph, torch.Tensor, torch.Tensor]:
    """y = relu(x + 1), recorded."""
    x = torch.zeros(3)
    with capture(device, stream, pool) as recording:
        y = aten.relu(x + 1)
    return recording, x, y


def test_a_replay_computes_into_the_memory_of_the_capture(device: SimulatedDevice) -> None:
    recording, x, y = captured(device, pool=(7, 0))
    assert device.graphs == [recording]
    assert (recording.kernels, recording.replays, recording.pool) == (2, 0, (7, 0))
    assert recording.notes == ["aten.add.Tensor on stream 96", "aten.relu.default on stream 96"]
    assert 0 < recording.seconds < 60
    assert device.ledger.lines == ["capture 2 kernels, pool (7, 0)"]
    x.copy_(torch.tensor([-3.0, 0.0, 4.0]))
    before = y.data_ptr()
    recording.replay()
    assert (y.tolist(), y.data_ptr(), recording.replays) == ([0.0, 1.0, 5.0], before, 1)
    assert device.ledger.counts["replay"] == 1
    assert sum(block.nbytes() for block in recording.blocks.values()) == 24
    assert set(recording.blocks) >= {before}
    assert torch.is_grad_enabled()


def test_a_capture_leaves_the_world_as_it_was_and_a_replay_records_no_gradient(device: SimulatedDevice) -> None:
    x = torch.zeros(3, requires_grad=True)
    outside = torch.zeros(3)
    state = torch.get_rng_state()
    with torch.no_grad(), capture(device) as recording:
        y = x * 2
        outside.add_(1)
        torch.rand(2)
    assert outside.tolist() == [0, 0, 0]
    assert torch.equal(torch.get_rng_state(), state)
    recording.replay()
    assert outside.tolist() == [1, 1, 1]
    assert not y.requires_grad


def test_a_capture_runs_on_its_stream_and_ends_there(device: SimulatedDevice) -> None:
    stream = device.new_stream()
    recording, _, _ = captured(device, stream)
    assert recording.notes[0] == f"aten.add.Tensor on stream {stream}"
    assert (device.current, device.capturing) == (0, None)


def test_an_empty_capture_is_no_recording(device: SimulatedDevice) -> None:
    with capture(device):
        pass
    assert device.graphs == []
    assert device.ledger.counts["capture"] == 0


def test_a_replay_runs_no_call_that_computes_nothing(device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture(device) as recording:
        made = torch.empty(3)
        made.fill_(2)
    ran: list[Any] = []
    monkeypatch.setattr(RecordedCall, "run", lambda self: ran.append(self))
    recording.replay()
    assert [str(entry.func) for entry in ran] == ["aten.fill_.Scalar"]


def test_a_recording_that_was_given_up_replays_nothing(device: SimulatedDevice) -> None:
    recording, x, y = captured(device)
    recording.reset()
    x.fill_(5)
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        recording.replay()
    assert y.tolist() == [1.0, 1.0, 1.0]
    assert (recording.kernels, sum(block.nbytes() for block in recording.blocks.values()), recording.blocks) == (
        0,
        0,
        {},
    )


def test_the_memory_of_recordings_is_found_by_its_address(device: SimulatedDevice) -> None:
    x = torch.zeros(3)
    with capture(device) as recording:
        y = x + 1
        found = owner_of(device, y.data_ptr())
        assert found is not None
        assert found.data_ptr() == y.data_ptr()
    found = owner_of(device, y.data_ptr())
    assert found is not None
    assert found.data_ptr() == y.data_ptr()
    assert owner_of(device, x.data_ptr()) is None
    recording.reset()
    assert owner_of(device, y.data_ptr()) is None


def test_only_memory_that_a_capture_makes_is_its_own(device: SimulatedDevice) -> None:
    x = torch.zeros(4)
    with capture(device) as recording:
        x.add_(1)
        view = x[1:]
        made = torch.empty(2)
        unsafe = aten._unsafe_view(x, [2, 2])
        torch.empty(0)
    assert set(recording.blocks) == {made.data_ptr()}
    assert recording.kernels == 1
    assert view.data_ptr() == x.data_ptr() + 4
    assert unsafe.data_ptr() == x.data_ptr()
    assert recording.notes == ["aten.add_.Tensor on stream 96"]


def fork(device: SimulatedDevice, waiting: int, other: int) -> None:
    """`waiting.wait_stream(other)`."""
    event = device.new_event()
    device.record(event, other)
    device.wait(event, waiting)


def test_what_streams_touch_without_an_event_is_told_and_with_one_it_is_not(device: SimulatedDevice) -> None:
    for ordered in (False, True):
        x, aside = torch.zeros(3), device.new_stream()
        with capture(device) as recording:
            mine = device.current
            if not ordered:
                fork(device, aside, mine)
            y = x + 1
            if ordered:
                fork(device, aside, mine)
            with on_stream(device, aside):
                aten.relu(y)
            fork(device, mine, aside)
        assert [race.kind for race in recording.order.races] == ([] if ordered else ["read"])
        assert len(recording.order.clocks) == 2
        assert len(recording.outside) == (0 if ordered else 1)
    assert [line.partition(" event")[0] for line in recording.notes] == [
        f"aten.add.Tensor on stream {mine}", "record", "wait", f"aten.relu.default on stream {aside}", "record", "wait"
    ]  # fmt: skip


def test_writing_in_place_on_another_stream_is_a_touch_too(device: SimulatedDevice) -> None:
    x, out, aside = torch.zeros(3), torch.zeros(3), device.new_stream()
    with capture(device) as recording:
        fork(device, aside, device.current)
        torch.neg(x)
        with on_stream(device, aside):
            x.mul_(2)
        fork(device, device.current, aside)
    assert [race.kind for race in recording.order.races] == ["overwrite"]
    with capture(device) as other:
        fork(device, aside, device.current)
        torch.add(x, 1, out=out)
        with on_stream(device, aside):
            torch.neg(out)
        fork(device, device.current, aside)
    assert [race.kind for race in other.order.races] == ["read"]


def test_a_call_on_a_stream_outside_runs_at_once_and_in_no_replay(device: SimulatedDevice) -> None:
    x, aside = torch.zeros(3), device.new_stream()
    with capture(device) as recording:
        x + 1
        with on_stream(device, aside):
            x.add_(1)
    assert x.tolist() == [1, 1, 1]
    assert recording.kernels == 1
    assert [line.partition(" on stream")[0] for line in recording.outside] == ["aten.add_.Tensor"]
    assert "it runs once, now, and never in a replay" in recording.outside[0]
    recording.replay()
    assert x.tolist() == [1, 1, 1]


def test_a_replay_stands_at_an_external_event_until_the_host_signals_it(device: SimulatedDevice) -> None:
    event, stream, x = device.new_event(external=True), device.new_stream(), torch.zeros(2)
    with capture(device, stream) as recording:
        first = x + 1
        device.wait(event, stream)
        device.reset(event, stream)
        second = x + 2
    assert recording.notes[1] == f"wait external event {event.number} on stream {stream}"
    x.fill_(10)
    recording.replay()
    assert (first.tolist(), second.tolist()) == ([11, 11], [2, 2])
    with pytest.raises(RuntimeError, match=rf"waits for external event {event.number}, which is not signalled"):
        StreamBase().synchronize()
    with pytest.raises(RuntimeError, match="is not signalled"):
        EventBase().synchronize()
    with pytest.raises(RuntimeError, match="is not signalled"):
        recording.replay()
    assert recording.replays == 1
    device.record(event, stream)
    assert second.tolist() == [12, 12]
    assert not event.signalled
    device.synchronize()
    device.record(event, stream)
    x.fill_(20)
    recording.replay()
    assert second.tolist() == [22, 22]
    device.record(event, stream)
    assert event.signalled
    device.reset(event, stream)
    assert not event.signalled


def test_the_compiled_class_hands_on_to_its_recording(device: SimulatedDevice, tmp_path: Path) -> None:
    graph, x = GraphBase(), torch.zeros(3)
    with on_stream(device, device.new_stream()):
        graph.capture_begin(pool=(7, 0), capture_error_mode="relaxed", report_shape=True)
        y = x + 1
        graph.capture_end()
    x.fill_(4)
    graph.replay()
    assert (y.tolist(), graph.pool()) == ([5, 5, 5], (7, 0))
    graph.super_kernel_optimize({"a": 1}, None)
    assert device.ledger.lines[-1] == "super_kernel_optimize {'a': 1} None"
    graph.debug_dump(str(tmp_path / "dump.json"))
    assert [task["name"] for task in json.loads((tmp_path / "dump.json").read_text())] == ["aten.add.Tensor"]
    graph.reset()
    assert owner_of(device, y.data_ptr()) is None


# Calls.


def call(func: Any, *args: Any, **kwargs: Any) -> RecordedCall:
    return RecordedCall(func=func, args=args, kwargs=kwargs, out=func(*args, **kwargs), stream=0)


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
