"""What a recording promises: eager's bits, the caller's tensors, no trace of the capture, and a clear no."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from npucompose.errors import CaptureError, SignatureError
from npucompose.targets.cpu.captured_graph import CapturedGraph
from npucompose.targets.cpu.kernels import same_bytes
from tests.targets.capturing import built, in_threads, traced

aten = torch.ops.aten


@pytest.fixture(autouse=True, params=["native", "torchscript", "python"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every claim of this file is one about each executor."""
    monkeypatch.setattr(CapturedGraph, "capture", functools.partial(CapturedGraph.capture, executor=request.param))
    return request.param


def same(got: Any, expected: Any) -> bool:
    return len(got) == len(expected) and all(same_bytes(a, b) for a, b in zip(got, expected, strict=True))


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


def test_an_input_from_elsewhere_is_copied_in_and_the_old_tensor_is_not_written(executor: Any):
    def step(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache.index_copy_(0, torch.tensor([1]), x)
        return (cache.sum(0), cache[1:])

    first = [torch.randn(1, 3), torch.randn(4, 3)]
    captured = CapturedGraph.capture(traced(step, *first), first)
    captured.replay(*first)
    kept = [t.clone() for t in first]
    for _ in range(2):
        mine = [torch.randn(1, 3), torch.randn(4, 3)]
        theirs = [t.clone() for t in mine]
        got = captured.replay(*mine)
        assert same(got, step(*theirs))
        assert same(mine, theirs)
        assert got[1].data_ptr() == mine[1][1:].data_ptr()
    assert same(first, kept)


def test_an_input_that_stays_at_its_new_place_is_used_there_and_copied_again_when_it_moves(executor: Any):
    def step(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache.add_(x)
        return (cache * 2,)

    places = [[torch.randn(3), torch.randn(3)] for _ in range(3)]
    theirs = [[t.clone() for t in place] for place in places]
    captured = CapturedGraph.capture(traced(step, *places[0]), places[0])
    for number in (0, 1, 1, 1, 2, 0, 0, 2, 1, 1):
        places[number][0].copy_(torch.randn(3))
        theirs[number][0].copy_(places[number][0])
        assert same(captured.replay(*places[number]), step(*theirs[number]))
        assert same([t for place in places for t in place], [t for place in theirs for t in place])


def test_outputs_that_are_inputs_are_the_callers_own_and_repeated_ones_are_one_object():
    def make(graph: Any, xs: list[Any]) -> Any:
        doubled = graph.call_function(aten.add.Tensor, (xs[0], xs[0]))
        row = graph.call_function(aten.select.int, (xs[0], 0, 1))
        return (xs[0], doubled, doubled, row, None, 3)

    x = torch.randn(2, 3)
    captured = CapturedGraph.capture(built(make, 1), [x])
    for given in (x, torch.randn(2, 3), torch.randn(3, 2, 3)[1]):
        out = captured.replay(given)
        assert out[0] is given
        assert out[1] is out[2]
        assert torch.equal(out[1], given + given)
        assert out[3].data_ptr() == given[1].data_ptr()
        assert torch.equal(out[3], given[1])
        assert out[4:] == [None, 3]


def test_outputs_lie_in_static_buffers_unless_they_are_cloned():
    x = torch.ones(3)
    graph = traced(lambda x: (x + 1,), x)
    kept = CapturedGraph.capture(graph, [x])
    first = kept.replay(x)[0]
    assert kept.replay(torch.zeros(3))[0].data_ptr() == first.data_ptr()
    assert torch.equal(first, torch.ones(3))
    cloned = CapturedGraph.capture(graph, [x], clone_output=True)
    first = cloned.replay(x)[0]
    cloned.replay(torch.zeros(3))
    assert torch.equal(first, torch.full((3,), 2.0))


def test_what_a_caller_does_to_an_output_does_not_reach_the_next_replay():
    x = torch.randn(2, 3)
    captured = CapturedGraph.capture(traced(lambda x: (x + 1, torch.zeros(3)), x), [x])
    first = captured.replay(x)
    first[0].t_().fill_(9)
    first[1].fill_(9)
    assert same(captured.replay(x), (x + 1, torch.zeros(3)))


def test_a_constant_that_the_graph_writes_has_its_value_anew_each_time(executor: Any):
    def count(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = torch.zeros(3)
        view = total[1:]
        total.add_(x)
        view.mul_(2)
        return (total * torch.arange(3),)

    x = torch.randn(3)
    captured = CapturedGraph.capture(traced(count, x), [x])
    for _ in range(3):
        assert same(captured.replay(x), count(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(1, 4).expand(3, 4),
        lambda: torch.randn(6, 8)[::2, ::2],
        lambda: torch.randn(20)[8:].as_strided((3, 4), (4, 1)),
        lambda: torch.randn(3, 0),
        lambda: torch.tensor(2.0),
        lambda: torch.randn(3, 4, dtype=torch.complex64),
        lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
        lambda: torch.randn(3, 4).bfloat16(),
        lambda: torch.randn(14).as_strided((4, 3), (2, 1)),
    ],
    ids=["transposed", "expanded", "strided", "offset", "empty", "0-dim", "complex", "conj", "bfloat16", "overlapping"],
)
def test_any_layout_of_an_input_works_in_place_and_from_elsewhere(make: Any):
    def double(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2, x.flatten()[:1] + 1, x.sum())

    first, other = make(), make()
    captured = CapturedGraph.capture(traced(double, first), [first])
    assert same(captured.replay(first), double(first))
    if captured._fixed:
        with pytest.raises(SignatureError, match=" at 0x"):
            captured.replay(other)
    else:
        assert same(captured.replay(other), double(other))
    assert same(captured.replay(first), double(first))


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


def test_another_signature_is_refused_with_both_named_and_nothing_done():
    x, cache = torch.ones(2), torch.zeros(2)
    captured = CapturedGraph.capture(traced(lambda x, c: (c.add_(x),), x, cache), [x, cache])
    with pytest.raises(SignatureError) as error:
        captured.replay(torch.ones(3), cache)
    assert str(error.value) == (
        "captured for ('torch.float32[2]@cpu', 'torch.float32[2]@cpu'), "
        "got ('torch.float32[3]@cpu', 'torch.float32[2]@cpu')"
    )
    for wrong in ([x], [x.double(), cache], [torch.ones(4)[::2], cache], [1, cache]):
        with pytest.raises(SignatureError):
            captured.replay(*wrong)
    assert torch.equal(cache, torch.zeros(2))


def test_a_static_input_is_used_in_place_and_its_address_counts():
    w, x = torch.ones(3), torch.randn(3)
    captured = CapturedGraph.capture(traced(lambda w, x: (w * x,), w, x), [w, x], static=frozenset({0}))
    w.mul_(2)
    assert torch.equal(captured.replay(w, x)[0], 2 * x)
    with pytest.raises(SignatureError, match="0x"):
        captured.replay(w.clone(), x)


def test_two_inputs_that_are_slices_of_one_buffer_stay_two():
    buffer = torch.randn(8)
    inputs = [buffer[:4], buffer[4:]]

    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.add_(b)
        return (a - b,)

    captured = CapturedGraph.capture(traced(step, *inputs), inputs)
    expected = buffer.clone()
    result = step(expected[:4], expected[4:])
    assert same(captured.replay(*inputs), result)
    assert same_bytes(buffer, expected)
    moved = torch.randn(8)
    expected = moved.clone()
    result = step(expected[:4], expected[4:])
    assert same(captured.replay(moved[:4], moved[4:]), result)
    assert same_bytes(moved, expected)


def test_inputs_that_overlap_while_one_is_written_are_right_where_they_lie_and_refused_elsewhere():
    def step(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a.add_(1)
        return (b * 2,)

    buffer = torch.randn(6)
    inputs = [buffer[:4], buffer[2:]]
    captured = CapturedGraph.capture(traced(step, torch.zeros(4), torch.zeros(4)), inputs)
    expected = buffer.clone()
    result = step(expected[:4], expected[2:])
    assert same(captured.replay(*inputs), result)
    assert same_bytes(buffer, expected)
    with pytest.raises(SignatureError):
        captured.replay(torch.randn(4), torch.randn(4))


def test_a_later_call_whose_written_input_overlaps_another_is_refused():
    graph = traced(lambda a, b: (a.add_(1), b * 2), torch.zeros(4), torch.zeros(4))
    captured = CapturedGraph.capture(graph, [torch.randn(4), torch.randn(4)])
    captured.replay(torch.randn(4), torch.randn(4))
    buffer = torch.randn(6)
    before = buffer.clone()
    with pytest.raises(SignatureError, match="overlap"):
        captured.replay(buffer[:4], buffer[2:])
    assert same_bytes(buffer, before)


def test_a_result_fed_back_as_input_is_read_before_it_is_overwritten():
    x = torch.randn(4, 4)
    captured = CapturedGraph.capture(traced(lambda x: (torch.tanh(x @ x),), x), [x])
    mine = theirs = x
    for _ in range(4):
        mine, theirs = captured.replay(mine)[0], torch.tanh(theirs @ theirs)
        assert same_bytes(mine, theirs)


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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g, x: g.call_function(aten.nonzero.default, (x,)), "the shape of its result depends on the data"),
        (lambda g, x: g.call_function(aten._local_scalar_dense.default, (x,)), "control depends on the data"),
        (
            lambda g, x: g.call_function(aten.index.Tensor, (x, [g.call_function(aten.gt.Scalar, (x, 0))])),
            "a mask as an index",
        ),
        (lambda g, x: g.call_function(aten.empty_like.default, (x,), {"device": "meta"}), "captures CPU graphs only"),
        (lambda g, x: g.call_function(torch.ops.higher_order.cond, (x, x, x, ())), "higher-order operator"),
        (lambda g, x: g.call_function(aten.resize_.default, (x, [9])), "moves a tensor to other memory"),
        (lambda g, x: g.call_method("relu", (x,)), "not an operator"),
        (lambda g, x: g.call_function(len, (x,)), "not an operator"),
        (lambda g, x: g.call_function(aten.mm.default, (x, x)), "fails on the given inputs"),
    ],
)
def test_what_a_recording_cannot_follow_is_refused_with_the_models_line(make: Any, words: str):
    def wrapped(graph: Any, xs: list[Any]) -> Any:
        return (make(graph, xs[0]),)

    module = built(wrapped, 1)
    for node in module.graph.nodes:
        node.meta["stack_trace"] = (
            'File "a.py", line 1, in g\n    f()\nFile "model.py", line 12, in forward\n    y = bad(x)\n'
        )
    with pytest.raises(CaptureError, match=words) as error:
        CapturedGraph.capture(module, [torch.ones(3)])
    assert str(error.value).endswith("model.py:12: y = bad(x)")


def test_inputs_that_cannot_be_recorded_are_refused():
    graph = traced(lambda x: (x + 1,), torch.ones(2))
    with pytest.raises(CaptureError, match="requires grad"):
        CapturedGraph.capture(graph, [torch.ones(2, requires_grad=True)])
    with pytest.raises(CaptureError, match="CPU graphs only"):
        CapturedGraph.capture(graph, [torch.ones(2, device="meta")])
    with pytest.raises(CaptureError, match="sparse"):
        CapturedGraph.capture(graph, [torch.ones(2, 2).to_sparse()])
    with torch.no_grad():
        x = torch.ones(2, requires_grad=True)
        assert CapturedGraph.capture(graph, [x]).replay(x)[0].tolist() == [2.0, 2.0]


def test_inference_tensors_are_taken_and_written_back():
    with torch.inference_mode():
        x, cache = torch.ones(2), torch.zeros(2)
    graph = traced(lambda x, c: (c.add_(x) * 2,), torch.ones(2), torch.zeros(2))
    captured = CapturedGraph.capture(graph, [x, cache])
    assert captured.replay(x, cache)[0].tolist() == [2.0, 2.0]
    with torch.inference_mode():
        other = torch.zeros(2)
        captured.replay(x, other)
        assert other.tolist() == [1.0, 1.0]
    assert cache.tolist() == [1.0, 1.0]
    assert not captured.replay(torch.ones(2), torch.zeros(2))[0].is_inference()


def test_autograd_learns_that_a_replay_wrote_an_input():
    cache = torch.zeros(2)
    captured = CapturedGraph.capture(traced(lambda c: (c.add_(1) * 2,), cache), [cache])
    before = cache._version
    captured.replay(cache)
    assert cache._version > before


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


def test_a_written_input_that_lies_in_an_output_buffer_is_refused():
    x = torch.ones(3)
    captured = CapturedGraph.capture(traced(lambda x: (x.add_(1) * 2,), x), [x])
    out = captured.replay(torch.ones(3))[0]
    with pytest.raises(SignatureError, match="overlap"):
        captured.replay(out)
    assert out.tolist() == [4.0, 4.0, 4.0]


def test_a_large_input_is_followed_and_a_small_one_with_many_views_is_copied(executor: str):
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x[0] + x[1] + x[2].neg() + x.t()[0, 0],)

    for columns, private in ((8, 1), (4096, 0)):
        first, other = torch.randn(3, columns), torch.randn(3, columns)
        captured = CapturedGraph.capture(traced(views, first), [first])
        for given in (other, first, other):
            assert same(captured.replay(given), views(given))
        # Natively all views of an input move at once.
        assert len(captured._inputs._private) == (0 if executor == "native" else private)


def test_a_written_input_may_lie_where_a_copied_one_lay_before():
    def step(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache.add_(x)
        return tuple(x[i] * 2 for i in range(4))  # so many views that portable executors copy x in

    places = torch.zeros(4, 4, 4)
    captured = CapturedGraph.capture(traced(step, places[0], places[1]), [places[0], places[1]])
    for at, cache in ((2, 1), (3, 2), (2, 3)):
        places.copy_(torch.randn(4, 4, 4))
        mine, theirs = places.clone(), places
        expected = step(mine[at], mine[cache])
        assert all(map(same_bytes, captured.replay(theirs[at], theirs[cache]), expected))
        assert same_bytes(mine, theirs)
