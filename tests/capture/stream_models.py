"""Models with streams, events, collectives of their own: joined or not."""

from __future__ import annotations

import threading

import torch
from torch import nn

from tests.capture.seeded import fault, legal

UNJOINED = "xLLM-AI/xllm #2284"


class TwoStreams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.side = torch.npu.Stream()


@fault("unjoined_stream", 107025, "wait_stream(side)", UNJOINED)
class NeverJoined(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            shared = x * 2  # here
        return x + shared.detach()


@fault("unjoined_collective", 107025, "work.wait()", UNJOINED)
class AllReduceNotWaitedFor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.distributed.all_reduce(y, async_op=True)  # here
        return y


@fault("unjoined_stream", 107025, "after the last work", UNJOINED)
class JoinedTooEarly(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            y = x * 2
        torch.npu.current_stream().wait_stream(self.side)
        with torch.npu.stream(self.side):
            z = y + 1  # here
        return y + z.detach()


@fault("unjoined_stream", 107025, "wait_stream(side)", UNJOINED)
class OneOfTwoJoined(TwoStreams):
    def __init__(self) -> None:
        super().__init__()
        self.other = torch.npu.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stream in (self.side, self.other):
            stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            y = x * 2
        with torch.npu.stream(self.other):
            x.mul(3)  # here
        torch.npu.current_stream().wait_stream(self.side)
        return y + 1


@fault("unjoined_stream", 107025, "wait_stream(side)", UNJOINED)
class EventNobodyWaitsFor(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun, done = torch.npu.Event(), torch.npu.Event()
        begun.record()
        begun.wait(self.side)
        with torch.npu.stream(self.side):
            x.mul(2)  # here
            done.record()
        return x + 1


@fault("unjoined_stream", 107025, "wait_stream(side)", UNJOINED)
class CudaStreamNeverJoined(nn.Module):
    """The code of a GPU, moved to an NPU."""

    def __init__(self) -> None:
        super().__init__()
        self.side = torch.cuda.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            x.mul(2)  # here
        return x + 1


@fault("uncaptured_stream", None, "before the first work", "CANN aclcppdevg_03_1782")
class SideStreamNotReached(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.npu.stream(self.side):
            x.mul(2)  # here
        return x + 1


@fault("border_event", 107032, "record the event inside", "hicann/runtime: conflict")
class EventFromBefore(nn.Module):
    """Recorded when the weights were loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = torch.npu.Event()
        self.loaded.record()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.loaded.wait()  # here
        return x * 2


@fault("border_event", 107032, "side.wait_stream", "hicann/runtime: conflict")
class WaitsForStreamOutside(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.current_stream().wait_stream(self.side)  # here
        return x * 2


@fault("default_stream", 107031, "a stream of your own", "CANN aclcppdevg_000519")
class OnDefaultStream(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.npu.stream(torch.npu.default_stream()):
            x.mul(2)  # here
        return x + 1


@fault("default_stream", 107031, "leave the current stream", "CANN aclcppdevg_000519")
class DefaultStreamWaits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.npu.default_stream().wait_event(torch.npu.current_stream().record_event())  # here
        return y


@fault("task_group", 107033, "pair graph_task_group_begin", "sgl-project/sglang #14367")
class GroupLeftOpen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.graph_task_group_begin(torch.npu.current_stream())  # here
        return x * 2


@fault("task_group", 107033, "pair graph_task_group_begin", "sgl-project/sglang #14367")
class GroupOpenedTwice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        torch.npu.graph_task_group_begin(stream)  # here
        y = x * 2
        torch.npu.graph_task_group_end(stream)
        return y


@fault("task_group", 107033, "update between captures", "CANN aclcppdevg_03_1825; vllm-project/vllm-ascend #4180")
class UpdateInCapture(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = torch.npu.current_stream()
        torch.npu.graph_task_update_begin(stream, None)  # here
        y = x * 2
        torch.npu.graph_task_update_end(stream)
        return y


@fault("not_capturing", 107029, "on the stream that captures", "hicann/runtime: stream is not capturing")
class GroupOnAnotherStream(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.graph_task_group_begin(self.side)  # here
        return x * 2


@fault("nested_capture", 107032, "end the first capture", "hicann/runtime: conflict")
class CaptureInCapture(nn.Module):
    """A part of the model has a graph of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):  # here
            return x * 2


@fault("unjoined_collective", 107025, "async_op=True", UNJOINED)
class SendNotWaitedFor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.distributed.isend(y, 1)  # here
        return y


@fault("synchronise", 107027, "behind the replay", "hicann/runtime: operation on a captured stream")
class Barrier(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.distributed.barrier()  # here
        return x * 2


@fault("other_thread", 107030, "capture_error_mode=thread_local", "xLLM-AI/xllm #604")
class ThreadCopies(nn.Module):
    """A thread fetches the next batch while this one is captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loaded: list[torch.Tensor] = []

        def load() -> None:
            loaded.append(torch.arange(4.0).to(x.device))  # here

        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        return x * 2


@legal("other_thread", capture_mode="thread_local")
class ThreadCopiesInItsMode(ThreadCopies):
    """The same, where other threads may."""


@legal("other_thread")
class ThreadOnHost(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: torch.arange(4.0).sum().item())
        thread.start()
        thread.join()
        return x * 2


@legal("unjoined_stream")
class Joined(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            shared = x * 2
        routed = x + 1
        torch.npu.current_stream().wait_stream(self.side)
        return routed + shared


@legal("unjoined_collective")
class AllReduceWaitedFor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = torch.distributed.all_reduce(y, async_op=True)
        z = x + 1
        work.wait()
        return y + z


@legal("unjoined_stream")
class JoinedByEvents(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun, done = torch.npu.Event(), torch.npu.Event()
        begun.record()
        with torch.npu.stream(self.side):
            begun.wait()
            y = x * 2
            done.record()
        z = x + 1
        torch.npu.current_stream().wait_event(done)
        return y + z


@legal("unjoined_stream")
class JoinedThroughAnother(TwoStreams):
    """The third stream waits for the second, and the first for the third."""

    def __init__(self) -> None:
        super().__init__()
        self.other = torch.npu.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            y = x * 2
        self.other.wait_stream(self.side)
        with torch.npu.stream(self.other):
            z = y + 1
        torch.npu.current_stream().wait_stream(self.other)
        return y + z


@legal("unjoined_stream")
class StreamWithoutWork(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        return x * 2


@legal("border_event")
class ExternalEvent(nn.Module):
    """The host sets it before every replay."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = torch.npu.ExternalEvent()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ready.wait(torch.npu.current_stream())
        return x * 2


@legal("border_event")
class EventNeverRecorded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.npu.Event().wait()
        return x * 2


@legal("default_stream")
class CurrentStreamNamed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.npu.stream(torch.npu.current_stream()):
            return x * 2


@legal("task_group")
class GroupClosed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        y = x * 2
        torch.npu.graph_task_group_end(stream)
        return y


@legal("unjoined_collective")
class CollectivesInOrder(nn.Module):
    """Without async_op the current stream waits by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(x)
        out = torch.empty_like(x)
        torch.distributed.all_gather_into_tensor(out, x)
        return out + x


@legal("sync_copy")
class CopiesFromAnotherDevice(nn.Module):
    """Which there is none of: the one that is simulated is npu:0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.device.index in (None, torch.npu.current_device()) else x.cpu().npu()


@legal("nested_capture")
class AsksWhetherItIsCaptured(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.npu.is_current_stream_capturing() else x


@fault("unmatched_end", 107036, "on the stream on which it began", "CANN 1782")
class EndsTheCaptureElsewhere(TwoStreams):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(self.side):
            y = x * 2
            torch.npu.NPUGraph().capture_end()  # here
        torch.npu.current_stream().wait_stream(self.side)
        return y + 1
