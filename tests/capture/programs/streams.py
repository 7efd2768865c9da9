"""Programs with streams, events and collectives: joined or not, of the capture or from outside."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.programs import fault, legal

JOIN = "RT feature/aclgraph/context_aclgraph.cc:348, dev_guide/04-02"
COLLECTIVE = "xLLM-AI/xllm #2284: HCCL's own stream, 107025"
BORDER = "RT api/impl/api_impl.cc:1666"
DEFAULT = "RT dev_guide/04-01, limit 6"
POOL = "TN core/npu/NPUStream.cpp:59: streams come from pools of 32"
Tensor = torch.Tensor


def _side() -> Any:
    return torch.npu.Stream()


def _two() -> Any:
    return torch.npu.Stream(), torch.npu.Stream()


@fault("unjoined_stream", 107025, JOIN, before=_side)
def never_joined(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        shared = x * 2  # here
    return x + shared.detach()


@fault("unjoined_stream", 107025, JOIN, before=_side)
def joined_too_early(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    torch.npu.current_stream().wait_stream(side)
    with torch.npu.stream(side):
        z = y + 1  # here
    return y + z.detach()


@fault("unjoined_stream", 107025, JOIN, before=_two)
def one_of_two_joined(x: Tensor, side: Any, other: Any) -> Any:
    for stream in (side, other):
        stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    with torch.npu.stream(other):
        x.mul(3)  # here
    torch.npu.current_stream().wait_stream(side)
    return y + 1


@fault("unjoined_stream", 107025, JOIN, before=_side)
def an_event_that_nothing_waits_for(x: Tensor, side: Any) -> Any:
    begun, done = torch.npu.Event(), torch.npu.Event()
    begun.record()
    begun.wait(side)
    with torch.npu.stream(side):
        x.mul(2)  # here
        done.record()
    return x + 1


@fault("unjoined_stream", 107025, JOIN, before=lambda: torch.cuda.Stream())
def a_stream_as_on_a_gpu(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul(2)  # here
    return x + 1


@fault(
    "unjoined_stream",
    107025,
    "RT feature/aclgraph/v100/capture_adapt_v100.cc:47: the last task is a wait",
    before=_side,
)
def a_stream_without_work(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())  # here
    return x * 2


@fault(
    "unjoined_stream", 107025, "RT feature/aclgraph/context_aclgraph.cc:388: the last record has no wait", before=_side
)
def an_event_recorded_behind_the_join(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    torch.npu.current_stream().wait_stream(side)
    side.record_event()  # here
    return y + 1


@fault("unjoined_stream", 107025, JOIN, before=_two)
def joined_to_a_stream_that_is_not(x: Tensor, side: Any, other: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    other.wait_stream(side)
    with torch.npu.stream(other):
        y + 1  # here
    return x + 1


@fault("uncaptured_stream", None, "RT feature/aclgraph/stream_capture.cc:72", before=_side)
def a_stream_that_no_event_reached(x: Tensor, side: Any) -> Any:
    with torch.npu.stream(side):
        x.mul(2)  # here
    return x + 1


@fault("default_stream", None, DEFAULT)
def work_on_the_default_stream(x: Tensor) -> Any:
    with torch.npu.stream(torch.npu.default_stream()):
        x.mul(2)  # here
    return x + 1


@fault("default_stream_waits", 107031, "RT api/impl/api_impl.cc:1631")
def the_default_stream_waits(x: Tensor) -> Any:
    y = x * 2
    torch.npu.default_stream().wait_event(torch.npu.current_stream().record_event())  # here
    return y


def _loaded() -> Any:
    event = torch.npu.Event()
    event.record()
    return event


@fault("border_event", 107024, BORDER, before=_loaded)
def an_event_from_before(x: Tensor, loaded: Any) -> Any:
    loaded.wait()  # here
    return x * 2


@fault("border_event", 107024, BORDER, before=_side)
def waits_for_a_stream_outside(x: Tensor, side: Any) -> Any:
    torch.npu.current_stream().wait_stream(side)  # here
    return x * 2


@fault("border_event", 107024, BORDER)
def waits_for_the_default_stream(x: Tensor) -> Any:
    torch.npu.current_stream().wait_stream(torch.npu.default_stream())  # here
    return x * 2


@fault("border_event", 107024, BORDER, before=_loaded, mode="relaxed")
def an_event_from_before_in_relaxed_mode(x: Tensor, loaded: Any) -> Any:
    torch.npu.current_stream().wait_event(loaded)  # here
    return x * 2


@fault("ipc_event", 207000, "RT api/impl/api_error.cc:1711", before=lambda: torch.npu.Event(interprocess=True))
def an_event_that_processes_share(x: Tensor, shared: Any) -> Any:
    y = x * 2
    shared.record()  # here
    return y


@fault("external_event", None, "TN core/npu/NPUEvent.cpp:142", before=lambda: torch.npu.ExternalEvent(), sure=False)
def two_waits_for_one_record(x: Tensor, ready: Any) -> Any:
    ready.wait(torch.npu.current_stream())
    y = x * 2
    ready.wait(torch.npu.current_stream())  # here
    return y


@fault("unjoined_collective", 107025, COLLECTIVE)
def a_collective_that_nothing_waits_for(x: Tensor) -> Any:
    y = x * 2
    torch.distributed.all_reduce(y, async_op=True)  # here
    return y


@fault("unjoined_collective", 107025, COLLECTIVE)
def a_message_that_nothing_waits_for(x: Tensor) -> Any:
    y = x * 2
    torch.distributed.isend(y, 1)  # here
    return y


@fault("unjoined_stream", 107025, POOL, before=lambda: tuple(torch.npu.Stream() for _ in range(33)))
def the_thirty_third_stream_is_the_first(x: Tensor, *streams: Any) -> Any:
    first, last = streams[0], streams[32]
    assert first == last
    last.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(first):
        x.mul(2)  # here
    return x + 1


@legal(
    "unjoined_stream",
    "TN core/npu/NPUCachingAllocator.cpp:1588: the allocator puts its event off until no capture is open",
    before=_side,
)
def a_tensor_of_a_side_stream_is_recorded(x: Tensor, side: Any) -> Any:
    current = torch.npu.current_stream()
    side.wait_stream(current)
    with torch.npu.stream(side):
        y = x * 2
    y.record_stream(current)
    current.wait_stream(side)
    return y + 1


@legal("unjoined_stream", JOIN, before=_side)
def joined(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        shared = x * 2
    routed = x + 1
    torch.npu.current_stream().wait_stream(side)
    return routed + shared


@legal("unjoined_stream", JOIN, before=_side)
def joined_by_events(x: Tensor, side: Any) -> Any:
    begun, done = torch.npu.Event(), torch.npu.Event()
    begun.record()
    with torch.npu.stream(side):
        begun.wait()
        y = x * 2
        done.record()
    z = x + 1
    torch.npu.current_stream().wait_event(done)
    return y + z


@legal("unjoined_stream", JOIN, before=_two)
def joined_through_another(x: Tensor, side: Any, other: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
    other.wait_stream(side)
    with torch.npu.stream(other):
        z = y + 1
    torch.npu.current_stream().wait_stream(other)
    return y + z


@legal(
    "unjoined_stream",
    "RT feature/aclgraph/context_aclgraph.cc:388: the last task is a record that is waited for",
    before=_side,
)
def a_stream_without_work_that_comes_back(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    torch.npu.current_stream().wait_stream(side)
    return x * 2


@legal("unjoined_stream", JOIN, before=lambda: torch.npu.Stream(priority=-1))
def a_stream_of_high_priority(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with side:
        y = x * 2
    torch.npu.current_stream().wait_stream(side)
    return y + 1


@legal("unjoined_stream", POOL, before=lambda: tuple(torch.npu.Stream() for _ in range(33)))
def the_thirty_third_stream_joins_the_first(x: Tensor, *streams: Any) -> Any:
    streams[0].wait_stream(torch.npu.current_stream())
    with torch.npu.stream(streams[0]):
        y = x * 2
    torch.npu.current_stream().wait_stream(streams[32])
    return y + 1


@legal("uncaptured_stream", "RT feature/aclgraph/context_aclgraph.cc: the event brings the stream in", before=_side)
def a_stream_that_an_event_reached(x: Tensor, side: Any) -> Any:
    side.wait_event(torch.npu.current_stream().record_event())
    with torch.npu.stream(side):
        y = x * 2
    torch.npu.current_stream().wait_event(side.record_event())
    return y + 1


@legal(
    "border_event",
    "RT api/impl/api_error.cc:1400: an external event is the host's",
    before=lambda: torch.npu.ExternalEvent(),
)
def an_external_event(x: Tensor, ready: Any) -> Any:
    ready.wait(torch.npu.current_stream())
    ready.reset(torch.npu.current_stream())
    return x * 2


@legal("border_event", "TN core/npu/NPUEvent.cpp:123: an event that was never recorded is not waited for")
def an_event_never_recorded(x: Tensor) -> Any:
    torch.npu.Event().wait()
    return x * 2


@legal("border_event", "RT api/impl/api_impl.cc:2168: recorded anew, it is the capture's", before=_loaded)
def an_event_from_before_recorded_anew(x: Tensor, event: Any) -> Any:
    y = x * 2
    event.record()
    event.wait()
    return y


@legal(
    "border_event",
    "RT api/impl/api_impl.cc:1648: only a captured stream is refused",
    before=lambda: (_loaded(), *_two()),
)
def streams_outside_wait_for_each_other(x: Tensor, loaded: Any, side: Any, other: Any) -> Any:
    side.wait_event(loaded)
    other.wait_stream(side)
    return x * 2


@legal("default_stream", "torch: the current stream is the one that captures")
def the_current_stream_named(x: Tensor) -> Any:
    with torch.npu.stream(torch.npu.current_stream()), torch.npu.stream(None):
        return x * 2


@legal("default_stream_waits", "RT api/impl/api_impl.cc:2193: a record on the default stream is no part of the capture")
def an_event_recorded_on_the_default_stream(x: Tensor) -> Any:
    torch.npu.default_stream().record_event()
    return x * 2


@legal("ipc_event", "TN npu/Event.cpp:51: an event of this process")
def an_event_of_this_process(x: Tensor) -> Any:
    done = torch.npu.Event(blocking=True)
    y = x * 2
    done.record()
    return y


@legal("external_event", "TN core/npu/NPUEvent.cpp:110: a record lets the event be waited for anew",
       before=lambda: torch.npu.ExternalEvent())  # fmt: skip
def a_record_between_two_waits(x: Tensor, ready: Any) -> Any:
    ready.wait(torch.npu.current_stream())
    ready.record(torch.npu.current_stream())
    ready.wait(torch.npu.current_stream())
    return x * 2


@legal("unjoined_collective", "TN distributed/ProcessGroupHCCL.cpp:1020: the current stream waits")
def a_collective_that_is_waited_for(x: Tensor) -> Any:
    y = x * 2
    work = torch.distributed.all_reduce(y, async_op=True)
    z = x + 1
    work.wait()
    return y + z


@legal("unjoined_collective", "torch: without async_op the current stream waits at once")
def collectives_in_order(x: Tensor) -> Any:
    torch.distributed.all_reduce(x)
    out = torch.empty_like(x)
    torch.distributed.all_gather_into_tensor(out, x)
    return out + x
