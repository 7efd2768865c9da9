"""A capture runs the graph on the caller's tensors and leaves none of it behind, however the graph writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from npucompose.errors import CaptureError
from npucompose_replay.capture.kernels import Undo
from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import same, traced

aten = torch.ops.aten
AT = torch.tensor([3, 1, 3])
ROWS = torch.full((3, 4), 7.0)
WHERE = AT[:, None].expand(3, 4)

WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scatter_": lambda x: x.scatter_(0, WHERE, ROWS),
    "scatter_ a number": lambda x: x.scatter_(0, WHERE, 7.0),
    "scatter_ some columns": lambda x: x.scatter_(1, torch.tensor([[0], [2]]), ROWS),
    "scatter_add_": lambda x: x.scatter_add_(0, WHERE, ROWS),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, WHERE, ROWS, "amax"),
    "index_copy_": lambda x: x.index_copy_(0, AT, ROWS),
    "index_add_": lambda x: x.index_add_(0, AT, ROWS),
    "index_fill_": lambda x: x.index_fill_(0, AT, 7.0),
    "index_fill_ a tensor": lambda x: x.index_fill_(0, AT, torch.tensor(7.0)),
    "index_put_": lambda x: x.index_put_((AT,), ROWS),
    "add_": lambda x: x.add_(7.0),
}


def odd(rows: int) -> torch.Tensor:
    """Numbers whose bits are easily lost: NaN of several kinds, both zeros."""
    made = torch.randn(rows, 4)
    made[1, 0], made[3, 1], made[1, 2] = float("nan"), -0.0, 0.0
    made.view(torch.int32)[3, 0] = 0x7F800001
    return made


@pytest.mark.parametrize("rows", [5, 200], ids=["most of it", "a few rows"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_an_operator_writes_is_as_it_was_to_the_last_bit(write: Callable[[torch.Tensor], Any], rows: int):
    x = odd(rows)
    before = x.clone()
    captured = CapturedGraph.capture(traced(lambda x: (write(x) * 2,), x), [x])
    assert same([x], [before])
    assert same(captured.replay(x), [write(before) * 2])
    assert same([x], [before])


def test_what_was_written_twice_is_as_it_was_before_the_first_time():
    x = torch.zeros(5, 4)
    undo = Undo()
    for number in (1.0, 2.0, 3.0):
        undo.about_to_write(x, aten.fill_.Scalar, (x, number))
        x.fill_(number)
    undo.restore()
    assert torch.equal(x, torch.zeros(5, 4))


def test_rows_come_back_although_the_index_was_written_since():
    def step(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        moving = at + 0
        x.index_copy_(0, moving, ROWS)
        moving.add_(10)
        x.index_copy_(0, moving, ROWS)
        return (x.sum(),)

    x = torch.randn(200, 4)
    before = x.clone()
    CapturedGraph.capture(traced(step, x, AT), [x, AT])
    assert same([x], [before])


def test_an_index_that_is_none_is_refused_and_nothing_is_written():
    x = torch.randn(200, 4)
    graph = traced(lambda x, at: (x.index_copy_(0, at, ROWS),), x, AT)
    before = x.clone()
    with pytest.raises(CaptureError, match="fails on the given inputs"):
        CapturedGraph.capture(graph, [x, torch.tensor([3, 999, 1])])
    assert same([x], [before])


def test_of_a_long_cache_only_the_rows_that_are_written_are_kept():
    x = torch.randn(200, 4)
    whole = x.clone()
    undo = Undo()
    undo.about_to_write(x, aten.index_copy_.default, [x, 0, AT, ROWS])
    x.fill_(7.0)
    undo.restore()
    kept = torch.zeros(200, dtype=torch.bool).index_fill_(0, AT, True)
    assert same([x[kept]], [whole[kept]])
    assert x[~kept].eq(7.0).all()
