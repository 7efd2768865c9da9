"""The handle gives what the call through torch.compile gives, sees what it promises to see, and refuses the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from npucompose.bits import same_bytes
from npucompose.errors import SignatureError
from npucompose_replay.executor import build
from npucompose_replay.front.arguments import DetachError
from npucompose_replay.front.detached import DetachedHandle, detach
from replay_tests.capturing import CapturingBackend

needs_native = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def detached(model: Any, *args: Any, **kwargs: Any) -> DetachedHandle:
    backend = CapturingBackend()
    result = torch.compile(model, backend=backend)(*args, **kwargs)
    (cache,) = backend.caches
    assert cache.last is not None
    return detach(cache.last, backend.flat_inputs, backend.flat_outputs, args, kwargs, result)


def test_a_model_with_parameters_runs_detached_bit_for_bit():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
    handle = detached(model, torch.randn(3, 4))
    for _ in range(3):
        x = torch.randn(3, 4)
        assert same_bytes(handle(x), model(x))
    model[0].weight.mul_(2)  # in place: seen
    assert same_bytes(handle(x), model(x))


def test_the_structure_of_arguments_and_results_is_kept():
    def model(
        pair: tuple[torch.Tensor, torch.Tensor], scale: float, *, more: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        a, b = pair
        y = a @ b * scale
        return {"y": y, "views": [y.t(), b, more["c"][1:]], "sum": (more["c"].sum(), None, 7)}

    def arguments(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        return ((torch.randn(2, 3), torch.randn(3, 2)), 0.5), {"more": {"c": torch.randn(4)}}

    args, kwargs = arguments(0)
    handle = detached(model, *args, **kwargs)
    for seed in (1, 2):
        args, kwargs = arguments(seed)
        got, expected = handle(*args, **kwargs), model(*args, **kwargs)
        assert list(got) == list(expected)
        assert same_bytes(got["y"], expected["y"])
        assert got["views"][0].data_ptr() == got["y"].data_ptr()
        assert same_bytes(got["views"][0], expected["views"][0])
        assert got["views"][1] is args[0][1]
        assert got["views"][2].data_ptr() == kwargs["more"]["c"][1:].data_ptr()
        assert same_bytes(got["sum"][0], expected["sum"][0])
        assert got["sum"][1:] == (None, 7)
    with pytest.raises(SignatureError, match=r"0\.5 as argument 2, got 0\.25"):
        handle(args[0], 0.25, **kwargs)
    with pytest.raises(SignatureError, match="structure"):
        handle(list(args[0]), 0.5, **kwargs)


def test_a_cache_given_as_an_argument_is_written_where_it_lies():
    def step(cache: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, at, x)
        return cache.sum(0)

    cache = torch.zeros(4, 2)
    handle = detached(step, cache, torch.ones(1, 2), torch.tensor([0]))
    mine, theirs = cache, cache.clone()
    for position in (1, 2):
        x, at = torch.randn(1, 2), torch.tensor([position])
        assert same_bytes(handle(mine, x, at), step(theirs, x, at))
        assert same_bytes(mine, theirs)
    mine = torch.randn(4, 2)
    theirs = mine.clone()
    assert same_bytes(handle(mine, x, at), step(theirs, x, at))
    assert same_bytes(mine, theirs)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.ones(3), 2), {}, r"captured for \('torch\.float32\[2\]@cpu'"),
        ((torch.ones(2).double(), 2), {}, r"float64\[2\]@cpu"),
        ((torch.ones(4)[::2], 2), {}, r"\{2\}@cpu"),
        ((torch.ones(2), 3), {}, "captured for 2 as argument 1, got 3"),
        ((torch.ones(2), True), {}, "got True"),
        ((torch.ones(2),), {}, "2 positional arguments"),
        ((torch.ones(2),), {"n": 2}, "2 positional arguments"),
        ((2, torch.ones(2)), {}, "captured for 2 as argument 1"),
    ],
)
def test_other_shapes_dtypes_strides_and_numbers_are_refused(args: Any, kwargs: Any, words: str):
    handle = detached(lambda x, n: x * n, torch.ones(2), 2)
    with pytest.raises(SignatureError, match=words):
        handle(*args, **kwargs)
    assert handle(torch.ones(2), 2).tolist() == [2.0, 2.0]


def test_one_tensor_as_two_arguments_stays_one():
    x = torch.randn(3)
    handle = detached(lambda a, b: a + b, x, x)
    y = torch.randn(3)
    assert same_bytes(handle(y, y), y + y)
    with pytest.raises(SignatureError, match="one tensor as arguments 0 and 1"):
        handle(y, y.clone())


def test_an_argument_that_the_graph_does_not_use_still_has_a_shape():
    handle = detached(lambda x, mask: x + mask.shape[0], torch.ones(2), torch.ones(5))
    assert handle(torch.ones(2), torch.ones(5)).tolist() == [6.0, 6.0]
    with pytest.raises(SignatureError, match="argument 1"):
        handle(torch.ones(2), torch.ones(4))


def test_tensors_that_require_grad_are_refused_while_grad_is_on():
    model = nn.Linear(2, 2)
    handle = detached(model, torch.ones(1, 2))
    with torch.enable_grad(), pytest.raises(SignatureError, match=r"captured with torch\.is_grad_enabled\(\)=False"):
        handle(torch.ones(1, 2))
    assert same_bytes(handle(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_written_argument_that_overlaps_another_is_refused():
    handle = detached(lambda a, b: (a.add_(1), b * 2)[1], torch.ones(4), torch.ones(4))
    buffer = torch.ones(6)
    with pytest.raises(SignatureError, match="overlap"):
        handle(buffer[:4], buffer[2:])
    assert buffer.tolist() == [1.0] * 6


def test_overlapping_arguments_with_a_common_base_cannot_be_detached():
    buffer = torch.randn(6)
    with pytest.raises(DetachError, match="base"):
        detached(lambda a, b: (a.add_(1), b * 2)[1], buffer[:4], buffer[2:])


def test_state_that_the_model_keeps_outside_the_graph_cannot_be_detached():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.zeros(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x + 1
            return x * 2

    with pytest.raises(DetachError, match="outside"):
        detached(Remembers(), torch.ones(2))


@pytest.mark.parametrize("wrong", [[4, 5], (4,), [4.0], [[4]], 4, None])
def test_a_list_of_numbers_must_be_the_one_it_was_captured_with(wrong: Any) -> None:
    def step(x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        return x[: lengths[0]] * 2

    x = torch.arange(8.0)
    handle = detached(step, x, [4])
    assert torch.equal(handle(x, [4]), x[:4] * 2)
    with pytest.raises(SignatureError):
        handle(x, wrong)


def quick(handle: DetachedHandle) -> Callable[[tuple[Any, ...]], Any]:
    """How C++ answers a call of positional tensors, without Python: None where Python has to look."""
    assert handle._call is not None
    return handle._call


@needs_native
@pytest.mark.parametrize("kind", [None, tuple, list])
def test_a_call_of_positional_tensors_never_comes_back_to_python(kind: type | None):
    weight = torch.randn(3, 3)

    def model(a: torch.Tensor, b: torch.Tensor) -> Any:
        product = a @ weight + b
        return product if kind is None else kind((product, product.relu()))

    x = torch.randn(3, 3)
    handle = detached(model, x, x.clone())
    for _ in range(3):
        given = torch.randn(3, 3), torch.randn(3, 3)
        got, expected = quick(handle)(given), model(*given)
        assert type(got) is type(expected)
        if kind is None:
            assert same_bytes(got, expected)
            continue
        assert all(same_bytes(one, other) for one, other in zip(got, expected, strict=True))
        assert got[0] is not handle(*given)[0]  # the caller's own


@needs_native
def test_what_the_quick_way_must_not_decide_is_left_to_python_with_nothing_done():
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    model = Counter()
    x = torch.randn(3)
    handle = detached(model, x)
    count, version = model.count.clone(), model.count._version
    wants_grad = torch.randn(3, requires_grad=True)
    for given in [(), (x, x), (torch.randn(4),), (x.double(),), (1.0,), (model.count,)]:
        assert quick(handle)(given) is None
    with torch.enable_grad():
        assert quick(handle)((wants_grad,)) is None
        with pytest.raises(SignatureError, match="is_grad_enabled"):
            handle(wants_grad)
    assert (same_bytes(model.count, count), model.count._version) == (True, version)
    assert same_bytes(quick(handle)((x,)), x + (count + 1))
    assert same_bytes(quick(handle)((wants_grad,)), wants_grad + (count + 2))
    assert model.count._version == version + 2  # autograd is told


@needs_native
def test_a_parameter_that_was_given_other_memory_is_refused():
    model = nn.Linear(2, 2)
    handle = detached(model, torch.ones(1, 2))
    model.weight.data = torch.zeros(2, 2)
    assert quick(handle)((torch.ones(1, 2),)) is None
    with pytest.raises(SignatureError, match="at 0x"):
        handle(torch.ones(1, 2))


@needs_native
def test_replays_of_one_handle_from_many_threads_take_turns():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    x = torch.randn(8, 64)
    backend = CapturingBackend(clone_output=True)
    result = torch.compile(model, backend=backend)(x)
    handle = detach(backend.caches[0].last, backend.flat_inputs, backend.flat_outputs, (x,), {}, result)
    inputs = [torch.randn(8, 64) for _ in range(4)]
    expected = [model(given) for given in inputs]

    def replay(number: int) -> bool:
        with torch.no_grad():
            return all(same_bytes(handle(inputs[number]), expected[number]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(replay, range(4)))
