"""Kernels that are tried on one thread, what operators of others are lent, and which steps wait for which."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npucompose_replay.capture.issue import Issue
from npucompose_replay.capture.kernels import SingleThreadCheck
from npucompose_replay.capture.recorder import GraphRecorder, recorder_of
from npucompose_replay.executor.portable import Lent, lending
from npucompose_replay.memory import arena
from npucompose_replay.operands import layout_of
from npucompose_replay.plan import PlanSlot, Root, Step, lent_inputs
from tests.graph_helpers import traced

aten = torch.ops.aten
LIBRARY = torch.library.Library("npucompose_small", "FRAGMENT")
LIBRARY.define("keep(Tensor x, Tensor(a!)? y=None, *, Tensor? z=None) -> Tensor")
GIVEN: list[Any] = []


@torch.library.impl(LIBRARY, "keep", "CPU")
def _keep(x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> torch.Tensor:
    GIVEN[:] = [x, y, z]
    return x + 1


keep = torch.ops.npucompose_small.keep.default


# -- kernels on one thread


def trial(alone: Any = lambda call: call()) -> SingleThreadCheck:
    return SingleThreadCheck(alone)


def test_a_kernel_is_tried_once_for_each_form_and_what_differs_is_named_first() -> None:
    asked: list[int] = []

    def counting(call: Any) -> Any:
        asked.append(1)
        return call()

    one = trial(counting)
    x = torch.randn(2, 3)
    one.see(aten.add.Tensor, (x, x), {"alpha": 1})
    one.see(aten.add.Tensor, (x + 1, x), {"alpha": 1})
    assert len(asked) == 1
    one.see(aten.add.Tensor, (x, x), {"alpha": 2})
    one.see(aten.add.Tensor, (x.t(), x.t()), {"alpha": 1})
    assert len(asked) == 3
    one.see(aten.full.default, ([2], 1.0), {})
    one.see(aten.bernoulli.default, (x,), {})
    assert len(asked) == 3
    assert one.unlike == ""
    wrong = trial(lambda call: call() + 1)
    wrong.see(aten.neg.default, (x,), {})
    wrong.see(aten.abs.default, (x,), {})
    assert wrong.unlike == f"aten.neg.default gives other bits on one thread than on {torch.get_num_threads()}"


def test_a_kernel_that_takes_no_made_up_numbers_is_tried_on_the_real_ones() -> None:
    seen: list[torch.Tensor] = []
    x, index = torch.arange(4.0), torch.tensor([1, 3])

    def looking(call: Any) -> Any:
        seen.append(call())
        return seen[-1]

    one = trial(looking)
    one.see(aten.index_select.default, (x, 0, index), {})
    assert not torch.equal(seen[0], torch.tensor([1.0, 3.0]))  # the floats are made up, the index is not
    seen.clear()
    one.see(aten.linalg_cholesky.default, (torch.eye(3),), {})  # made-up numbers are no such matrix
    assert [torch.equal(found, torch.eye(3)) for found in seen] == [True]
    assert one.unlike == ""


def test_an_operator_that_writes_is_tried_on_copies() -> None:
    x = torch.arange(4.0)
    wrong = trial(lambda call: call().clone() + 1)
    trial().see(aten.add_.Tensor, (x, 1), {})
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    wrong.see(aten.add_.Tensor, (x, 1), {})
    assert wrong.unlike != ""


def test_a_strangers_operator_is_not_called_a_second_time() -> None:
    GIVEN.clear()
    one = trial()
    one.see(keep, (torch.ones(2),), {})
    assert not GIVEN
    assert one.unlike.startswith("npucompose_small.keep.default is not torch's own and is not called a second time")


# -- what a stranger's operator is lent


def slot(kind: Any, index: int = -1) -> PlanSlot:
    return PlanSlot(Root(kind=kind, nbytes=8, index=index), layout_of(torch.ones(2)))


def test_a_step_is_lent_the_inputs_that_no_step_before_has_written() -> None:
    a, b, pool = slot("input", 0), slot("input", 1), slot("pool")
    steps = [
        Step(op=keep, args=(a, None, b)),
        Step(op=keep, args=(pool, a, b)),
        Step(op=aten.add_.Tensor, args=(b, a, 1)),
        Step(op=keep, args=(a, None, None)),
        Step(op=keep, args=(pool, None, b)),
    ]
    assert lent_inputs(steps) == [frozenset(found) for found in ({0, 1}, {0, 1}, set(), set(), set())]


def test_operands_are_the_callers_tensors_results_memory_or_copies() -> None:
    memory, pool = torch.arange(8.0), torch.arange(4.0)
    result, given_out = torch.zeros(4), torch.full((4,), 5.0)
    lent = Lent(owners={2: memory[2:6]}, results={result.untyped_storage()._cdata: given_out.untyped_storage()})
    call = lending(keep, lent, frozenset({2}))

    def over(tensor: torch.Tensor) -> torch.Tensor:
        """As a recording sees it: with a storage of its own over the same memory."""
        begin = tensor.data_ptr()
        return (
            layout_of(tensor)
            .moved(-tensor.storage_offset())
            .over(arena.over(begin, tensor.numel() * tensor.element_size()))
        )

    with torch.inference_mode():
        assert call(over(memory[2:6]), None).tolist() == [3.0, 4.0, 5.0, 6.0]
    assert GIVEN[0] is lent.owners[2]
    call(over(memory[3:5]), pool, z=pool[1:])
    assert GIVEN[0].data_ptr() == memory[3:5].data_ptr()
    assert GIVEN[0].untyped_storage()._cdata == memory.untyped_storage()._cdata
    assert GIVEN[1].data_ptr() == pool.data_ptr()  # it is written
    assert GIVEN[2].tolist() == [1.0, 2.0, 3.0]
    assert GIVEN[2].data_ptr() != pool[1:].data_ptr()
    call(result[1:])
    assert GIVEN[0].data_ptr() == given_out[1:].data_ptr()
    for outside in (torch.ones(2), torch.cat([memory, memory])[6:10]):
        call(over(outside))
        assert GIVEN[0].data_ptr() != outside.data_ptr()
        assert torch.equal(GIVEN[0], outside)
    lent.clear()
    assert (lent.owners, lent.results) == ({}, {})


# -- on which stream


def test_steps_of_a_graph_without_streams_are_issued_as_they_are() -> None:
    module = traced(lambda x: (x + 1,), torch.ones(2))
    with recorder_of(module, [torch.ones(2)], None, GraphRecorder) as recorder:
        issue = recorder.issue
    assert not issue.has_streams
    step = Step(op=aten.relu.default, args=())
    assert issue.step(step) is step


def test_random_numbers_effects_and_waits_put_steps_in_order() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    issue = Issue({})

    def issued(op: Any, stream: str, draws: bool = False) -> Step:
        node = graph.call_function(op, (x,))
        issue.node(node)
        issue.stream, issue.draws = stream, draws
        made = issue.step(Step(op=op, args=()))
        issue.done(node)
        return made

    first = issued(aten.bernoulli.default, "a", draws=True)
    plain = issued(aten.relu.default, "b")
    second = issued(aten.bernoulli.default, "b", draws=True)
    third = issued(aten.bernoulli.default, "a", draws=True)
    check = issued(aten._assert_async.default, "a")
    again = issued(aten._assert_async.default, "b")
    issue.waiting["b"] = [first, third]
    waits = issued(aten.relu.default, "b")
    after = issued(aten.relu.default, "b")
    assert [s.after for s in (first, plain, second, third)] == [(), (), (first,), (second,)]
    assert [s.after for s in (check, again, waits, after)] == [(), (check,), (first, third), ()]
    assert [s.stream for s in (first, plain, after)] == ["a", "b", "b"]
    assert issue.last == {"a": check, "b": after}
