"""Where the inputs of a replay may lie: followed, copied in, used where they are, or refused; never mistaken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose.bits import same_bytes
from npucompose.errors import SignatureError
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import same, traced

pytestmark = pytest.mark.usefixtures("executor")


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
    if captured.fixed:
        with pytest.raises(SignatureError, match=" at 0x"):
            captured.replay(other)
    else:
        assert same(captured.replay(other), double(other))
    assert same(captured.replay(first), double(first))


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


def test_an_earlier_result_may_come_back_as_an_input_that_is_written():
    x = torch.ones(3)
    captured = CapturedGraph.capture(traced(lambda x: (x.add_(1) * 2,), x), [x])
    for reuse in (False, True):
        (out,) = captured.replay(torch.ones(3), reuse=reuse)
        (again,) = captured.replay(out, reuse=reuse)
        assert out.tolist() == [5.0, 5.0, 5.0]
        assert again.tolist() == [10.0, 10.0, 10.0]


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
