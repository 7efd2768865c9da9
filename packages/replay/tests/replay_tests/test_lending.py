"""What an operator of others is given in place of a recording's own tensors, operand by operand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor.portable import Lent, _operand, lending
from npucompose_replay.plan import lent_inputs
from tests.graph_helpers import traced


@pytest.fixture(autouse=True)
def library() -> Iterator[Any]:
    with torch.library._scoped_library("npucompose_lending", "FRAGMENT") as made, torch.no_grad():
        made.define("take(Tensor x, Tensor[] more, Tensor(a!) out, *, int n=0) -> Tensor")
        made.define("keep(Tensor x) -> Tensor")
        made.impl("keep", lambda x: x + 1, "CPU")
        made.impl("keep", torch.empty_like, "Meta")
        yield made


def test_operators_may_keep_inputs_that_no_step_before_has_written() -> None:
    keep = torch.ops.npucompose_lending.keep

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = keep(x)
        second = keep(y[1:])
        x.add_(1)
        return (first.sum() + second.sum() + keep(x).sum() + keep(y).sum(),)

    x, y = torch.ones(3), torch.ones(3)
    plan = CapturedGraph.capture(traced(function, x, y), [x, y]).plan
    lent = lent_inputs(plan.steps)
    assert len(lent) == len(plan.steps)
    by_step = [sorted(given) for step, given in zip(plan.steps, lent, strict=True) if "keep" in str(step.op)]
    assert by_step == [[0], [1], [], [1]]
    assert all(not given for step, given in zip(plan.steps, lent, strict=True) if "keep" not in str(step.op))


def test_an_operand_that_is_an_input_is_the_callers_and_a_view_lies_in_its_storage() -> None:
    owner = torch.arange(8.0)
    with torch.inference_mode():
        mine = torch.empty(0).set_(owner.untyped_storage(), 0, (8,))  # type: ignore[call-overload]
        part, odd = mine[2:6], mine[1::3]
    assert _operand(mine, Lent(), [torch.ones(8), owner], False) is owner
    for view in (part, odd):
        given = _operand(view, Lent(), [torch.ones(8), owner], False)
        assert given.untyped_storage()._cdata == owner.untyped_storage()._cdata
        assert (given.tolist(), given.stride()) == (view.tolist(), view.stride())
        assert given.data_ptr() == view.data_ptr()
    part_of = owner[4:]
    assert _operand(mine, Lent(), [part_of], False).data_ptr() == owner.data_ptr(), "the storage is what is lent"


def test_an_operand_beyond_an_input_or_between_its_elements_is_a_copy() -> None:
    memory = torch.arange(32, dtype=torch.uint8)
    short = torch.empty(0, dtype=torch.uint8).set_(memory.untyped_storage())[:8]
    outside = torch.arange(5.0)
    crooked = torch.empty(0).set_(torch.arange(4.0).untyped_storage())
    for value in (outside, crooked, outside[2:4]):
        given = _operand(value, Lent(), [short], False)
        assert given.data_ptr() != value.data_ptr()
        assert (given.tolist(), given.stride(), given.storage_offset()) == (
            value.tolist(), value.stride(), value.storage_offset()
        )  # fmt: skip


def test_an_operand_that_is_a_result_lies_in_the_memory_of_the_caller() -> None:
    mine, theirs = torch.arange(4.0), torch.arange(10.0, 14.0)
    lent = Lent(results={mine.untyped_storage()._cdata: theirs.untyped_storage()})
    given = _operand(mine[1:], lent, [mine], False)
    assert given.data_ptr() == theirs[1:].data_ptr()
    assert _operand(mine[1:], lent, [mine], True).data_ptr() == theirs[1:].data_ptr()
    lent.clear()
    assert (lent.owners, lent.results) == ({}, {})


def test_what_is_written_is_written_where_it_is_and_numbers_are_themselves() -> None:
    mine = torch.arange(4.0)
    assert _operand(mine, Lent(), [], True).data_ptr() == mine.data_ptr()
    assert _operand(mine, Lent(), [], False).data_ptr() != mine.data_ptr()
    assert [_operand(value, Lent(), [], writes) for value in (3, None, "x") for writes in (True, False)] == [
        3, 3, None, None, "x", "x",
    ]  # fmt: skip


def test_a_call_gets_its_operands_in_order_outside_of_inference_mode(library: Any) -> None:
    seen: list[Any] = []

    def take(x: torch.Tensor, more: Any, out: torch.Tensor, n: int = 0) -> torch.Tensor:
        seen.append((x, more, out, n, torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        out.add_(1)
        return x * 2

    library.impl("take", take, "CPU")
    owner, other, out = torch.ones(2), torch.full((2,), 5.0), torch.zeros(2)
    lent = Lent(owners={4: owner, 2: other})
    call = lending(torch.ops.npucompose_lending.take.default, lent, frozenset({4}))
    with torch.inference_mode():
        mine = torch.empty(0).set_(owner.untyped_storage(), 0, (2,))  # type: ignore[call-overload]
        assert call(mine, [mine, other], out, n=7).tolist() == [2.0, 2.0]
    ((x, (again, copy), written, n, inference, grad),) = seen
    assert (x.data_ptr(), again.data_ptr()) == (owner.data_ptr(),) * 2
    assert copy.data_ptr() != other.data_ptr(), "no input that this step may keep"
    assert (copy.tolist(), written.data_ptr(), n, inference, grad) == ([5.0, 5.0], out.data_ptr(), 7, False, False)
    assert out.tolist() == [1.0, 1.0]
