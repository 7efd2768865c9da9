"""What two streams touch without an event between them is found, though everything runs in one row."""

from __future__ import annotations

from npucompose.targets.npu_offline.simulator.recorder import Order
from tests.targets.npu_offline.asked import happens_before

X, Y = 1, 2


def test_a_read_on_another_stream_without_an_event_is_unordered() -> None:
    order = Order()
    order.call(1, "mm", reads=(), writes={X})
    order.call(2, "relu", reads={X}, writes={Y})
    assert order.unordered == ["relu on stream 2 reads or writes what mm on stream 1 wrote, and no event orders them."]


def test_an_event_between_them_orders_them() -> None:
    order = Order()
    order.call(1, "mm", reads=(), writes={X})
    order.record(7, 1)
    order.wait(7, 2)
    order.call(2, "relu", reads={X}, writes={Y})
    assert order.unordered == []


def test_an_event_that_was_recorded_too_early_orders_nothing() -> None:
    order = Order()
    order.record(7, 1)
    order.call(1, "mm", reads=(), writes={X})
    order.wait(7, 2)
    order.call(2, "relu", reads={X}, writes={Y})
    assert len(order.unordered) == 1


def test_order_passes_on_through_a_third_stream() -> None:
    order = Order()
    order.call(1, "mm", reads=(), writes={X})
    order.record(7, 1)
    order.wait(7, 2)
    order.record(8, 2)
    order.wait(8, 3)
    order.call(3, "relu", reads={X}, writes={Y})
    assert order.unordered == []


def test_writing_what_another_stream_still_reads_is_unordered() -> None:
    order = Order()
    order.call(1, "mm", reads={X}, writes={Y})
    order.call(2, "add_", reads={X}, writes={X})
    assert len(order.unordered) == 1


def test_two_streams_may_read_the_same() -> None:
    order = Order()
    order.call(1, "mm", reads={X}, writes={Y})
    order.call(2, "abs", reads={X}, writes={3})
    assert order.unordered == []


def test_waiting_for_an_older_event_forgets_nothing() -> None:
    order = Order()
    order.call(1, "abs", reads=(), writes={Y})
    order.record(6, 1)
    order.call(1, "mm", reads=(), writes={X})
    order.record(7, 1)
    order.wait(7, 2)
    order.wait(6, 2)
    order.call(2, "relu", reads={X}, writes={3})
    assert order.unordered == []


def test_a_write_without_a_read_is_compared_with_what_was_written_before() -> None:
    order = Order()
    order.call(1, "mm", reads=(), writes={X})
    order.call(2, "fill", reads=(), writes={X})
    assert order.unordered == ["fill on stream 2 reads or writes what mm on stream 1 wrote, and no event orders them."]


def test_a_reader_is_told_from_a_writer_and_forgotten_after_the_next_write() -> None:
    order = Order()
    order.call(1, "abs", reads={X}, writes={Y})
    order.call(2, "fill", reads=(), writes={X})
    assert order.unordered == ["fill on stream 2 reads or writes what abs on stream 1 reads, and no event orders them."]
    order.record(5, 2)
    order.wait(5, 3)
    order.call(3, "fill", reads=(), writes={X})
    assert len(order.unordered) == 1


def test_what_a_call_writes_it_does_not_count_as_read_by_itself() -> None:
    order = Order()
    order.call(1, "add_", reads={X}, writes={X})
    assert order.read == {}
    assert order.clocks == {1: {1: 1}}
    order.call(1, "abs", reads={X}, writes=())
    assert [access.call for access in order.read[X]] == ["abs"]
    assert order.clocks == {1: {1: 2}}


def test_what_happens_before_what_follows_from_streams_and_events_alone() -> None:
    order = Order()
    order.call(1, "mm", reads=(), writes={X})
    order.record(7, 1)
    order.wait(7, 2)
    order.call(2, "relu", reads={X}, writes={Y})
    order.call(1, "abs", reads=(), writes=())
    assert happens_before(order) == {("mm", "relu"), ("mm", "abs")}
