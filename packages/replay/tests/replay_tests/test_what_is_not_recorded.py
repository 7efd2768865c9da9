"""Calls that no recording can hold: they run as they are, once, and it is remembered; or they are refused in words."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw

import npucompose
from npucompose.errors import CaptureError, SignatureError
from npucompose.recorder import RunAsEager
from npucompose.schema.sizes import MemoryBound
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.gate import Refused
from npucompose_replay.memory import arena
from replay_tests.capturing import request
from replay_tests.executor.streams_by_hand import needs_two_cores, on_two, planned
from replay_tests.semantics.rows.other_results import formed, formed_and_written, frees
from tests.graph_helpers import same, traced

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
LIBRARY = torch.library.Library("npucompose_not_recorded", "DEF")
LIBRARY.define("counted(Tensor x) -> Tensor")
CALLS: list[int] = []


def counted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x + 1


LIBRARY.impl("counted", counted, "CPU")
LIBRARY.impl("counted", torch.empty_like, "Meta")
EXECUTORS: tuple[Any, ...] = ("native", "portable")


# -- inputs


@pytest.mark.parametrize(
    "odd",
    [torch.empty(5, device="meta"), torch.ones(2, 2).to_sparse(), torch.ones(4, requires_grad=True)],
    ids=["elsewhere", "sparse", "with gradient"],
)
def test_an_input_that_is_not_read_belongs_to_no_recording(odd: torch.Tensor):
    cache = GraphCache(request(traced(lambda x, y: (x + 1, y), torch.ones(2), torch.ones(2))), capture_limit=4)
    for k in range(3):
        one, other = cache([torch.full((2,), float(k)), odd])
        assert one.tolist() == [k + 1.0] * 2
        assert other is odd
    assert len(cache.captured) == 1
    assert cache.partition().outside == ()


def test_an_input_without_memory_that_is_not_read_belongs_to_no_recording():
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    cache = GraphCache(request(traced(lambda x, y: (x + 1, y), torch.ones(2), torch.ones(4))), capture_limit=4)
    assert cache([torch.ones(2), freed])[0].tolist() == [2.0] * 2
    assert cache([torch.ones(2), freed])[1] is freed


def test_an_input_without_memory_that_is_read_is_an_error_and_never_reaches_a_kernel():
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    cache = GraphCache(request(traced(lambda x: (x + 1,), torch.ones(4))), capture_limit=4)
    with pytest.raises(CaptureError, match=r"input 0 \(torch.float32\[4\]\) has .* memory"):
        cache([freed])
    assert cache([torch.ones(4)])[0].tolist() == [2.0] * 4


@pytest.mark.parametrize("value", [torch.ones(2, requires_grad=True), torch.empty(2, device="meta")])
def test_with_partial_refuse_such_an_input_is_an_error_before_anything_runs(value: torch.Tensor):
    CALLS.clear()
    module = traced(lambda x, y: (torch.ops.npucompose_not_recorded.counted(x), y), torch.ones(2), torch.ones(2))
    CALLS.clear()
    cache = GraphCache(request(module), capture_limit=4, partial="refuse")
    with pytest.raises(Refused, match="input 1"):
        cache([torch.ones(2), value])
    assert not CALLS


# -- sizes


def test_a_call_without_memory_for_its_recording_runs_once_and_is_remembered(monkeypatch: pytest.MonkeyPatch):
    module = traced(lambda x: (torch.ops.npucompose_not_recorded.counted(x * 2),), torch.ones(2))
    cache = GraphCache(request(module), capture_limit=4)
    made: list[int] = []

    def zeros(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        with arena.memory_errors_in_words():
            raise RuntimeError(f"can't allocate memory: you tried to allocate {nbytes} bytes")

    monkeypatch.setattr(arena, "zeros", zeros)
    CALLS.clear()
    with pytest.warns(
        RuntimeWarning, match=r"no memory for a buffer of \d+ bytes\. Calls of its sizes run as they are"
    ):
        assert cache([torch.ones(3)])[0].tolist() == [3.0] * 3
    assert len(CALLS) == 1, "the operator ran once"
    tried = len(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache([torch.ones(3)])[0].tolist() == [3.0] * 3
    assert (len(CALLS), len(made)) == (2, tried)
    assert "no memory" in cache.partition().outside[0].reason
    monkeypatch.undo()
    assert cache([torch.ones(5)])[0].tolist() == [3.0] * 5
    assert len(cache.captured) == 1, "other sizes are recorded"


def test_a_call_that_takes_more_than_its_bound_runs_once_and_is_remembered():
    module = traced(lambda x: (torch.ops.npucompose_not_recorded.counted((x @ x) @ x),), torch.ones(4, 4))
    cache = GraphCache(request(module), capture_limit=4, max_memory=MemoryBound.from_text("1B"))
    x = torch.eye(4)
    CALLS.clear()
    with pytest.warns(RuntimeWarning, match=r"more than streams\.max_memory=1B"):
        assert torch.equal(cache([x])[0], x + 1)
    assert torch.equal(cache([x])[0], x + 1)
    assert len(CALLS) == 2
    strict = GraphCache(request(module), capture_limit=4, max_memory=MemoryBound.from_text("1B"), partial="refuse")
    with pytest.raises(Refused, match=r"more than streams\.max_memory=1B"):
        strict([x])


# -- operators of others


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_call_that_leaves_its_recording_says_so_once_and_runs_nothing_twice(executor: Any):
    def model(x: torch.Tensor, n: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (formed_and_written(torch.ops.npucompose_not_recorded.counted(x), n, total) * 2,)

    example = [torch.ones(8), torch.tensor(0), torch.zeros(1)]
    recording, _ = CapturedGraph.capture_call(traced(model, *example), example, executor=executor)
    CALLS.clear()
    total = torch.zeros(1)
    with pytest.warns(RuntimeWarning, match=r"formed_and_written.* was recorded with a result .*\[8\] .* \[?.*\[1\]"):
        (short,) = recording.replay(torch.ones(8), torch.tensor(2), total)
    assert (short.tolist(), total.tolist(), len(CALLS)) == ([4.0], [16.0], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (empty,) = recording.replay(torch.ones(8), torch.tensor(3), total)
        (whole,) = recording.replay(torch.ones(8), torch.tensor(0), total)
    assert (empty.numel(), whole.tolist(), total.tolist()) == (0, [4.0] * 8, [48.0])


@needs_two_cores
def test_beside_other_streams_such_a_call_is_an_error_and_later_ones_run_in_one_stream():
    def model(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x.cos().sum() + formed(x.neg(), n).exp()

    x, as_captured, short = torch.ones(8), torch.tensor(0), torch.tensor(2)
    captured = on_two(planned(model, x, as_captured, aside=("neg", "formed")), x, as_captured)
    assert same(captured.replay(x, as_captured), [model(x, as_captured)])
    with pytest.raises(CaptureError, match=r"formed.*has returned torch\.float32\[1\].*beside other streams"):
        captured.replay(x, short)
    with pytest.warns(RuntimeWarning, match="go on without the recording"):
        assert same(captured.replay(x, short), [model(x, short)])
    assert same(captured.replay(x, as_captured), [model(x, as_captured)])


def test_what_a_compiler_made_of_a_graph_cannot_go_on_and_says_so():
    compiled = npucompose.compile(lambda x, n: formed(x, n) + 1, "mode=max-autotune")
    with torch.no_grad():
        for number in (0, 1, 0):
            assert compiled(torch.ones(8), torch.tensor(number)).tolist() == [2.0] * 8
        with pytest.raises(CaptureError, match=r"semantics\.formed.*has returned torch\.float32\[1\]"):
            compiled(torch.ones(8), torch.tensor(2))
        assert compiled(torch.ones(8), torch.tensor(0)).tolist() == [2.0] * 8


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_operator_that_frees_a_value_is_not_recorded(executor: Any):
    module = traced(lambda x, total: (frees(x * 2, total), total + 1)[1:], torch.ones(8), torch.zeros(8))
    cache = GraphCache(request(module), capture_limit=4, executor=executor)
    for _ in range(3):
        assert cache([torch.ones(8), torch.zeros(8)])[0].tolist() == [3.0] * 8
    assert [one.operator for one in cache.partition().outside] == ["semantics.frees"]


# -- overlaps and tangents


def test_inputs_that_overlap_by_now_are_left_to_eager_before_anything_runs():
    def model(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        a.mul_(2)
        return (a + b,)

    import attrs

    asked = attrs.evolve(request(traced(model, torch.ones(4), torch.ones(4))), eager_at_hand=True)
    cache = GraphCache(asked, capture_limit=4)
    cache([torch.ones(4), torch.ones(4)])
    base = torch.arange(6.0)
    with pytest.raises(RunAsEager):
        cache([base[:4], base[2:]])
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert cache([base[:3], base[3:]])[0].tolist() == [3.0, 6.0, 9.0], "those that lie side by side are replayed"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_replay_refuses_tangents_and_a_detached_handle_raises(executor: Any):
    recording = CapturedGraph.capture(traced(lambda x: (x * 2,), torch.ones(3)), [torch.ones(3)], executor=executor)
    with fw.dual_level():
        assert recording.try_replay([fw.make_dual(torch.ones(3), torch.ones(3))]) is None
        assert recording.try_replay([torch.ones(3)]) is not None, "a level alone is no tangent"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_recording_with_filled_memory_is_good_for_filled_memory_alone(executor: Any):
    module = traced(lambda x: (torch.empty(3) + x,), torch.ones(3))
    torch.use_deterministic_algorithms(True)
    try:
        recording = CapturedGraph.capture(module, [torch.ones(3)], executor=executor)
        assert bool(recording.replay(torch.ones(3))[0].isnan().all())
        torch.use_deterministic_algorithms(False)
        assert recording.try_replay([torch.ones(3)]) is None
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_that_nothing_fills_takes_no_kernel():
    module = traced(lambda x: (torch.empty(3) + x,), torch.ones(3))
    recording = CapturedGraph.capture(module, [torch.ones(3)])
    assert [step.op for step in recording.plan.steps] == [torch.ops.aten.add.out]


def test_a_detached_handle_asks_for_the_state_that_dynamo_guards():
    compiled = npucompose.compile(lambda x: x * 2, "mode=reduce-overhead")
    with torch.no_grad():
        x = torch.ones(3)
        handle = compiled.detach(x)
        assert handle(x).tolist() == [2.0] * 3
        with torch.compiler.set_stance("force_eager"), pytest.raises(SignatureError, match="set_stance"):
            handle(x)
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(SignatureError, match="default_dtype"):
                handle(x)
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.device("cpu"), pytest.raises(SignatureError, match="modes"):
            handle(x)
        assert handle(x).tolist() == [2.0] * 3


# -- what Inductor cannot compile


def masked_softmax(x: torch.Tensor) -> torch.Tensor:
    """pytorch #196570."""
    mask = torch.full((8, 8), -10000.0)
    mask[torch.arange(8).unsqueeze(0), torch.arange(8).unsqueeze(1)] = 0
    return torch.softmax(x + mask, dim=-1)


def test_a_graph_that_inductor_cannot_compile_is_recorded_unfused_with_a_warning():
    compiled, x = npucompose.compile(masked_softmax, "mode=max-autotune"), torch.randn(8, 8)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match=r"Inductor cannot compile a graph \(KeyError: 'buf\d+'\)"):
            assert torch.allclose(compiled(x), masked_softmax(x))
        assert torch.allclose(compiled(x + 1), masked_softmax(x + 1))


def test_such_a_graph_is_an_error_that_names_a_way_out_where_nothing_may_be_cut():
    compiled = npucompose.compile(masked_softmax, "mode=max-autotune", "compile.partial=refuse")
    with (
        torch.no_grad(),
        pytest.raises(npucompose.errors.CompileError, match=r"KeyError.*mode=reduce-overhead records"),
    ):
        compiled(torch.randn(8, 8))
