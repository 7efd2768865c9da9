"""Graphs with a stream aside, and operators that meet, tell, break and act while they are replayed."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Match, PlanEntry, Streams
from npucompose.streams import apply
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.plan import Workers
from tests.graph_helpers import one_thread
from tests.sample_graphs import CAN, traced

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core only"
)

TWO = Workers(count=2)
X = torch.randn(4, 4)
MEETING_S = 30.0


# -- operators that tell what happens to them

told: dict[str, Any] = {}
acts: dict[str, Callable[[], Any]] = {}
ran: dict[str, tuple[int, int]] = {}
"""{what acted: (core, thread)}"""
meeting = threading.Barrier(2)
replaying, broken = threading.Event(), threading.Event()


@torch.library.custom_op("npucompose_tests::meet", mutates_args=())
def meet(x: torch.Tensor) -> torch.Tensor:
    """Returns only when another one runs at the same time; while a graph is recorded its kernels run one by one."""
    if replaying.is_set():
        meeting.wait(MEETING_S)
    return x + 1


@torch.library.custom_op("npucompose_tests::tell", mutates_args=())
def tell(x: torch.Tensor, name: str) -> torch.Tensor:
    told[name] = {
        "thread": threading.get_ident(),
        "kernel threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "denormal": (torch.full((1,), 1e-39) * 1.0).item(),
    }
    return x + 1


@torch.library.custom_op("npucompose_tests::maybe_break", mutates_args=())
def maybe_break(x: torch.Tensor) -> torch.Tensor:
    if broken.is_set():
        raise ValueError("broken on purpose")
    return x + 1


@torch.library.custom_op("npucompose_tests::act", mutates_args=())
def act(x: torch.Tensor, name: str) -> torch.Tensor:
    """While a test replays: does what it put there under the name, and tells the core and the thread it ran on."""
    if replaying.is_set():
        acts.get(name, lambda: None)()
        ran[name] = (current_core(), threading.get_ident())
    return x + 1


for op in (meet, maybe_break):
    op.register_fake(torch.empty_like)
act.register_fake(lambda x, name: torch.empty_like(x))
tell.register_fake(lambda x, name: torch.empty_like(x))


def planned(
    function: Callable[..., Any], *inputs: torch.Tensor, aside: Sequence[str], can: Capabilities = CAN
) -> fx.GraphModule:
    """The function's graph with the nodes named `aside` on a stream of their own."""
    module = traced(function, *inputs)
    entries = tuple(PlanEntry(stream="s", match=Match(name=name)) for name in aside)
    apply(module.graph, Streams(kind="explicit", plan=entries), can)
    module.recompile()
    return module


def on_two(module: fx.GraphModule, *inputs: torch.Tensor, workers: Workers = TWO) -> CapturedGraph:
    with one_thread():  # otherwise a stranger's operator, which nobody may try, keeps the streams together
        captured = CapturedGraph.capture(module, inputs, workers=workers)
    assert captured.threads is not None, captured.why_threads
    assert captured.threads.count == 2
    return captured


# -- one core each


def current_core() -> int:
    return ctypes.CDLL(None).sched_getcpu()
