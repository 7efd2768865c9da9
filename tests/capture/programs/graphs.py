"""Programs that capture, replay, mark or update inside a capture, or work in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.capture.programs import fault, legal

NESTED = "RT feature/aclgraph/context_aclgraph.cc:293"
GROUP = "RT feature/aclgraph/context_aclgraph.cc:783, 820; sgl-project/sglang #14367: 107033"
UPDATE = "RT feature/aclgraph/api_error_aclgraph.cc:88; VA #4180"
THREAD = "RT feature/aclgraph/context_aclgraph.cc:230; xLLM-AI/xllm #604"
END = "RT feature/aclgraph/context_aclgraph.cc:526, TN core/npu/NPUGraph.cpp:348"
Tensor = torch.Tensor


def _side() -> Any:
    return torch.npu.Stream()


def _in_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


# Graphs in a capture.


@fault("nested_capture", 107027, "torch_npu 2.13.0 npu/graphs.py: graph.__enter__ synchronises the device")
def a_graph_of_its_own(x: Tensor) -> Any:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):  # here
        return x * 2


@fault("nested_capture", 107027, NESTED)
def a_capture_on_the_captured_stream(x: Tensor) -> Any:
    graph = torch.npu.NPUGraph()
    graph.capture_begin()  # here
    return x * 2


def _captured() -> Any:
    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.stream(stream):
        graph.capture_begin()
        graph.capture_end()
    return graph


@fault("nested_replay", 107027, "RT api/impl/api_error.cc:4057; TN core/npu/NPUGraph.cpp:404", before=_captured)
def a_replay_on_the_captured_stream(x: Tensor, graph: Any) -> Any:
    y = x * 2
    graph.replay()  # here
    return y


@fault("graph_order", None, "TN core/npu/NPUGraph.cpp:394")
def a_replay_before_the_capture(x: Tensor) -> Any:
    torch.npu.NPUGraph().replay()  # here
    return x * 2


@fault("graph_order", None, "TN core/npu/NPUGraph.cpp:483")
def a_pool_before_the_capture(x: Tensor) -> Any:
    torch.npu.NPUGraph().pool()  # here
    return x * 2


@fault("unmatched_end", 107036, END, before=_side)
def ends_the_capture_on_a_side_stream(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        y = x * 2
        torch.npu.NPUGraph().capture_end()  # here
    torch.npu.current_stream().wait_stream(side)
    return y + 1


@fault("crossed_captures", 107032, "RT feature/aclgraph/v100/api_impl_capture_event.cc:93", before=_side)
def an_event_of_another_capture(x: Tensor, side: Any) -> Any:
    y = x * 2
    event = torch.npu.current_stream().record_event()
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(side):
        graph.capture_begin()
        event.wait()  # here
        graph.capture_end()
    return y


@fault("wrong_thread", 107038, "RT feature/aclgraph/capture_model_utils.cc:84", before=_side)
def a_capture_that_ends_in_a_thread(x: Tensor, side: Any) -> Any:
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(side):
        graph.capture_begin()

    def end() -> None:
        with torch.npu.stream(side):
            graph.capture_end()  # here

    _in_a_thread(end)
    return x * 2


@legal(
    "wrong_thread",
    "RT feature/aclgraph/capture_model_utils.cc:82: relaxed mode allows it",
    before=_side,
    mode="relaxed",
)
def a_capture_that_ends_in_a_thread_in_relaxed_mode(x: Tensor, side: Any) -> Any:
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(side):
        graph.capture_begin(capture_error_mode="relaxed")

    def end() -> None:
        with torch.npu.stream(side):
            graph.capture_end()

    _in_a_thread(end)
    return x * 2


@legal(
    "nested_capture", "RT feature/aclgraph/context_aclgraph.cc:293: another stream may capture meanwhile", before=_side
)
def a_capture_on_another_stream(x: Tensor, side: Any) -> Any:
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(side):
        graph.capture_begin()
        graph.capture_end()
    return x * 2


@legal("nested_capture", "TN npu/Module.cpp:1043: it asks, and changes nothing")
def asks_whether_it_is_captured(x: Tensor) -> Any:
    return x * 2 if torch.npu.is_current_stream_capturing() else x


@legal("graph_order", "TN core/npu/NPUGraph.cpp:483: it was captured", before=_captured)
def a_pool_behind_the_capture(x: Tensor, graph: Any) -> Any:
    assert len(graph.pool()) == 2
    return x * 2


@legal(
    "nested_replay", "RT api/impl/api_error.cc:4057: a stream outside may replay", before=lambda: (_captured(), _side())
)
def a_replay_on_a_stream_outside(x: Tensor, graph: Any, side: Any) -> Any:
    with torch.npu.stream(side):
        graph.replay()
    return x * 2


# Task groups and updates.


@fault("task_group", 107033, "RT feature/aclgraph/context_aclgraph.cc:359")
def a_group_that_is_left_open(x: Tensor) -> Any:
    torch.npu.graph_task_group_begin(torch.npu.current_stream())  # here
    return x * 2


@fault("task_group", 107033, GROUP)
def a_group_that_is_opened_twice(x: Tensor) -> Any:
    stream = torch.npu.current_stream()
    torch.npu.graph_task_group_begin(stream)
    torch.npu.graph_task_group_begin(stream)  # here
    y = x * 2
    torch.npu.graph_task_group_end(stream)
    return y


@fault("task_group", 107033, GROUP)
def a_group_that_was_not_opened(x: Tensor) -> Any:
    y = x * 2
    torch.npu.graph_task_group_end(torch.npu.current_stream())  # here
    return y


@fault("not_capturing", 107029, "RT feature/aclgraph/api_error_aclgraph.cc:177", before=_side)
def a_group_on_a_stream_outside(x: Tensor, side: Any) -> Any:
    torch.npu.graph_task_group_begin(side)  # here
    return x * 2


@fault("not_capturing", 107029, "RT feature/aclgraph/api_error_aclgraph.cc:187", before=_side)
def the_end_of_a_group_on_a_stream_outside(x: Tensor, side: Any) -> Any:
    torch.npu.graph_task_group_end(side)  # here
    return x * 2


@fault("task_group_broken", 107034, "RT feature/aclgraph/stream_capture.cc:84", before=_side)
def work_beside_an_open_group(x: Tensor, side: Any) -> Any:
    stream = torch.npu.current_stream()
    side.wait_stream(stream)
    torch.npu.graph_task_group_begin(stream)
    y = x * 2
    torch.npu.graph_task_group_end(stream)
    torch.npu.graph_task_group_begin(stream)
    with torch.npu.stream(side):
        z = x + 1  # here
    torch.npu.graph_task_group_end(stream)
    stream.wait_stream(side)
    return y + z


@fault("task_update", 107027, UPDATE, before=lambda: object())
def an_update_on_the_captured_stream(x: Tensor, handle: Any) -> Any:
    torch.npu.graph_task_update_begin(torch.npu.current_stream(), handle)  # here
    return x * 2


@fault("task_update", 107027, "RT feature/aclgraph/api_error_aclgraph.cc:104")
def the_end_of_an_update_on_the_captured_stream(x: Tensor) -> Any:
    torch.npu.graph_task_update_end(torch.npu.current_stream())  # here
    return x * 2


@legal("task_group", GROUP)
def a_group_that_is_closed(x: Tensor) -> Any:
    stream = torch.npu.current_stream()
    for _ in range(2):
        torch.npu.graph_task_group_begin(stream)
        y = x * 2
        torch.npu.graph_task_group_end(stream)
    return y


@legal("task_group_broken", "RT feature/aclgraph/stream_capture.cc:84: no group is open", before=_side)
def work_behind_a_closed_group(x: Tensor, side: Any) -> Any:
    stream = torch.npu.current_stream()
    side.wait_stream(stream)
    torch.npu.graph_task_group_begin(stream)
    y = x * 2
    torch.npu.graph_task_group_end(stream)
    with torch.npu.stream(side):
        z = x + 1
    stream.wait_stream(side)
    return y + z


@legal(
    "not_capturing", "RT feature/aclgraph/api_error_aclgraph.cc:177: an event has brought the stream in", before=_side
)
def a_group_on_a_stream_that_joined(x: Tensor, side: Any) -> Any:
    side.wait_stream(torch.npu.current_stream())
    torch.npu.graph_task_group_begin(side)
    with torch.npu.stream(side):
        y = x * 2
    torch.npu.graph_task_group_end(side)
    torch.npu.current_stream().wait_stream(side)
    return y + 1


@legal("opaque", "RT api/impl/api_impl.cc:9139; Ascend/pytorch test/npu/test_aclgraph_launch_host_func.py")
def a_function_of_the_host(x: Tensor) -> Any:
    y = x * 2
    torch.npu._subscribe_report(torch.npu.current_stream())
    torch.npu._launch_host_func(torch.npu.current_stream(), print, None)
    return y


# Other threads.


@fault("other_thread", 107030, THREAD)
def a_thread_that_copies(x: Tensor) -> Any:
    def load() -> None:
        torch.arange(4.0).to(x.device)  # here

    _in_a_thread(load)
    return x * 2


@fault("other_thread", 107030, THREAD, before=lambda: torch.ones(4, device="npu"))
def a_thread_that_reads(x: Tensor, counter: Tensor) -> Any:
    def read() -> None:
        counter[0].item()  # here

    _in_a_thread(read)
    return x * 2


@fault("synchronise", 107027, "RT core/src/context/context.cc:1232: the device has a stream that is captured")
def a_thread_that_synchronises_the_device(x: Tensor) -> Any:
    _in_a_thread(lambda: torch.npu.synchronize())  # here
    return x * 2


@legal("other_thread", "RT feature/aclgraph/context_aclgraph.cc:248: other threads may", mode="thread_local")
def a_thread_that_copies_in_its_mode(x: Tensor) -> Any:
    _in_a_thread(lambda: torch.arange(4.0).to(x.device))
    return x * 2


@legal("other_thread", "torch: what lies on the host is computed there")
def a_thread_on_the_host(x: Tensor) -> Any:
    _in_a_thread(lambda: torch.arange(4.0).sum().item())
    return x * 2


@legal("other_thread", "RT api/impl/api_error.cc:1446: a stream that is not captured may be waited for", before=_side)
def a_thread_with_a_stream_of_its_own(x: Tensor, side: Any) -> Any:
    _in_a_thread(side.synchronize)
    return x * 2
