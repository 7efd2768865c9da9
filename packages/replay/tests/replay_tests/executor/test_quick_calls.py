"""A quick call: the same form of arguments alone, their places, modes and versions, and the memory of results."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from replay_tests.executor.contracts import Asked
from tests.graph_helpers import traced

pytestmark = [
    pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here"),
    pytest.mark.usefixtures("one_thread"),
]


def native(function: Any, *inputs: Any, **options: Any) -> CapturedGraph:
    captured = CapturedGraph.capture(traced(function, *inputs), list(inputs), executor="native", **options)
    assert captured.facts()["executor"] == "native", captured.facts()["executor_reason"]
    return captured


# Quick calls.


def caller(captured: CapturedGraph, held: list[Any], taken: Any, kind: Any = tuple, **more: Any) -> Any:
    call = captured.caller(held, taken, kind, **more)
    assert call is not None
    return call


def test_a_quick_call_does_nothing_for_any_other_form_of_its_arguments() -> None:
    x = torch.ones(2, 3)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)])
    assert call((torch.zeros(2, 3),))[0].tolist() == [[1.0] * 3] * 2
    for wrong in (
        (), (x, x), (None,), (3,), (x.double(),), (x[0],), (x.reshape(3, 2),), (torch.ones(2, 4),), (torch.ones(4, 3),),
        (torch.ones(3, 2).t(),), (torch.ones(2, 6)[:, ::2],), (torch.ones(1, 2, 3),), (x.to("meta"),),
        (torch.nn.Parameter(x).view_as(x).as_subclass(type("Mine", (torch.Tensor,), {})),),
        (torch._neg_view(x),),  # pyright: ignore[reportPrivateImportUsage]
    ):  # fmt: skip
        assert call(wrong) is None
    assert call((torch.nn.Parameter(x, requires_grad=False),))[0].tolist() == [[2.0] * 3] * 2
    cut = torch.ones(2, 3)
    cut.untyped_storage().resize_(4)
    assert call((cut,)) is None
    assert call((torch.ones(4, 3)[2:],))[0].tolist() == [[2.0] * 3] * 2


def test_arguments_reach_the_inputs_they_are_taken_for() -> None:
    a, b, c = torch.full((2,), 1.0), torch.full((2,), 10.0), torch.full((2,), 100.0)
    captured = native(lambda a, b, c: (a + b * 2 + c * 3,), a, b, c)
    call = caller(captured, [None, b, None], [(0, 1), (2, 0)], 0)
    assert call((torch.full((2,), 5.0), torch.full((2,), 7.0))).tolist() == [7.0 + 20.0 + 15.0] * 2
    with pytest.raises(RuntimeError, match="there is no input 3"):
        captured.caller([None, b, None], [(3, 0)], tuple)


def test_a_number_among_the_inputs_is_the_one_it_was() -> None:
    x, number = torch.ones(2), 1234567
    captured = native(lambda x, n: (x + n,), x, number)
    assert caller(captured, [None, number], [(0, 0)], 0)((x,)).tolist() == [1234568.0] * 2
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    assert call((x, number)).tolist() == [1234568.0] * 2
    assert call((x, 7)) is None
    assert call((x, x)) is None


def test_a_quick_call_is_made_in_the_mode_it_was_made_for() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)], 0)
    modes: list[Any] = [torch.enable_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)]
    for mode in modes:
        with mode:
            assert call((x,)) is None
    with torch.autocast("cpu", torch.bfloat16):
        inside = caller(captured, [None], [(0, 0)], 0)
        assert inside((x,)).tolist() == [2.0, 2.0]
        with torch.autocast("cpu", torch.float16):
            assert inside((x,)) is None
    assert inside((x,)) is None
    assert call((x,)).tolist() == [2.0, 2.0]
    with torch.inference_mode():
        made = caller(captured, [None], [(0, 0)], 0)((x,))
        assert made.is_inference()
    assert not call((x,)).is_inference()


def test_under_grad_tensors_that_want_gradients_are_left_to_python() -> None:
    x, w = torch.ones(2), torch.ones(2)
    captured = native(lambda x, w: (x + w,), x, w)
    wanting = torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        call = caller(captured, [None, w], [(0, 0)], 0)
        assert call((x,)).tolist() == [2.0, 2.0]
        assert call((wanting,)) is None
        assert call((3,)) is None
        assert caller(captured, [None, wanting], [(0, 0)], 0)((x,)) is None
    assert caller(captured, [None, wanting], [(0, 0)], 0)((x,)).tolist() == [2.0, 2.0]
    assert caller(captured, [None, w], [(0, 0)], 0)((wanting,)).tolist() == [2.0, 2.0]


def test_an_entry_that_is_no_longer_so_leaves_the_call_to_python() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    first, second = {"w": x}, {"v": x}
    call = caller(captured, [None], [(0, 0)], 0, entries=[(first, "w", x), (second, "v", x)])
    assert call((x,)).tolist() == [2.0, 2.0]
    for owner, name in ((first, "w"), (second, "v")):
        owner[name] = x.clone()
        assert call((x,)) is None
        del owner[name]
        assert call((x,)) is None
        owner[name] = x
        assert call((x,)).tolist() == [2.0, 2.0]


def test_what_is_written_counts_one_version_and_what_is_read_none() -> None:
    state, x = torch.zeros(2), torch.ones(2)
    captured = native(lambda state, x: (state.add_(x), x * 2)[1:], state, x)
    call = caller(captured, [None, None], [(0, 0), (1, 1)])
    for replay in (lambda: call((state, x)), lambda: captured.replay(state, x)):
        versions = state._version, x._version
        replay()
        assert (state._version, x._version) == (versions[0] + 1, versions[1])
    assert state.tolist() == [2.0, 2.0]
    with torch.inference_mode():
        inside = torch.zeros(2)
    assert call((inside, x))[0].tolist() == [2.0, 2.0]
    assert inside.tolist() == [1.0, 1.0]


def test_a_written_input_may_meet_no_other_and_read_ones_may_meet() -> None:
    captured = native(lambda a, b: (a.add_(1), b * 2)[1:], torch.zeros(3), torch.zeros(3))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    buffer = torch.arange(6.0)
    for begin in (0, 1, 2):
        assert call((buffer[:3], buffer[begin : begin + 3])) is None
        assert call((buffer[begin : begin + 3], buffer[:3])) is None
    assert buffer.tolist() == list(range(6)), "with nothing done"
    assert call((buffer[:3], buffer[3:])).tolist() == [6.0, 8.0, 10.0], "side by side is apart"
    assert call((buffer[3:], buffer[:3])).tolist() == [2.0, 4.0, 6.0]
    reading = native(lambda a, b: (a + b,), torch.zeros(3), torch.zeros(3))
    both = caller(reading, [None, None], [(0, 0), (1, 1)], 0)
    buffer = torch.arange(6.0)
    assert both((buffer[:3], buffer[1:4])).tolist() == [1.0, 3.0, 5.0]
    assert both((buffer[:3], buffer[:3])).tolist() == [0.0, 2.0, 4.0]


def test_an_input_of_a_fixed_place_is_taken_there_alone() -> None:
    w, x = torch.ones(2), torch.ones(2)
    captured = native(lambda w, x: (w + x,), w, x, static=frozenset({0}))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    assert call((w, torch.full((2,), 4.0))).tolist() == [5.0, 5.0]
    assert call((w.clone(), x)) is None
    assert call((w.detach(), x)).tolist() == [2.0, 2.0], "the place counts, not the object"


def test_inputs_of_more_than_a_megabyte_are_read_wherever_they_come_from() -> None:
    size = 1 << 19  # two megabytes
    captured = native(lambda x, n: (x[:3] + n,), torch.zeros(size), 7)
    call = caller(captured, [None, 7], [(0, 0)], 0)
    for value in (1.0, 2.0, 3.0):
        assert call((torch.full((size,), value),)).tolist() == [value + 7] * 3
    assert call((torch.zeros(5),)) is None


def test_a_result_that_is_held_is_overwritten_for_those_alone_who_asked_for_it_and_were_given_it() -> None:
    x = torch.ones(4)
    captured = native(lambda x: (x + 1,), x)
    keeping, reusing = (caller(captured, [None], [(0, 0)], 0, reuse=reuse) for reuse in (False, True))

    def full(value: float) -> tuple[torch.Tensor]:
        return (torch.full((4,), value),)

    kept = [keeping(full(value)) for value in (0.0, 1.0)]
    lent = reusing(full(2.0))
    assert [one.tolist() for one in (*kept, lent)] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = reusing(full(3.0))
        third = reusing(full(4.0))
    assert len(said) == 1
    assert "is still held, and this call overwrites it" in str(said[0].message)
    assert lent.data_ptr() == again.data_ptr() == third.data_ptr()
    assert lent.tolist() == [5.0] * 4
    assert [one.tolist() for one in kept] == [[1.0] * 4, [2.0] * 4]
    fed = reusing((third,))  # it comes back as an input: it is read before anything is written
    assert fed.tolist() == [6.0] * 4
    assert third.tolist() == [5.0] * 4
    mine = keeping(full(8.0))
    assert (fed.tolist(), mine.tolist()) == ([6.0] * 4, [9.0] * 4)


def holders(result: torch.Tensor) -> int:
    return torch._C._storage_Use_Count(result.untyped_storage()._cdata)


def test_memory_that_was_left_is_kept_for_a_while_and_given_back_when_nothing_is_held_for_long() -> None:
    x = torch.ones(4)
    call = caller(native(lambda x: (x + 1,), x), [None], [(0, 0)], 0)
    held = call((x,))
    call((x,))  # leaves the memory of `held`
    known = holders(held)
    for _ in range(63):
        call((x,))
    assert holders(held) == known, "it may come back"
    call((x,))
    assert holders(held) == known - 1, "nobody else has it now"
    assert held.tolist() == [2.0] * 4


def test_two_results_that_are_held_in_turns_come_back_to_their_memory() -> None:
    x = torch.ones(4)
    call = caller(native(lambda x: (x + 1,), x), [None], [(0, 0)], 0)
    one, other = call((x,)), call((x,))
    places = {one.data_ptr(), other.data_ptr()}
    del one
    third = call((x,))
    assert third.data_ptr() in places
    assert third.data_ptr() != other.data_ptr()


def test_nobody_is_warned_where_nothing_is_held_and_a_result_that_is_any_input_is_left_alone() -> None:
    x, zero = torch.ones(4), torch.zeros(4)
    call = caller(native(lambda x, y: (x + y + 1,), x, zero), [None, None], [(0, 0), (1, 1)], 0, reuse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places = {call((x, zero)).data_ptr() for _ in range(4)}
        assert len(places) == 1, "what nobody holds is taken again"
        for given in (lambda fed: (fed, zero), lambda fed: (zero, fed)):
            fed = call((x, zero))
            result = call(given(fed))
            assert (fed.tolist(), result.tolist()) == ([2.0] * 4, [3.0] * 4)
            assert fed.data_ptr() != result.data_ptr()
            del fed, result


def test_a_quick_call_sees_no_onlookers_and_no_replay_within_its_own() -> None:
    x = torch.ones(2)
    captured = native(lambda x: (x + 1,), x)
    call = caller(captured, [None], [(0, 0)], 0)
    with Asked("add.Tensor") as mode:
        assert call((x,)) is None
        assert captured.try_replay([x]) is None
    assert mode.count == 0
    assert call((x,)).tolist() == [2.0, 2.0]


def test_empty_inputs_need_no_memory_and_have_their_form() -> None:
    captured = native(lambda x, y: (x.sum() + y,), torch.ones(0, 3), torch.ones(2))
    call = caller(captured, [None, None], [(0, 0), (1, 1)], 0)
    y = torch.full((2,), 3.0)
    assert call((torch.ones(0, 3), y)).tolist() == [3.0, 3.0]
    assert call((torch.ones(0, 4), y)) is None
    assert call((torch.ones(2)[:0], y)) is None
