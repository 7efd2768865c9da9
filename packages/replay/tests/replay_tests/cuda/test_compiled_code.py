"""A CUDA graph of what a compiler made of a graph keeps the rules of one of the graph itself. Simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError
from npucompose.schema.experiment import Partial
from npucompose_replay.cuda.code import CudaCodeCache
from npucompose_replay.front.detached import DetachError, detach_call
from npucompose_replay.interface import watching
from replay_tests.capturing import request
from replay_tests.cuda.simulated_device import SimulatedDevice
from tests.graph_helpers import traced


class Made:
    """A cache of `written`, which a compiler could have made of `function`; `calls` are those that it was given."""

    def __init__(
        self,
        function: Callable[..., Any],
        *inputs: Any,
        written: Callable[..., Any] | None = None,
        why_not: str = "",
        partial: Partial = "cut",
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self.calls: list[int] = []
        self.device = SimulatedDevice()
        body = written or function

        def compiled(given: list[Any]) -> tuple[Any, ...]:
            values, given[:] = list(given), []  # as Inductor's code does
            self.calls.append(len(values))
            return tuple(body(*values))

        self.cache = CudaCodeCache(
            evolve(request(traced(function, *inputs)), partial=partial),
            compiled,
            kernels=3,
            why_not=why_not,
            kept=kept,
            how={
                "device": self.device,  # type: ignore[typeddict-item]
                "capture_limit": 4,
                "clone_output": False,
                "when_full": "eager",
                "partial": partial,
            },
        )

    @property
    def captures(self) -> int:
        return sum(line.startswith("capture begins") for line in self.device.told)


def test_the_code_is_called_twice_and_then_replayed() -> None:
    function = lambda x, w: ((x @ w).relu(), x + 1)  # noqa: E731
    xs, w = [torch.randn(4, 4) for _ in range(5)], torch.randn(4, 4)
    made = Made(function, xs[0], w)
    kept = [made.cache([x, w]) for x in xs]
    assert made.calls == [2, 2, 2]  # the first call, the capture, and another for results that are held
    for x, got in zip(xs, kept, strict=True):
        assert all(map(same_bytes, got, function(x, w)))
    del kept, got
    made.cache([xs[0], w])
    assert len(made.calls) == 3
    (recording,) = made.cache.captured
    assert (recording.facts()["kernels"], recording.facts()["captures"]) == (3, 2)
    assert made.cache.partition().outside == ()


def test_what_the_graph_writes_reaches_the_caller_though_the_code_is_anothers() -> None:
    def function(state: torch.Tensor, x: torch.Tensor) -> Any:
        state.add_(x)
        return (state * 2, x.view(3, 1))

    x = torch.ones(3)
    made = Made(function, torch.zeros(3), x)
    for call in range(4):
        state = torch.full((3,), float(call))
        version = state._version
        doubled, turned = made.cache([state, x])
        assert state.tolist() == [call + 1.0] * 3
        assert doubled.tolist() == [2 * call + 2.0] * 3
        assert turned.data_ptr() == x.data_ptr()
        assert state._version > version


def test_tensors_of_the_model_are_read_and_written_where_they_lie() -> None:
    def function(cache: torch.Tensor, x: torch.Tensor) -> Any:
        cache.add_(x)
        return (cache * 2,)

    cache, x = torch.zeros(3), torch.ones(3)
    for kept, stays in ((frozenset({id(cache)}), True), (frozenset[int](), False)):
        made = Made(function, cache, x, kept=kept)
        for _ in range(3):
            made.cache([cache, x.clone()])
        (recording,) = made.cache.captured
        assert [" at 0x" in one for one in recording.facts()["signature"]] == [stays, False]
    assert cache.tolist() == [6.0] * 3


def test_each_shape_has_its_recording() -> None:
    made = Made(lambda x: (x * 2,), torch.ones(3))
    for size in (3, 5, 3, 5, 3):
        x = torch.randn(size)
        assert same_bytes(made.cache([x])[0], x * 2)
    assert made.captures == 2


def test_a_handle_is_made_of_a_call_and_replays() -> None:
    made = Made(lambda x: ((x + 1).relu(),), torch.ones(3))
    x = torch.randn(3)
    made.cache([x])
    handle = detach_call(lambda: made.cache([x])[0], (x,), {})
    known = len(made.calls)
    for _ in range(3):
        y = torch.randn(3)
        assert same_bytes(handle(y), (y + 1).relu())
    assert len(made.calls) <= known + 1


def test_what_is_known_to_need_the_host_is_called_as_it_is_and_named() -> None:
    made = Made(lambda x: (x + 1,), torch.ones(3), why_not="mylib.sample is in it: it must run each time")
    x = torch.randn(3)
    with watching() as seen:
        for _ in range(4):
            assert same_bytes(made.cache([x])[0], x + 1)
    assert len(made.calls) == 4
    assert made.captures == 0
    assert {one.instead for one in seen} == {
        "Inductor's wrapper calls its kernels, because mylib.sample is in it: it must run each time"
    }
    (outside,) = made.cache.partition().outside
    assert (outside.operator, outside.reason) == ("the whole graph", "mylib.sample is in it: it must run each time")
    with pytest.raises(DetachError, match=r"ran without a recording: .*mylib\.sample"):
        detach_call(lambda: made.cache([x])[0], (x,), {})
    with pytest.raises(CaptureError, match=r"cannot record what was compiled: mylib\.sample"):
        Made(lambda x: (x + 1,), x, why_not="mylib.sample is in it", partial="refuse")


def test_what_the_device_does_not_record_is_called_as_it_is_from_then_on() -> None:
    function = lambda x: (x + 1,)  # noqa: E731

    def waiting(x: torch.Tensor) -> Any:
        return (x + (1 if x.sum().item() < 1e9 else 2),)

    made = Made(function, torch.ones(3), written=waiting)
    x = torch.ones(3)
    for call in range(4):
        assert made.cache([x])[0].tolist() == [2.0] * 3, call
    assert made.captures == 1
    assert made.cache.captured == []
    (outside,) = made.cache.partition().outside
    assert outside.reason.startswith("the device does not record it: aten.item.default: operation not permitted")

    refused = Made(function, torch.ones(3), written=waiting, partial="refuse")
    refused.cache([x])
    with pytest.raises(CaptureError, match="cannot capture what was compiled: the device does not record it"):
        refused.cache([x])
