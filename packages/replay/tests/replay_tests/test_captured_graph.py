"""What a recording promises: eager's bits, no trace of the capture, numbers as eager takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose.errors import CaptureError, SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import built, in_threads, same, traced

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("executor")


def mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.relu(x @ w + b)
    return (torch.softmax(h * 0.5, -1), h.t()[:2].clone())


def test_replay_gives_eagers_bits_on_other_values(executor: Any):
    inputs = [torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)]
    captured = CapturedGraph.capture(traced(mlp, *inputs), inputs)
    assert captured.facts()["executor"] == executor
    for _ in range(3):
        other = [torch.randn_like(i) for i in inputs]
        assert same(captured.replay(*other), mlp(*other))


def test_capture_leaves_inputs_and_rng_as_they_were_and_replay_draws_eagers_numbers(executor: Any):
    def step(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noisy = torch.nn.functional.dropout(x, 0.5, training=True) + torch.rand(4)
        cache.copy_(cache + noisy)
        return (noisy,)

    inputs = [torch.randn(4), torch.randn(4)]
    graph = traced(step, *inputs)
    before, state = [i.clone() for i in inputs], torch.get_rng_state()
    captured = CapturedGraph.capture(graph, inputs)
    assert same(inputs, before)
    assert torch.equal(torch.get_rng_state(), state)
    expected = [i.clone() for i in inputs]
    torch.manual_seed(3)
    results = [step(*expected), step(*expected)]
    torch.manual_seed(3)
    for result in results:
        assert same(captured.replay(*inputs), result)
    assert same(inputs, expected)


def test_a_failed_capture_leaves_inputs_and_rng_as_they_were():
    def make(graph: Any, xs: list[Any]) -> Any:
        graph.call_function(aten.add_.Tensor, (xs[0], 1))
        graph.call_function(aten.rand.default, ([2],))
        return (graph.call_function(aten.nonzero.default, (xs[0],)),)

    x, state = torch.zeros(2), torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"aten\.nonzero\.default"):
        CapturedGraph.capture(built(make, 1), [x])
    assert torch.equal(x, torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_belong_to_the_signature():
    def make(graph: Any, xs: list[Any]) -> Any:
        n = graph.call_function(__import__("operator").add, (xs[1], 1))
        return (
            graph.call_function(aten.full.default, ([n], 2.0)),
            graph.call_function(aten.mul.Tensor, (xs[0], xs[1])),
            n,
        )

    x = torch.ones(2)
    captured = CapturedGraph.capture(built(make, 2), [x, 3])
    out = captured.replay(x, 3)
    assert torch.equal(out[0], torch.full((4,), 2.0))
    assert torch.equal(out[1], torch.full((2,), 3.0))
    assert out[2] == 4
    for number in (4, 3.0, True, None):
        with pytest.raises(SignatureError, match="int 3"):
            captured.replay(x, number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.float64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(5,), ()])
def test_a_python_number_beside_a_tensor_keeps_eagers_promotion(
    dtype: torch.dtype, shape: tuple[int, ...], executor: Any
):
    def numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 0.1, x + 3, x / 7, torch.where(x > 0, x, 0.3), x.eq(1), 2.5 - x.float(), x.float().pow(0.5))

    x = (torch.randn(shape) * 3).to(dtype)
    captured = CapturedGraph.capture(traced(numbers, x), [x])
    other = (torch.randn(shape) * 3).to(dtype)
    assert same(captured.replay(other), numbers(other))


def test_an_update_of_an_input_happens_in_place_again():
    def step(cache: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache[:, 2:3] = row
        cache.index_copy_(0, at, row.t())
        return (cache.sum(),)

    inputs = [torch.randn(5, 5), torch.randn(5, 1), torch.tensor([1])]
    plain = traced(torch.func.functionalize(lambda c, r, i: step(c, r, i), remove="mutations"), *inputs)
    single = traced(
        torch.func.functionalize(lambda c, r, i: (c.index_copy_(0, i, r.t()).sum(),), remove="mutations"), *inputs
    )
    for graph, function in ((plain, step), (single, lambda c, r, i: (c.index_copy_(0, i, r.t()).sum(),))):
        captured = CapturedGraph.capture(graph, inputs)
        mine = [t.clone() for t in inputs]
        theirs = [t.clone() for t in inputs]
        assert same(captured.replay(*mine), function(*theirs))
        assert same(mine, theirs)
    assert "aten.index_copy_.default" in [str(step.op) for step in captured.plan.steps]
    assert captured.facts()["unplanned_bytes"] == 0


def test_the_old_value_of_an_updated_input_is_kept_when_it_is_read_later():
    def make(graph: Any, xs: list[Any]) -> Any:
        new = graph.call_function(aten.index_fill.int_Scalar, (xs[0], 0, xs[1], 0.0))
        old = graph.call_function(aten.mul.Tensor, (xs[0], 2.0))
        graph.call_function(aten.copy_.default, (xs[0], new))
        return (old, graph.call_function(aten.add.Tensor, (new, 1.0)))

    x = torch.ones(3)
    captured = CapturedGraph.capture(built(make, 2), [x, torch.tensor([1])])
    out = captured.replay(x, torch.tensor([1]))
    assert out[0].tolist() == [2.0, 2.0, 2.0]
    assert out[1].tolist() == [2.0, 1.0, 2.0]
    assert x.tolist() == [1.0, 0.0, 1.0]


def test_autocast_around_a_replay_changes_nothing():
    x = torch.randn(4, 4)
    captured = CapturedGraph.capture(traced(lambda x: (x @ x,), x), [x])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bytes(captured.replay(x)[0], x @ x) is False
        out = captured.replay(x)[0].clone()
    assert same_bytes(out, x @ x)


def test_a_step_without_words_in_torchscript_sends_the_plan_to_the_python_executor(executor: str):
    x = torch.randn(3).bfloat16()
    captured = CapturedGraph.capture(traced(lambda x: (x * 0.1,), x), [x])
    assert same(captured.replay(x), (x * 0.1,))
    facts = captured.facts()
    assert facts["executor"] == ("native" if executor == "native" else "python")
    assert ("number 0.1 in place of a tensor" in facts["executor_reason"]) == (executor == "torchscript")


@pytest.fixture
def markers():
    """torch.ops.air, defined for the test where the ops of the package are not imported."""
    names = ("scope_enter", "scope_exit")
    if all(hasattr(torch.ops.air, name) for name in names):
        yield torch.ops.air
        return
    with torch.library._scoped_library("air", "FRAGMENT") as library:
        library.define("scope_enter(str[] keys, str[] values) -> ()")
        library.define("scope_exit() -> ()")
        yield torch.ops.air
    for name in names:  # torch keeps what was looked up once
        torch.ops.air.__dict__.pop(name, None)


def test_markers_of_a_stream_plan_are_no_kernels(markers: Any):
    def make(graph: Any, xs: list[Any]) -> Any:
        graph.call_function(markers.scope_enter.default, (["_user_stream_label"], ["1"]))
        out = graph.call_function(aten.add.Tensor, (xs[0], xs[0]))
        graph.call_function(markers.scope_exit.default, ())
        return (out,)

    x = torch.ones(2)
    captured = CapturedGraph.capture(built(make, 1), [x])
    assert captured.facts()["kernels"] == 1
    assert captured.replay(x)[0].tolist() == [2.0, 2.0]


def test_threads_replay_one_at_a_time():
    x = torch.randn(16, 16)
    captured = CapturedGraph.capture(traced(lambda x: (torch.tanh(x @ x) @ x,), x), [x], clone_output=True)
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed))
        expected = torch.tanh(given @ given) @ given
        for _ in range(50):
            if not same(captured.replay(given), (expected,)):
                wrong.append(seed)

    in_threads(work)
    assert not wrong


def test_facts_say_what_was_made_of_the_graph():
    def block(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.relu(x @ w.t())
        for _ in range(4):
            h = torch.relu(h @ w.t() + 1.0)
        return (torch.nn.functional.layer_norm(h, (16,)),)

    x, w = torch.randn(16, 16), torch.randn(16, 16)
    facts = CapturedGraph.capture(traced(block, x, w), [x, w]).facts()
    assert facts["views_resolved"] == 5
    assert facts["fresh"] == 2  # layer_norm and the shape check of its result
    assert facts["live_bytes"] <= facts["pool_bytes"] < facts["unplanned_bytes"]
    assert facts["output_bytes"] == 16 * 16 * 4
    assert facts["signature"] == ("torch.float32[16,16]@cpu",) * 2
    assert facts["seconds"] > 0
