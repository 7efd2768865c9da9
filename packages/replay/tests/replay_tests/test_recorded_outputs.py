"""What a replay hands out: the caller's own tensors, static buffers, constants made anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npucompose_replay.captured_graph import CapturedGraph
from tests.graph_helpers import built, same, traced

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("executor")


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
    captured = CapturedGraph.capture(graph, [x])
    addresses = {captured.replay(x)[0].data_ptr() for _ in range(5)}
    assert len(addresses) == 1
    cloned = CapturedGraph.capture(graph, [x], clone_output=True)
    lent = cloned.replay(x, reuse=True)[0]
    other = cloned.replay(torch.zeros(3), reuse=True)[0]
    assert lent.data_ptr() != other.data_ptr()
    assert torch.equal(lent, torch.full((3,), 2.0))


def test_what_a_caller_does_to_an_output_does_not_reach_the_next_replay():
    x = torch.randn(2, 3)
    captured = CapturedGraph.capture(traced(lambda x: (x + 1, torch.zeros(3)), x), [x])
    first = captured.replay(x)
    first[0].t_().fill_(9)
    first[1].fill_(9)
    assert same(captured.replay(x), (x + 1, torch.zeros(3)))


def test_a_result_is_not_written_over_an_operand_that_is_read_in_two_layouts():
    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        return ((y + y.t()) * 2,)

    x = torch.randn(33, 33)
    captured = CapturedGraph.capture(traced(step, x), [x])
    for given in (x, torch.randn(33, 33)):
        assert same(captured.replay(given), step(given))


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


@pytest.mark.parametrize("clone_output", [False, True])
def test_a_result_lies_in_its_memory_where_it_lies_in_the_graph(clone_output: bool) -> None:
    """Of such a result AOTAutograd takes offset and strides for the tensor that it makes of an input."""

    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        merged = torch.as_strided_scatter(x, x[2:].reshape(4, 2) + 1, (4, 2), (2, 1), 2)
        second = aten.unbind_copy.int(x.reshape(5, 2))[3]
        y = x.tanh()
        return (
            merged.as_strided((2, 4), (1, 2), 2), merged.as_strided((3,), (1,), 7), second[1:], y[3:7], y[:0],
            aten.split_with_sizes_copy(x, [4, 6])[1].expand(3, 6)[1:, 2:],
        )  # fmt: skip

    x = torch.randn(10)
    graph = traced(parts, x)
    captured = CapturedGraph.capture(graph, [x], clone_output=clone_output)
    for given in (x, torch.randn(10), torch.randn(10)):
        expected, found = graph(given), captured.replay(given)
        assert same(found, expected)
        assert [(y.storage_offset(), y.stride()) for y in found] == [(y.storage_offset(), y.stride()) for y in expected]
