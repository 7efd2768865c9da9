"""A result of a CUDA graph that somebody holds is never overwritten; every operator runs once a call. Simulated."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError
from npucompose.recorder import LowerRequest
from npucompose_replay.cuda.cache import CudaCache
from npucompose_replay.cuda.recording import CudaRecording
from npucompose_replay.cuda.results import ResultMemory
from npucompose_replay.front.detached import detach_call
from replay_tests.capturing import CapturingBackend, request
from replay_tests.cuda.simulated_device import SimulatedDevice, Stream, cuda_recording
from tests.graph_helpers import in_threads, traced


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that share memory, one with gaps, one that is expanded, one that overlaps itself, an empty one."""
    y = x @ x
    return (
        y,
        y.t(),
        (x + 1)[:, 1:3],
        x.sum(0).expand(3, 4),
        (x.flatten() * 2).unfold(0, 4, 1),
        torch.view_as_complex((x * 3).reshape(-1, 2)).conj(),
        x[:0] + 1,
    )


def recording(function: Callable[..., Any], *inputs: Any, calls: int = 2, **options: Any) -> CudaRecording:
    """A recording that was called so often; after two calls it replays."""
    device = SimulatedDevice()
    made = cuda_recording(traced(function, *inputs), list(inputs), device, **options)
    for _ in range(calls):
        made.replay(*inputs)
    return made


def told(made: CudaRecording) -> list[str]:
    device = made._device
    assert isinstance(device, SimulatedDevice)
    return device.told


def captures(made: CudaRecording) -> int:
    return sum(line.startswith("capture begins") for line in told(made))


def inputs(count: int, size: int = 4) -> list[torch.Tensor]:
    return [torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


def agree(got: Any, expected: Any) -> bool:
    return all(a.stride() == b.stride() and same_bytes(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("clone", [False, True])
def test_results_that_are_kept_keep_their_values(clone: bool) -> None:
    xs = inputs(9)
    made = recording(several, xs[0], calls=0, clone_output=clone)
    kept = [made.replay(x) for x in xs]
    assert all(agree(results, several(x)) for x, results in zip(xs, kept, strict=True))
    assert captures(made) == (1 if clone else 2)


def test_without_the_look_at_who_holds_results_they_would_be_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(ResultMemory, "is_held", lambda self: False)
    xs = inputs(9)
    made = recording(several, xs[0])
    kept = [made.replay(x) for x in xs]
    assert not all(agree(results, several(x)) for x, results in zip(xs, kept, strict=True))


@pytest.mark.parametrize(
    "hold",
    [
        lambda result: result[1:],
        lambda result: result.detach(),
        lambda result: result.view(-1)[3],
        lambda result: result.numpy(),
        lambda result: torch.empty(0).set_(result.untyped_storage()),
        lambda result: result.untyped_storage(),
        lambda result: {"deep": [result.t()]},
        lambda result: nn.Parameter(result),
        torch._lazy_clone,  # pyright: ignore[reportPrivateImportUsage]
    ],
)
def test_a_view_of_any_kind_holds_the_whole_result(hold: Callable[[Any], Any]) -> None:
    xs = inputs(4)
    made = recording(lambda x: (x @ x,), xs[0])
    held, expected = hold(made.replay(xs[1])[0]), hold(xs[1] @ xs[1])
    for x in xs:
        assert agree(made.replay(x), (x @ x,))
    assert str(held) == str(expected)


def test_a_result_that_nobody_holds_lies_in_the_same_memory_and_is_not_copied() -> None:
    made = recording(several, inputs(1)[0])
    told(made).clear()
    assert len({tuple(result.data_ptr() for result in made.replay(x)) for x in inputs(8)}) == 1
    assert captures(made) == 0
    assert not any("clone" in line for line in told(made))


def test_a_graph_is_captured_again_once_and_gives_copies_only_while_results_are_held() -> None:
    x = torch.ones(64)
    made = recording(lambda x: (x + 1,), x)
    own = made.replay(x)[0].data_ptr()
    kept = [made.replay(x)[0] for _ in range(5)]
    assert [result.data_ptr() == own for result in kept] == [True] + [False] * 4
    assert len({result.data_ptr() for result in kept}) == 5
    kept.clear()
    assert {made.replay(x)[0].data_ptr() for _ in range(5)} == {own}
    value = torch.zeros(64)
    for step in range(50):
        (value,) = made.replay(value)
        assert torch.equal(value, torch.full((64,), step + 1.0))
    assert captures(made) == 2


def test_a_result_whose_storage_was_resized_is_not_written_again() -> None:
    for change in (
        lambda result: result.resize_(4096).fill_(7),
        lambda result: result.untyped_storage().resize_(0),
    ):
        made = recording(lambda x: (x + 1,), torch.ones(64))
        change(made.replay(torch.ones(64))[0])  # and let go of it
        for step in range(3):
            assert torch.equal(made.replay(torch.full((64,), float(step)))[0], torch.full((64,), step + 1.0))


def test_results_that_share_memory_do_so_in_every_call() -> None:
    x = inputs(1)[0]
    made = recording(several, x, calls=0)
    kept: list[Any] = []
    for _ in range(4):
        results = made.replay(x)
        results[0].fill_(3)
        assert torch.equal(results[1], torch.full((4, 4), 3.0))
        kept.append(results)


def test_threads_that_share_a_recording_get_results_of_their_own() -> None:
    cache = CudaCache(request(traced(several, inputs(1)[0])), device=SimulatedDevice(), capture_limit=4)
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for x in inputs(20):
                if not agree(cache([x + seed]), several(x + seed)):
                    wrong.append(seed)

    in_threads(work)
    assert not wrong


# -- who lets the next call overwrite


def test_with_reuse_what_was_given_out_with_it_is_overwritten_with_one_warning() -> None:
    x, y = inputs(2)
    made = recording(lambda x: (x @ x,), x)
    (kept,) = made.replay(x, reuse=True)
    with pytest.warns(RuntimeWarning, match='outputs="keep"'):
        (again,) = made.replay(y, reuse=True)
    assert kept.data_ptr() == again.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.replay(x, reuse=True)
    assert captures(made) == 1


def test_with_reuse_what_was_given_out_without_is_left_alone() -> None:
    x, y = inputs(2)
    made = recording(lambda x: (x @ x,), x)
    (kept,) = made.replay(x)
    (lent,) = made.replay(y, reuse=True)
    assert same_bytes(kept, x @ x)
    made.replay(x)
    assert same_bytes(lent, y @ y)


def test_a_result_may_be_the_next_input() -> None:
    made = recording(lambda x: (x + 1,), torch.zeros(4))
    x = torch.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(10):
            before = x
            (x,) = made.replay(x, reuse=True)
            assert (before.tolist(), x.tolist()) == ([float(step)] * 4, [step + 1.0] * 4)
            del before


# -- modes and streams


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("clone", [False, True])
def test_results_are_inference_tensors_exactly_in_inference_mode(inference: bool, clone: bool) -> None:
    x = inputs(1)[0]
    made = recording(several, x, calls=0, clone_output=clone)
    with torch.inference_mode(inference):
        kept = [made.replay(x) for _ in range(4)]
    assert [result.is_inference() for results in kept for result in results] == [inference] * 28
    with torch.inference_mode(not inference):
        assert [result.is_inference() for result in made.replay(x)] == [not inference] * 7


def test_an_inference_tensor_is_written_in_inference_mode() -> None:
    with torch.inference_mode():
        state, fixed = torch.zeros(3), torch.zeros(3)
        made = recording(lambda a, b: (a.add_(1), b.add_(1)), state, fixed, calls=0, static=frozenset({1}))
        for call in (1.0, 2.0, 3.0):
            made.replay(state, fixed)
            assert (state.tolist(), fixed.tolist()) == ([call] * 3, [call] * 3)


def test_results_of_the_first_call_are_told_of_the_callers_stream_and_memory_of_every_stream() -> None:
    x = torch.ones(4)
    made = recording(lambda x: (x + 1,), x, calls=1)
    assert told(made)[-2:] == ["default waits for stream1", "16 bytes are used on default"]
    made.replay(x)
    told(made).clear()
    device: Any = made._device
    other = device._current = Stream(device, "other")
    made.replay(x)
    own = "16 bytes are used on other"  # the input's buffer, then the result's
    assert told(made)[:5] == ["other waits for default", own, "other waits for default", own, "replay"]
    told(made).clear()
    made.replay(x)
    assert not any("bytes" in line or "waits for default" in line for line in told(made))
    assert other is device.current_stream()


# -- every operator once


COUNTS = {"calls": 0}


@torch.library.custom_op("npucompose_cuda_held::count", mutates_args=("state",))
def count(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    COUNTS["calls"] += 1
    state.add_(1)
    return x + state


@count.register_fake
def _(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_each_call_runs_each_operator_once_the_first_one_too() -> None:
    def counted(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.ops.npucompose_cuda_held.count(state, x).abs(),)

    graph = traced(counted, torch.zeros(2), torch.ones(2))
    COUNTS["calls"] = 0
    cache = CudaCache(request(graph), device=SimulatedDevice(), capture_limit=4)
    state = torch.zeros(2)
    for calls in (1, 2, 3, 4):
        assert cache([state, torch.zeros(2)])[0].tolist() == [calls, calls]
        assert state.tolist() == [calls, calls]
        assert COUNTS["calls"] == min(calls, 2), "the host's part runs in the first call and in the capture"


def test_calls_write_and_draw_as_eager_does() -> None:
    def drawing(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state.add_(x)
        return torch.bernoulli(torch.full_like(x, 0.5)), state, state[1:], state * 2, torch.full((2,), 3.0)

    def run(call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        state, found = torch.zeros(3), []
        for step in range(5):
            results = call(state, torch.full((3,), float(step)))
            found += [*(result.clone() for result in results), state.clone()]
        return [*found, torch.get_rng_state()]

    made = recording(drawing, torch.zeros(3), torch.ones(3), calls=0)
    assert agree(run(made.replay), run(drawing))
    state = torch.zeros(3)
    results = made.replay(state, torch.ones(3))
    assert results[1] is state
    assert results[2].data_ptr() == state[1:].data_ptr()


def test_facts_are_there_after_the_first_call_and_grow_with_the_capture() -> None:
    made = recording(several, inputs(1)[0], calls=1)
    first = made.facts()
    assert first["kernels"] > 0
    assert first["seconds"] > 0
    made.replay(inputs(1)[0])
    second = made.facts()
    assert second["seconds"] > first["seconds"]
    made.replay(inputs(1)[0])
    assert made.facts() == second


class OnSimulatedDevice(CapturingBackend):
    def made(self, lowered: LowerRequest) -> CudaCache:
        return CudaCache(lowered, device=SimulatedDevice(), **self.options)


def test_a_handle_of_the_first_call_captures_at_its_own_first_call() -> None:
    model, backend = nn.Linear(4, 4).requires_grad_(False), OnSimulatedDevice()
    compiled = torch.compile(model, backend=backend)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    handle = detach_call(lambda: compiled(x), (x,), {})
    made: Any = backend.caches[0].last
    assert captures(made) == 0
    for value in (y, x, y):
        assert same_bytes(handle(value), model(value))
    assert captures(made) == 1


def test_one_graph_at_three_places_of_a_call_gives_three_results() -> None:
    linear = nn.Linear(4, 4).requires_grad_(False)

    def block(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        if y.sum().item() > 1e9:
            raise ValueError
        return y

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([block(x), block(x + 1), block(x + 2)])

    compiled = torch.compile(rows, backend=OnSimulatedDevice())
    for x in inputs(5):
        assert same_bytes(compiled(x), rows(x))


# -- what is refused


@pytest.fixture
def asking() -> Iterator[Callable[..., Any]]:
    """A model with an operator that waits for the device and does not say so."""
    with torch.library._scoped_library("npucompose_cuda_sync", "FRAGMENT") as library:
        library.define("asks(Tensor x) -> Tensor")
        library.impl("asks", lambda x: x * x.sum().item(), "CPU")
        yield lambda state, x: (torch.ops.npucompose_cuda_sync.asks(state.add_(1)) + x, x * 2)


def test_what_the_device_does_not_record_is_named(asking: Callable[..., Any]) -> None:
    state, x = torch.zeros(2), torch.ones(2)
    made = recording(asking, state, x, calls=1)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"_sync\.asks.*not permitted when stream is capturing$"):
            made.replay(state, x)
    assert state.tolist() == [1.0, 1.0]


def test_what_the_device_does_not_record_runs_as_it_is_between_recordings(asking: Callable[..., Any]) -> None:
    state, x = torch.zeros(2), torch.ones(2)
    cache = CudaCache(request(traced(asking, state, x)), device=SimulatedDevice(), capture_limit=4)
    assert cache.partition().segments == 1
    for call in (1.0, 2.0, 3.0, 4.0):
        results = cache([state, x])
        assert state.tolist() == [call, call]
        assert agree(results, (state * (2 * call) + x, x * 2))
    assert [one.operator for one in cache.partition().outside] == ["npucompose_cuda_sync.asks"]
    assert [one.facts()["captures"] for one in cache.captured] == [1, 2], "results of the last part were held"


def test_an_input_that_as_strided_reads_counts_from_the_begin_of_its_storage() -> None:
    function = lambda x: (x.as_strided((2,), (1,), 1) + 0,)  # noqa: E731
    whole = torch.arange(6.0)
    made = recording(function, whole[2:])
    assert torch.equal(made.replay(whole[2:])[0], whole[1:3])
    assert made.try_replay([torch.arange(4.0)]) is None
    made = recording(function, torch.arange(4.0))
    assert made.try_replay([whole[2:]]) is None
    assert torch.equal(made.replay(torch.arange(4.0) + 5)[0], torch.tensor([6.0, 7.0]))


def test_an_input_that_is_written_may_not_come_to_share_memory_with_another() -> None:
    made = recording(lambda a, b: (a.add_(1), b * 2), torch.ones(4), torch.ones(4))
    whole = torch.ones(6)
    assert made.try_replay([whole[:4], whole[2:]]) is None
    assert torch.equal(whole, torch.ones(6))


def test_threads_of_a_first_call_make_one_recording() -> None:
    cache = CudaCache(request(traced(lambda x: (x + 1,), torch.ones(4))), device=SimulatedDevice(), capture_limit=1)
    found: list[bool] = []
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        barrier.wait()
        with torch.no_grad():
            found.append(torch.equal(cache([torch.full((4,), float(seed))])[0], torch.full((4,), seed + 1.0)))

    in_threads(work)
    assert found == [True] * 4
    assert len(cache.captured) == 1
