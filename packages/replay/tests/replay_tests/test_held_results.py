"""A result that somebody still holds is never overwritten, and one that nobody holds costs no memory and no copy."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import npucompose
from npucompose.bits import same_bytes
from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.trial import ExecutorName
from npucompose_replay.front.graph_cache import GraphCache
from replay_tests.capturing import request
from tests.graph_helpers import traced

EXECUTORS = pytest.mark.parametrize("executor", ["native", "torchscript", "python"])


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Two results in one piece of memory, one of its own, one that comes from a chain in place."""
    y = x @ x
    return y, y.t(), x.sum(0), torch.relu(x - 1).neg()


def captured(function: Callable[..., Any], x: torch.Tensor, executor: ExecutorName) -> CapturedGraph:
    made = CapturedGraph.capture(traced(function, x), [x], executor=executor)
    assert made.executor.name == executor
    return made


def inputs(count: int, size: int = 4) -> list[torch.Tensor]:
    return [torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) for seed in range(count)]


@EXECUTORS
def test_results_that_are_kept_keep_their_values(executor: ExecutorName) -> None:
    xs = inputs(9)
    recording = captured(several, xs[0], executor)
    kept = [recording.replay(x) for x in xs]
    for x, results in zip(xs, kept, strict=True):
        assert all(map(same_bytes, results, several(x)))


@EXECUTORS
@pytest.mark.parametrize(
    "hold",
    [
        lambda result: result[1:],
        lambda result: result.detach(),
        lambda result: result.view(-1)[3],
        lambda result: result.numpy(),
        lambda result: torch.empty(0).set_(result.untyped_storage(), 0, (4, 4)),
        lambda result: result.untyped_storage(),
        lambda result: {"deep": [result.t()]}["deep"],
        lambda result: nn.Parameter(result),
    ],
)
def test_a_view_of_any_kind_holds_the_whole_result(executor: ExecutorName, hold: Callable[[Any], Any]) -> None:
    xs = inputs(4)
    recording = captured(lambda x: (x @ x,), xs[0], executor)
    kept = hold(recording.replay(xs[1])[0])
    expected = hold(xs[1] @ xs[1])
    for x in xs:
        recording.replay(x)
    for got, wanted in zip(*((one if isinstance(one, list) else [one]) for one in (kept, expected)), strict=True):
        if isinstance(got, torch.UntypedStorage):
            assert bytes(got) == bytes(wanted)
        else:
            assert same_bytes(torch.as_tensor(got), torch.as_tensor(wanted))


@EXECUTORS
def test_a_result_that_nobody_holds_lies_in_the_same_memory_each_time(executor: ExecutorName) -> None:
    recording = captured(several, inputs(1)[0], executor)
    addresses = {tuple(result.data_ptr() for result in recording.replay(x)) for x in inputs(8)}
    assert len(addresses) == 1


@EXECUTORS
def test_two_results_held_in_turns_need_two_pieces_of_memory(executor: ExecutorName) -> None:
    recording = captured(lambda x: (x + 1,), torch.ones(64), executor)
    value, addresses = torch.zeros(64), set[int]()
    for _ in range(50):
        (value,) = recording.replay(value)
        addresses.add(value.data_ptr())
    assert len(addresses) == 2
    assert torch.equal(value, torch.full((64,), 50.0))


@EXECUTORS
def test_a_result_whose_storage_was_resized_or_moved_is_not_written_again(executor: ExecutorName) -> None:
    recording = captured(lambda x: (x + 1,), torch.ones(64), executor)
    for change in (
        lambda result: result.resize_(4096).fill_(7),
        lambda result: result.untyped_storage().resize_(0),
        lambda result: result.share_memory_(),
    ):
        change(recording.replay(torch.ones(64))[0])  # and let go of it
        for step in range(3):
            assert torch.equal(recording.replay(torch.full((64,), float(step)))[0], torch.full((64,), step + 1.0))


@EXECUTORS
def test_a_lazy_copy_of_a_result_keeps_its_values(executor: ExecutorName) -> None:
    recording = captured(lambda x: (x + 1,), torch.ones(64), executor)
    copy = torch._lazy_clone(recording.replay(torch.ones(64))[0])
    recording.replay(torch.zeros(64))
    assert torch.equal(copy, torch.full((64,), 2.0))


@EXECUTORS
def test_memory_of_results_that_were_held_once_is_bounded(executor: ExecutorName) -> None:
    recording = captured(lambda x: (x + 1,), torch.ones(1 << 12), executor)
    kept = [recording.replay(torch.ones(1 << 12))[0] for _ in range(100)]
    assert len({result.data_ptr() for result in kept}) == 100
    kept.clear()
    assert len({recording.replay(torch.ones(1 << 12))[0].data_ptr() for _ in range(100)}) == 1


@EXECUTORS
def test_threads_that_share_a_recording_get_results_of_their_own(executor: ExecutorName) -> None:
    cache = GraphCache(request(traced(several, inputs(1)[0])), capture_limit=4, executor=executor)
    wrong: list[int] = []

    def work(seed: int) -> None:
        with torch.no_grad():
            for x in inputs(100, 4):
                x = x + seed
                results = cache([x])
                if not all(map(same_bytes, results, several(x))):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@EXECUTORS
def test_without_the_look_at_who_holds_results_they_would_be_overwritten(
    executor: ExecutorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests above: results of each call are taken for ones that the next may overwrite."""
    monkeypatch.setattr(CapturedGraph, "try_replay", lambda self, inputs: self._reusing(inputs))
    xs = inputs(3)
    cache = GraphCache(request(traced(several, xs[0])), capture_limit=4, executor=executor)
    cache([xs[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kept = [cache([x]) for x in xs]
    assert not all(map(same_bytes, kept[0], several(xs[0])))


def test_one_graph_at_three_places_of_a_call_gives_three_results() -> None:
    linear = nn.Linear(4, 4).requires_grad_(False)

    def block(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        if y.sum().item() > 1e9:
            raise ValueError
        return y

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([block(x), block(x + 1), block(x + 2)])

    compiled = torch.compile(rows, backend="npucompose")
    for x in inputs(5):
        assert same_bytes(compiled(x), rows(x))


# -- the call that records


COUNTS = {"calls": 0}


@torch.library.custom_op("npucompose_held::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    COUNTS["calls"] += 1
    return x + COUNTS["calls"]


@count.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@EXECUTORS
def test_each_call_runs_each_operator_once_the_first_one_too(executor: ExecutorName) -> None:
    def counted(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.ops.npucompose_held.count(x).abs(),)

    graph = traced(counted, torch.ones(2))
    COUNTS["calls"] = 0
    cache = GraphCache(request(graph), capture_limit=4, executor=executor)
    for calls in (1, 2, 3):
        assert cache([torch.zeros(2)])[0].tolist() == [calls, calls]


@EXECUTORS
def test_the_call_that_records_writes_and_draws_as_eager_does(executor: ExecutorName) -> None:
    def drawing(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state.add_(x)
        return torch.bernoulli(torch.full_like(x, 0.5)), state, state[1:], state * 2, torch.full((2,), 3.0)

    def run(call: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        state, found = torch.zeros(3), []
        for step in range(4):
            results = call(state, torch.full((3,), float(step)))
            found += [*(result.clone() for result in results), state.clone()]
        return [*found, torch.get_rng_state()]

    x = torch.ones(3)
    cache = GraphCache(request(traced(drawing, x.clone(), x)), capture_limit=4, executor=executor)
    state = torch.zeros(3)
    results, version = cache([state, x]), state._version
    assert version == 1
    assert results[1] is state
    assert results[2].data_ptr() == state[1:].data_ptr()
    cache = GraphCache(request(traced(drawing, x.clone(), x)), capture_limit=4, executor=executor)
    assert all(map(same_bytes, run(lambda *given: cache(list(given))), run(drawing)))


@EXECUTORS
@pytest.mark.parametrize("inference", [False, True])
def test_results_are_inference_tensors_exactly_in_inference_mode(executor: ExecutorName, inference: bool) -> None:
    x = inputs(1)[0]
    cache = GraphCache(request(traced(several, x)), capture_limit=4, executor=executor)
    with torch.inference_mode(inference):
        for _ in range(3):
            assert [result.is_inference() for result in cache([x])] == [inference] * 4
    with torch.inference_mode(not inference):
        assert [result.is_inference() for result in cache([x])] == [not inference] * 4


# -- the detached handle


def detached(**options: Any) -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)
    compiled = npucompose.compile(model, "mode=reduce-overhead", *options.pop("overrides", ()))
    return model, compiled.detach(torch.randn(2, 4), **options)


PORTABLE = ("target.executor=portable",)


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_handle_overwrites_what_is_held_and_says_so_once(overrides: Any) -> None:
    _, handle = detached(overrides=overrides)
    kept = handle(torch.ones(2, 4))
    with pytest.warns(RuntimeWarning, match='outputs="keep"'):
        again = handle(torch.zeros(2, 4))
    assert kept.data_ptr() == again.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle(torch.zeros(2, 4))


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_handle_that_keeps_leaves_results_alone(overrides: Any) -> None:
    model, handle = detached(outputs="keep", overrides=overrides)
    xs = inputs(5, 4)
    kept = [handle(x[:2]) for x in xs]
    assert all(same_bytes(result, model(x[:2])) for x, result in zip(xs, kept, strict=True))
    kept.clear()
    assert len({handle(x[:2]).data_ptr() for x in xs}) == 1


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_handle_never_overwrites_what_the_compiled_model_returned(overrides: Any) -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    compiled = npucompose.compile(model, "mode=reduce-overhead", *overrides)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    handle = compiled.detach(x)
    kept = compiled(x)
    lent = handle(y)
    assert same_bytes(kept, model(x))
    compiled(x)
    assert same_bytes(lent, model(y))


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_result_of_a_handle_may_be_its_next_input(overrides: Any) -> None:
    model, handle = detached(overrides=overrides)
    x = y = torch.randn(2, 4)
    for _ in range(10):
        x, y = handle(x), model(y)
        assert same_bytes(x, y)


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_handle_refuses_another_mode_of_autograd_inference_and_autocast(overrides: Any) -> None:
    _, handle = detached(overrides=overrides)
    x = torch.randn(2, 4)
    for mode, words in (
        (torch.enable_grad(), "is_grad_enabled"),
        (torch.inference_mode(), "is_inference_mode_enabled"),
        (torch.autocast("cpu", torch.bfloat16), "autocast"),
    ):
        with mode, pytest.raises(SignatureError, match=words):
            handle(x)
    handle(x)


@pytest.mark.parametrize("overrides", [(), PORTABLE])
def test_a_handle_refuses_a_replaced_parameter_and_follows_one_that_is_written(overrides: Any) -> None:
    model, handle = detached(overrides=overrides)
    x = torch.randn(2, 4)
    model[0].weight.mul_(2)
    assert same_bytes(handle(x), model(x))
    was = model[0].weight
    model[0].weight = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    with pytest.raises(SignatureError, match=r"'weight'.*another tensor now"):
        handle(x)
    del model[0].weight
    with pytest.raises(SignatureError, match=r"'weight'.*is gone"):
        handle(x)
    model[0].weight = was
    assert same_bytes(handle(x), model(x))


# -- operators that are not torch's own


KEPT: list[torch.Tensor] = []


@torch.library.custom_op("npucompose_held::remember", mutates_args=())
def remember(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    KEPT.extend([x, x[1:], *others])
    return x + 1


@remember.register_fake
def _(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    return torch.empty_like(x)


@EXECUTORS
def test_an_operator_may_keep_what_it_is_given_and_finds_ordinary_tensors(executor: ExecutorName) -> None:
    def remembering(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x * 2).t()
        return (torch.ops.npucompose_held.remember(z, [x, y[1:]]).relu() * 2,)

    def run(call: Callable[..., Any]) -> list[torch.Tensor]:
        KEPT.clear()
        for x in inputs(5):
            call(x, x + 1)
        return [tensor.clone() for tensor in KEPT]

    graph = traced(remembering, *inputs(2))
    cache = GraphCache(request(graph), capture_limit=4, executor=executor)
    got = run(lambda *given: cache(list(given)))
    assert not any(tensor.is_inference() for tensor in KEPT)
    assert all(map(same_bytes, got, run(remembering)))


@EXECUTORS
def test_results_that_share_memory_in_eager_share_it_in_a_replay(executor: ExecutorName) -> None:
    def sharing(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sort(x)[0].cumsum(0)
        y = torch.ops.aten.slice_scatter(y, y[1:] + 5, 0, 1)
        return y, y[1:], y.view(torch.int32), x.sum()

    x = torch.randn(5)
    recording = CapturedGraph.capture(traced(sharing, x), [x], executor=executor)
    for seed in inputs(3):
        y, part, bits, _ = recording.replay(seed[0, :].repeat(2)[:5])
        assert all(map(same_bytes, (y, part, bits), sharing(seed[0, :].repeat(2)[:5])))
        y.fill_(7)
        assert part.tolist() == [7.0] * 4
        assert bits.view(torch.float32).tolist() == [7.0] * 5
