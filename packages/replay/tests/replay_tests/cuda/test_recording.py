"""CUDA graphs above the thin layer of torch.cuda, on a simulator: the order in which a device is told, and the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from attrs import evolve

from npucompose import ops
from npucompose.bits import same_bytes
from npucompose.errors import CaptureError, SignatureError
from npucompose.recorder import LowerRequest
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.streams import Streams
from npucompose.streams import apply
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.device import SharedPool
from npucompose_replay.cuda.recording import CudaRecording
from npucompose_replay.front.detached import detach_call
from replay_tests.capturing import CapturingBackend, request
from replay_tests.cuda.simulated_device import SimulatedDevice, Stream, cuda_recording
from tests.graph_helpers import traced
from tests.sample_graphs import mm_abs_sub


def recorded(function: Any, *inputs: Any, **options: Any) -> tuple[CudaRecording, SimulatedDevice]:
    """A recording that has not been called yet."""
    device = SimulatedDevice()
    made = cuda_recording(traced(function, *inputs), list(inputs), device, **options)
    return made, device


def test_a_replay_copies_in_what_moved_and_gives_eagers_bits() -> None:
    function = lambda x, w: ((x @ w).relu() + 1, x.sum())  # noqa: E731
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    captured, _ = recorded(function, x, w, static=frozenset({1}))
    for other in (x, torch.randn(4, 4), torch.randn(4, 4)):
        assert all(map(same_bytes, captured.replay(other, w), function(other, w)))


def test_the_first_call_runs_on_the_side_stream_and_the_second_tells_streams_and_events_in_order(golden: Any) -> None:
    ops.define()
    x = torch.randn(4, 4)
    module = traced(mm_abs_sub, x)
    apply(module.graph, Streams(min_gain=0), Capabilities(target="cuda", mode="reduce-overhead"))
    device = SimulatedDevice()
    captured = cuda_recording(module, [x], device)
    assert device.told == []
    captured.replay(x)
    golden("cuda/mm_abs_sub_first.txt", "\n".join(device.told) + "\n")
    device.told.clear()
    y = torch.randn(4, 4)
    got = captured.replay(y)
    golden("cuda/mm_abs_sub.txt", "\n".join(device.told) + "\n")
    assert all(map(same_bytes, got, torch.utils._pytree.tree_leaves(mm_abs_sub(y))))


def test_what_a_graph_writes_reaches_the_caller_once_a_call() -> None:
    def function(cache: torch.Tensor, state: torch.Tensor, x: torch.Tensor) -> Any:
        cache.add_(x)
        state.mul_(2)
        return (cache * state,)

    state, x = torch.ones(3), torch.ones(3)
    captured, _ = recorded(function, torch.zeros(3), state, x, static=frozenset({1}))
    for call in (1, 2, 3, 4):
        cache = torch.full((3,), 5.0)
        versions = cache._version, state._version
        assert captured.replay(cache, state, x)[0].tolist() == [6.0 * 2**call] * 3
        assert (cache.tolist(), state.tolist()) == ([6.0] * 3, [2.0**call] * 3)
        assert cache._version > versions[0]
        assert state._version > versions[1]


def test_outputs_that_are_inputs_or_views_of_them_are_the_callers() -> None:
    x = torch.randn(2, 3)
    captured, _ = recorded(lambda x: (x, x.t(), x + 1, 3), x)
    other = torch.randn(2, 3)
    same, turned, more, three = captured.replay(other)
    assert same is other
    assert turned.data_ptr() == other.data_ptr()
    assert same_bytes(turned, other.t())
    assert same_bytes(more, other + 1)
    assert three == 3


def test_another_signature_or_a_static_input_from_elsewhere_is_refused_and_nothing_done() -> None:
    x, w = torch.randn(3), torch.randn(3)
    captured, device = recorded(lambda x, w: (x * w,), x, w, static=frozenset({1}))
    device.told.clear()
    for wrong in ((torch.randn(4), w), (x.double(), w), (x, w.clone()), (x,), (x, 3.0), (x.to("meta"), w)):
        with pytest.raises(SignatureError, match=r"captured for .*torch\.float32\[3\]@cpu"):
            captured.replay(*wrong)
    assert device.told == []


def test_what_lies_elsewhere_or_depends_on_data_is_refused_at_capture() -> None:
    device, x = SimulatedDevice(), torch.randn(3)
    module, pool = traced(lambda x: (x + 1,), x), SharedPool(device)
    with pytest.raises(CaptureError, match="input 0 is on meta"):
        cuda_recording(module, [x.to("meta")], device, pool)
    x = torch.ones(3)
    module = traced(lambda x: (x.bernoulli_().nonzero(),), x)
    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"cannot capture aten\.nonzero"):
        cuda_recording(module, [x], device, pool).replay(x)
    assert x.tolist() == [1.0] * 3
    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_go_on_as_in_eager() -> None:
    x = torch.zeros(3)
    captured, _ = recorded(lambda x: (torch.rand_like(x),), x)
    torch.manual_seed(0)
    got = [captured.replay(x)[0].clone() for _ in range(4)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    assert all(map(same_bytes, got, [torch.rand_like(x) for _ in range(4)]))
    assert torch.equal(torch.get_rng_state(), state)


def test_recordings_share_one_pool_and_take_turns() -> None:
    device = SimulatedDevice()
    cache = CudaCache(request(traced(lambda x: ((x + 1) * x,), torch.randn(3))), device=device, capture_limit=2)
    x, y = torch.randn(3), torch.randn(5)

    def call(value: torch.Tensor) -> Callable[[], None]:
        def one() -> None:
            assert same_bytes(cache([value])[0], (value + 1) * value)

        return one

    waits = in_turns(device, map(call, (x, y, x, y, x)))
    begins = [line for line in device.told if line.startswith("capture begins")]
    assert len(begins) == 2
    assert all(line.endswith("in pool1") for line in begins)
    assert device.told.count("replay") == 3
    assert waits == [[], ["b waits for a"], ["a waits for b"]]
    with pytest.warns(RuntimeWarning, match="capture_limit=2"):
        cache([torch.randn(7)])


class OnSimulatedDevice(CapturingBackend):
    """torch.compile's backend with CUDA graphs on a simulated device."""

    def made(self, lowered: LowerRequest) -> CudaCache:
        return CudaCache(lowered, device=SimulatedDevice(), **self.options)


def test_a_call_comes_through_torch_compile_and_can_be_detached() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4).requires_grad_(False)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.linear(x).relu() + self.count

    model, backend = Model(), OnSimulatedDevice()
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
        handle = detach_call(lambda: compiled(x), (x,), {})
        for step in range(3, 6):
            y = torch.randn(2, 4)
            assert same_bytes(handle(y), model.linear(y).relu() + step)
    assert float(model.count) == 5


def in_turns(device: SimulatedDevice, calls: Iterable[Callable[[], Any]]) -> list[list[str]]:
    """What the streams "a" and "b", on which calls are made in turn, wait for before each replay."""
    waits: list[list[str]] = []
    streams = Stream(device, "a"), Stream(device, "b")
    for turn, call in enumerate(calls):
        device._current, known = streams[turn % 2], len(device.told)
        call()
        told = device.told[known:]
        if "replay" in told:
            waits.append(sorted({line for line in told if line.startswith(f"{streams[turn % 2].name} waits")}))
    return waits


def on_one_pool(*functions: Any) -> tuple[list[CudaCache], SimulatedDevice]:
    device = SimulatedDevice()
    pool = SharedPool(device)
    requests = [evolve(request(traced(function, torch.randn(3))), memory=pool) for function in functions]
    return [CudaCache(one, device=device, capture_limit=2) for one in requests], device


def test_graphs_of_one_model_lie_in_one_pool_and_take_turns() -> None:
    functions = [lambda x: ((x + 1) * x,), lambda x: ((x * x).relu() - x,)]
    caches, device = on_one_pool(*functions)
    x = torch.randn(3)

    def call(turn: int) -> Callable[[], None]:
        def one() -> None:
            assert same_bytes(caches[turn]([x])[0], functions[turn](x)[0])

        return one

    waits = in_turns(device, map(call, (0, 1, 1, 0, 1)))
    begins = [line for line in device.told if line.startswith("capture begins")]
    assert len(begins) == 2
    assert all(line.endswith("in pool1") for line in begins)
    assert waits == [[], ["b waits for a"], ["a waits for b"]]


def test_a_graph_that_is_called_while_another_is_captured_becomes_a_part_of_it() -> None:
    """A device begins no capture within another, and a replay within one of its pool would overwrite its memory."""
    with torch.library._scoped_library("npucompose_cuda", "FRAGMENT") as library:
        library.define("inner(Tensor x) -> Tensor")
        library.impl("inner", lambda x: caches[0]([x])[0].clone() if caches else x * 2, "CPU")
        caches: list[CudaCache] = []
        made, device = on_one_pool(lambda x: (x * 2,), lambda x: (torch.ops.npucompose_cuda.inner(x) + x,))
        for _ in range(2):
            made[0]([torch.randn(3)])
        caches += made
        device.told.clear()
        x, y = torch.randn(3), torch.randn(3)
        with pytest.warns(RuntimeWarning, match="lie in the same memory"):
            assert same_bytes(made[1]([x])[0], x * 2 + x)
        for _ in range(2):
            assert same_bytes(made[1]([y])[0], y * 2 + y)
        assert sum(line.startswith("capture begins") for line in device.told) == 1
        assert device.told.count("replay") == 2
