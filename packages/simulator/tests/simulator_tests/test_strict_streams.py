"""Streams out of pools, and those of other libraries, as a device hands them out and refuses them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from npu_simulator import compiled
from npu_simulator.classes import EventBase, GraphBase, StreamBase
from npu_simulator.device import SimulatedDevice
from npu_simulator.streams import DEVICE_TYPE, StreamPools
from simulator_tests.asked import capture, on_stream


def test_the_33rd_stream_is_the_first_again() -> None:
    pools = StreamPools()
    taken = [pools.take() for _ in range(33)]
    assert taken == [*range(96, 128), 96]
    assert [pools.take(priority=-1), pools.take(sync_launch=True)] == [128, 64]
    assert [pools.take(sync_launch=True) for _ in range(4)] == [65, 66, 67, 64]


def test_pools_of_eight_are_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMS_PER_DEVICE", "8")
    pools = StreamPools()
    assert [pools.take() for _ in range(9)] == [*range(24, 32), 24]
    monkeypatch.setenv("STREAMS_PER_DEVICE", "16")
    with pytest.warns(UserWarning, match="only support 8 or 32, but get 16"):
        assert StreamPools().size == 32


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((96, 0, 0), "the device_type of a stream is 20"),
        ((96, 40, DEVICE_TYPE), r"Invalid device_index: 40, valid range is \[0, 32\)"),
        ((96, -1, DEVICE_TYPE), "Invalid device_index: -1"),
        ((1, 0, DEVICE_TYPE), "should be the default stream, but I got a non-zero index 1"),
        ((99999, 0, DEVICE_TYPE), "I didn't recognize the stream type, 3124"),
        ((-1, 0, DEVICE_TYPE), "Unrecognized external NPU stream"),
        ((96, 0, DEVICE_TYPE), "Uninitialized NPU stream stream 96"),
        ((68, 0, DEVICE_TYPE), "Invalid sync launch stream index 4"),
        ((0, 3, DEVICE_TYPE), "Uninitialized default NPU stream for device 3"),
    ],
)
def test_numbers_that_name_no_stream_are_refused(numbers: tuple[int, int, int], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        StreamPools().check(*numbers)


def test_a_stream_of_another_library_has_its_address_and_is_never_captured(device: SimulatedDevice) -> None:
    runtime, pointer = compiled._runtime(), ctypes.c_void_p(0)
    assert runtime.npuStreamCreate(ctypes.addressof(pointer)) == 0
    address = pointer.value
    assert address
    stream = StreamBase(stream_ptr=address)
    assert (stream.npu_stream, stream) == (address, StreamBase(stream_ptr=address))
    assert StreamBase(stream_id=stream.stream_id, device_type=DEVICE_TYPE).npu_stream == address
    with pytest.raises(RuntimeError, match="Priority was explicitly set for an external stream"):
        StreamBase(priority=-1, stream_ptr=address)
    refused = {
        "Cannot query external NPU stream status": stream.query,
        "not supported in NPUStream::synchronize": stream.synchronize,
        "not supported in NPUEvent::record": lambda: EventBase().record(stream),
        "not supported in NPUEvent::block": lambda: EventBase().wait(stream),
        "not supported in record_stream": lambda: device.use(torch.ones(1), stream.stream_id),
    }
    for words, act in refused.items():
        with pytest.raises(RuntimeError, match=words):
            act()
    with on_stream(device, stream.stream_id), pytest.raises(RuntimeError, match="in NPUGraph::capture_begin"):
        GraphBase().capture_begin()
    assert runtime.npuStreamDestroy(address) == 0


def test_whether_a_stream_is_captured_is_asked_of_each(device: SimulatedDevice) -> None:
    side = device.new_stream()
    with capture(device):
        assert device.capturing is not None
        with on_stream(device, side):
            assert device.capturing is None
    assert device.capturing is None


def test_an_event_of_several_processes_is_warned_of_in_a_capture(device: SimulatedDevice) -> None:
    shared = EventBase(interprocess=True)
    shared.record(StreamBase())
    with capture(device), pytest.warns(UserWarning, match=r"aclrtRecordEvent, error code is 207000"):
        device.record(shared._event, device.current)
