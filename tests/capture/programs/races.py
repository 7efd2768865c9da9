"""Programs whose streams touch the same memory: ordered by events, or not; memory that the allocator gives again."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.programs import fault, legal

ORDER = "RT docs/zh/dev_guide/03-02_stream_management.md, 03-05_event_management.md"
REUSE = "TN core/npu/NPUCachingAllocator.cpp:85, 1582, 2792"
COLLECTIVE = "TN distributed/ProcessGroupHCCL.cpp: a stream of its own, for which work.wait() lets the current one wait"
Tensor = torch.Tensor


def _side() -> Any:
    return torch.npu.Stream()


def _two() -> Any:
    return torch.npu.Stream(), torch.npu.Stream()


def _three() -> Any:
    return (*_two(), torch.npu.Stream())


def _buffer() -> Any:
    return torch.npu.Stream(), torch.zeros(4, 4, device="npu")


# A read that may come before the write.


@fault("unordered_read", None, ORDER, before=_side)
def a_side_stream_waits_before_the_value_is_computed(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    y = x * 2
    with torch.npu.stream(side):
        z = y + 1  # here
    main.wait_stream(side)
    return y + z


@legal("unordered_read", ORDER, before=_side)
def a_side_stream_waits_behind_the_value(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    main.wait_stream(side)
    return y + z


@fault("unordered_read", None, ORDER, before=_side)
def a_result_is_read_before_the_wait(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = x + 1
    y = z * 2  # here
    main.wait_stream(side)
    return y


@legal("unordered_read", ORDER, before=_side)
def another_value_is_read_before_the_wait(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = x + 1
    y = x * 2
    main.wait_stream(side)
    return y + z


@fault("unordered_read", None, ORDER, before=lambda: (_side(), torch.npu.Event()))
def an_event_is_recorded_too_early(x: Tensor, side: Any, done: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        y = x * 2
        done.record()
        z = y + 1
    done.wait()
    w = z * 3  # here
    main.wait_stream(side)
    return w


@legal("unordered_read", ORDER, before=lambda: (_side(), torch.npu.Event()))
def an_event_is_recorded_anew_behind_the_last_value(x: Tensor, side: Any, done: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
        done.record()
        z = y + 1
        done.record()
    done.wait()
    return z * 3


@fault("unordered_read", None, ORDER, before=_side)
def a_view_of_a_value_is_read_too_early(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    y = x * 2
    part = y.view(2, 8)[1].t()
    with torch.npu.stream(side):
        z = part + 1  # here
    main.wait_stream(side)
    return z


@fault("unordered_read", None, ORDER, before=_side)
def a_value_changed_in_place_is_read_too_early(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    y.relu_()
    with torch.npu.stream(side):
        z = y + 1  # here
    main.wait_stream(side)
    return z


@fault("unordered_read", None, ORDER, before=_two)
def two_side_streams_do_not_know_of_each_other(x: Tensor, left: Any, right: Any) -> Any:
    main = torch.npu.current_stream()
    for stream in (left, right):
        stream.wait_stream(main)
    with torch.npu.stream(left):
        y = x * 2
    with torch.npu.stream(right):
        z = y + 1  # here
    for stream in (left, right):
        main.wait_stream(stream)
    return y + z


@fault("unordered_read", None, ORDER, before=_three)
def a_nested_side_stream_is_not_waited_for(x: Tensor, outer: Any, inner: Any, _: Any) -> Any:
    main = torch.npu.current_stream()
    outer.wait_stream(main)
    with torch.npu.stream(outer):
        y = x * 2
        inner.wait_stream(outer)
        with torch.npu.stream(inner):
            z = y + 1
        w = z * 3  # here
        outer.wait_stream(inner)
    main.wait_stream(outer)
    return w


@legal("unordered_read", ORDER, before=_three)
def nested_side_streams_come_back_one_after_the_other(x: Tensor, outer: Any, inner: Any, innermost: Any) -> Any:
    main = torch.npu.current_stream()
    outer.wait_stream(main)
    with torch.npu.stream(outer):
        y = x * 2
        inner.wait_stream(outer)
        with torch.npu.stream(inner):
            innermost.wait_stream(inner)
            with torch.npu.stream(innermost):
                z = y + 1
            inner.wait_stream(innermost)
        outer.wait_stream(inner)
    main.wait_stream(outer)
    return y + z


@legal("unordered_read", ORDER, before=_two)
def order_passes_through_a_stream_without_work(x: Tensor, left: Any, right: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    left.wait_stream(main)
    right.wait_stream(left)
    with torch.npu.stream(right):
        z = y + 1
    main.wait_stream(right)
    main.wait_stream(left)
    return z


@legal("unordered_read", ORDER, before=_side)
def joined_by_the_end_of_the_capture_alone(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        y = x * 2
    z = x + 1
    main.wait_stream(side)
    return y, z


@fault("unordered_read", None, COLLECTIVE)
def a_collectives_result_is_read_before_the_wait(x: Tensor) -> Any:
    y = x * 2
    work = torch.distributed.all_reduce(y, async_op=True)
    z = y + 1  # here
    work.wait()
    return z


@legal("unordered_read", COLLECTIVE)
def what_a_message_sends_is_read_meanwhile(x: Tensor) -> Any:
    y = x * 2
    work = torch.distributed.isend(y, 1)
    z = y + 1
    work.wait()
    return z


@legal("unordered_read", "RT api/impl/api_error.cc:1400: the wait is for the record",
       before=lambda: (_side(), torch.npu.ExternalEvent()))  # fmt: skip
def an_external_event_orders_two_streams(x: Tensor, side: Any, ready: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    y = x * 2
    ready.record(main)
    ready.wait(side)
    with torch.npu.stream(side):
        z = y + 1
    main.wait_stream(side)
    return z


# A write that may come before the read.


@fault("unordered_overwrite", None, ORDER, before=_side)
def an_operand_is_overwritten_while_it_is_read(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    y.zero_()  # here
    main.wait_stream(side)
    return z


@legal("unordered_overwrite", ORDER, before=_side)
def an_operand_is_overwritten_behind_the_wait(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    main.wait_stream(side)
    y.zero_()
    return z


@fault("unordered_overwrite", None, ORDER, before=_side)
def the_input_is_changed_while_a_side_stream_reads_it(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = x + 1
    x[1:].mul_(2)  # here
    main.wait_stream(side)
    return z


@fault("unordered_overwrite", None, ORDER, before=_buffer)
def an_operators_out_is_still_read(x: Tensor, side: Any, out: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = out * 2
    torch.add(x, 1, out=out)  # here
    main.wait_stream(side)
    return z


@legal("unordered_overwrite", ORDER, before=_buffer)
def two_streams_read_the_same(x: Tensor, side: Any, table: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = x @ table
    y = table @ x
    main.wait_stream(side)
    return y + z


@fault("unordered_overwrite", None, COLLECTIVE)
def what_a_message_sends_is_changed_meanwhile(x: Tensor) -> Any:
    y = x * 2
    work = torch.distributed.isend(y, 1)
    y.add_(1)  # here
    work.wait()
    return y


@fault("unordered_overwrite", None, ORDER, before=_side, sure=False)
def rows_that_the_data_name_are_read_and_written(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    rows = torch.arange(2, device=x.device)
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y.index_select(0, rows)
    y.index_fill_(0, rows + 2, 0.0)  # here
    main.wait_stream(side)
    return z


# Two writes, of which either may be the last.


@fault("unordered_write", None, ORDER, before=_buffer)
def two_streams_fill_the_same_rows(x: Tensor, side: Any, out: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        out[:3].copy_(x[:3])
    out[2:].fill_(1)  # here
    main.wait_stream(side)
    return out * 1


@legal("unordered_write", ORDER, before=_buffer)
def two_streams_fill_rows_of_their_own(x: Tensor, side: Any, out: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        out[:2].copy_(x[:2])
    out[2:].fill_(1)
    main.wait_stream(side)
    return out * 1


@legal("unordered_write", ORDER, before=_buffer)
def two_streams_fill_columns_that_lie_between_each_other(x: Tensor, side: Any, out: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        out[:, ::2].copy_(x[:, ::2])
    out[:, 1::2].fill_(1)
    main.wait_stream(side)
    return out * 1


@fault("unordered_write", None, ORDER, before=_buffer)
def columns_of_two_streams_meet_in_one(x: Tensor, side: Any, out: Tensor) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        out[:, ::3].copy_(x[:, ::3])
    out[:, 1:].fill_(1)  # here
    main.wait_stream(side)
    return out * 1


@fault("unordered_write", None, ORDER, before=_two)
def an_empty_tensor_is_filled_by_two_streams(x: Tensor, left: Any, right: Any) -> Any:
    main = torch.npu.current_stream()
    out = torch.empty_like(x)
    for stream in (left, right):
        stream.wait_stream(main)
    with torch.npu.stream(left):
        out.copy_(x)
    with torch.npu.stream(right):
        out.zero_()  # here
    for stream in (left, right):
        main.wait_stream(stream)
    return out * 1


# Memory that is given to the next value.


@fault("unordered_reuse", None, REUSE, before=_side)
def a_value_is_dropped_while_a_side_stream_reads_it(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    del y
    w = x * 3  # here
    main.wait_stream(side)
    return w + z


@legal("unordered_reuse", REUSE, before=_side)
def a_dropped_value_was_recorded_for_its_reader(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    y.record_stream(side)
    del y
    w = x * 3
    main.wait_stream(side)
    return w + z


@legal("unordered_reuse", REUSE, before=_side)
def a_value_lives_until_its_reader_was_waited_for(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    w = x * 3
    main.wait_stream(side)
    del y
    return w + z * 2


@legal("unordered_reuse", REUSE, before=_side)
def a_view_keeps_the_memory_of_a_dropped_value(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    row = y[0]
    del y
    w = x * 3
    main.wait_stream(side)
    return w + z + row


@legal("unordered_reuse", REUSE, before=_side)
def the_next_value_of_another_stream_has_memory_of_its_own(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y = x * 2
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
        del y
        w = x * 3
    main.wait_stream(side)
    return w + z


@fault("unordered_reuse", None, REUSE, before=_side)
def a_side_streams_value_is_dropped_while_the_capturing_stream_reads_it(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    side.wait_stream(main)
    with torch.npu.stream(side):
        y = x * 2
    main.wait_stream(side)
    z = y + 1
    del y
    with torch.npu.stream(side):
        w = x * 3  # here
    main.wait_stream(side)
    return w + z


@fault("unordered_reuse", None, REUSE, before=_side)
def a_temporary_of_one_line_is_dropped_at_its_end(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()

    def aside(value: Tensor) -> Tensor:
        side.wait_stream(main)
        with torch.npu.stream(side):
            return value + 1

    z = aside(x * 2)
    w = torch.relu(x)  # here
    main.wait_stream(side)
    return w + z


@legal("unordered_reuse", REUSE, before=_side)
def a_larger_value_does_not_fit_where_the_dropped_one_lay(x: Tensor, side: Any) -> Any:
    main = torch.npu.current_stream()
    y, behind = x * 2, x * 5
    side.wait_stream(main)
    with torch.npu.stream(side):
        z = y + 1
    del y
    w = x.repeat(8, 8)
    main.wait_stream(side)
    return w, z, behind
