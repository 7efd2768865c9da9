"""What may come in: plain dense tensors over memory that is there, on a thread where nobody wants to see operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from npucompose.errors import CaptureError, SignatureError
from npucompose_replay import gate
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.front.detached import DetachedHandle, detach
from npucompose_replay.front.graph_cache import GraphCache
from replay_tests.capturing import CapturingBackend, request
from tests.graph_helpers import same, traced
from tests.odd_tensors import MAKERS, PLAIN, SHAPE

pytestmark = pytest.mark.filterwarnings("ignore:.*(nested tensors|quantize|Sparse CSR)")
Function = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def reads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ x + 1,)


def writes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.add_(1), x * 2


def moves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """So many views that portable replayers copy the input."""
    return tuple(row * 2 for row in x.unbind())


FUNCTIONS = pytest.mark.parametrize("function", [reads, writes, moves])
ODD = pytest.mark.parametrize("name", MAKERS)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def recorded(function: Function) -> tuple[CapturedGraph, Callable[[], None]]:
    """A recording, and a check that it still gives what eager gives."""
    first = torch.randn(SHAPE)
    captured = CapturedGraph.capture(traced(function, first), [first])

    def still_right() -> None:
        for _ in range(2):
            x = torch.randn(SHAPE)
            theirs = x.clone()
            assert same(captured.replay(x), function(theirs))
            assert same([x], [theirs])

    return captured, still_right


@FUNCTIONS
@ODD
def test_an_odd_tensor_is_refused_by_every_replayer_with_its_name(name: str, function: Function, executor: str):
    captured, still_right = recorded(function)
    for _ in range(2):
        given = MAKERS[name]()
        assert captured.try_replay([given]) is None
        with pytest.raises(SignatureError, match=r"^input 0 (is|has) .*; captured for torch\.float32\[4,4\]@cpu$"):
            captured.replay(given)
        with pytest.raises(SignatureError, match=r"^input 0 (is|has) "):
            captured.replay(given, reuse=True)
        still_right()


def detached(function: Function, outputs: Any) -> DetachedHandle:
    torch._dynamo.reset()
    backend = CapturingBackend()
    x = torch.randn(SHAPE)
    result = torch.compile(function, backend=backend)(x)
    made = backend.caches[0].last
    assert made is not None
    return detach(made, backend.flat_inputs, backend.flat_outputs, (x,), {}, result, outputs=outputs)


@pytest.fixture(scope="module")
def handles() -> dict[tuple[Function, str], DetachedHandle]:
    with torch.no_grad():
        return {(f, outputs): detached(f, outputs) for f in (reads, writes) for outputs in ("keep", "reuse")}


@ODD
def test_a_handle_refuses_an_odd_tensor_and_names_the_argument(name: str, handles: Any):
    for (function, _), handle in handles.items():
        with pytest.raises(SignatureError, match=r"^argument 0 (is|has) "):
            handle(MAKERS[name]())
        x = torch.randn(SHAPE)
        assert same(list(handle(x.clone())), function(x.clone()))


def outcome(call: Callable[[], Any]) -> Any:
    """What came out: the classes of the results, an error's words where it is ours, or that torch refused."""
    try:
        return [type(t) for t in call()]
    except CaptureError as error:
        return str(error)
    except (RuntimeError, ValueError):
        return "torch refused"


@ODD
def test_behind_torch_compile_an_odd_tensor_goes_through_the_graph_as_it_is_or_is_refused(name: str):
    x = torch.randn(SHAPE)
    cache = GraphCache(request(traced(reads, x)), capture_limit=4)
    cache([x])
    got = outcome(lambda: cache([MAKERS[name]()]))
    assert str(got).startswith("input 0 ") or got == outcome(lambda: reads(MAKERS[name]()))
    y = torch.randn(SHAPE)
    assert same(cache([y]), reads(y))


@ODD
def test_an_odd_tensor_is_refused_at_capture(name: str):
    x = torch.randn(SHAPE)
    with pytest.raises(CaptureError, match=r"^input 0 "):
        CapturedGraph.capture(traced(reads, x), [MAKERS[name]()])


def test_a_plan_that_is_kept_is_not_laid_over_an_odd_tensor():
    x, wide = torch.randn(SHAPE), torch.randn(5, 5)
    cache = GraphCache(request(traced(reads, x)), capture_limit=1, when_full="replace")
    for given in (x, wide):
        cache([given])
    assert len(cache.recordings.plans) == 1
    with pytest.raises(CaptureError, match=r"input 0 .* has no memory"):
        cache([MAKERS["over nothing"]()])


@pytest.mark.parametrize("name", PLAIN)
def test_whatever_is_plain_is_taken(name: str, executor: str):
    captured, still_right = recorded(reads)
    given = PLAIN[name]()
    assert same(captured.replay(given), reads(given))
    still_right()


def test_a_tensor_without_elements_needs_no_memory(executor: str):
    empty, x = torch.empty(0, 4), torch.randn(SHAPE)
    captured = CapturedGraph.capture(traced(lambda e, x: (torch.cat([e, x]) * 2,), empty, x), [empty, x])
    assert torch.empty(0, 4).data_ptr() == 0
    assert same(captured.replay(torch.empty(0, 4), x), [x * 2])


@pytest.mark.parametrize("flip", [torch.Tensor.conj, torch.Tensor._neg_view], ids=["conj", "neg"])
def test_a_lazy_sign_belongs_to_the_signature(flip: Any, executor: str):
    def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2,)

    x = torch.randn(SHAPE, dtype=torch.complex64)
    for first, other in ((x, flip(x)), (flip(x), x)):
        captured = CapturedGraph.capture(traced(double, first), [first])
        assert same(captured.replay(first), double(first))
        with pytest.raises(SignatureError, match=r"captured for \('.*got \('"):
            captured.replay(other)


@pytest.mark.parametrize("name", [*MAKERS, *PLAIN])
def test_the_gate_in_c_and_the_one_in_python_say_the_same(name: str):
    given = {**MAKERS, **PLAIN}[name]()
    why = gate.why_not(given)
    assert build.load().is_plain(given) == (not why) == (name in PLAIN)
    assert gate.are_plain([given]) <= (not gate.why_not_plain(given))


class Watching(TorchDispatchMode):
    seen: ClassVar[list[str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Answering(TorchDispatchMode):
    """Whatever is asked: zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.zeros(SHAPE)


class Passing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@FUNCTIONS
@pytest.mark.parametrize("mode", [FakeTensorMode, Watching, Answering])
def test_a_mode_that_wants_to_see_operators_is_told_that_a_replay_has_none(
    mode: type[AbstractContextManager[Any]], function: Function, executor: str
):
    """A recording that had replayed in it would be wrong ever after: its slots would be the mode's."""
    captured, still_right = recorded(function)
    x = torch.randn(SHAPE)
    with mode():
        assert captured.try_replay([x]) is None
        with pytest.raises(SignatureError, match=f"a replay under {mode.__name__} "):
            captured.replay(x)
    still_right()
    assert build.load().has_onlookers() is False


def test_a_transform_of_torch_func_is_told_too(executor: str):
    captured, still_right = recorded(reads)
    x = torch.randn(SHAPE)
    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(SignatureError, match=r"a replay under a transform of torch\.func"):
            transform(lambda y: captured.replay(x)[0].sum() * y.sum())(torch.ones(3))
    with pytest.raises(SignatureError, match=r"under torch\.jit\.trace"):
        torch.jit.trace(lambda y: captured.replay(y)[0], x)
    still_right()


def test_a_mode_over_functions_of_torch_changes_nothing(executor: str):
    captured, still_right = recorded(reads)
    with Passing(), torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        x = torch.randn(SHAPE)
        with torch.autocast("cpu", enabled=False):
            expected = reads(x)
        assert same(captured.replay(x), expected)
    still_right()


def test_behind_torch_compile_a_mode_sees_every_operator():
    x = torch.randn(SHAPE)
    cache = GraphCache(request(traced(reads, x)), capture_limit=4)
    cache([x])
    with Watching():
        Watching.seen.clear()
        assert same(cache([x]), reads(x))
    assert Watching.seen[:2] == ["aten.mm.default", "aten.add.Tensor"]
    assert same(cache([x]), reads(x))
    assert (cache.statistics.captures, cache.statistics.hits, cache.statistics.eager) == (1, 1, 1)


def test_what_an_operator_returned_is_dense_on_this_device_and_no_number_of_a_tensor():
    add = torch.ops.aten.add.Tensor
    node = torch.fx.Graph().placeholder("y")
    x = torch.ones(2)
    assert gate.checked(node, add, x, True) == [x]
    assert gate.checked(node, add, (x, None, [x]), True) == [x, x]
    assert gate.checked(node, torch.ops.aten.sym_size.int, 3, True) == []
    assert gate.checked(node, torch.ops.aten.item.default, 3, False) == []
    for returned, said in (
        (torch.ones(2, device="meta"), "it works on meta; this target captures CPU graphs only"),
        (
            (x, torch.eye(2).to_sparse()),
            r"its result has layout torch\.sparse_coo and dtype torch\.float32; only dense",
        ),
        (3, re.escape(gate.TO_PYTHON)),
    ):
        with pytest.raises(CaptureError, match=said):
            gate.checked(node, torch.ops.aten.item.default, returned, True)
