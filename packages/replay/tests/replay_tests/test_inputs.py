"""What a recording asks of its inputs, and how it lays out memory of its own for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # defines the operators
from torch import fx

from npucompose_replay.capture.updates import find
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.memory.arena import ALIGNMENT
from npucompose_replay.memory.inputs import Private, same_number
from npucompose_replay.operands import layout_of, sharing
from tests.graph_helpers import traced

aten = torch.ops.aten
MEMORY = torch.zeros(64)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([MEMORY[:8], MEMORY[8:16]], set()),
        ([MEMORY[:9], MEMORY[8:16]], {0, 1}),
        ([MEMORY[:32], MEMORY[4:6], MEMORY[20:24]], {0, 1, 2}),
        ([MEMORY[20:24], MEMORY[:32], MEMORY[4:6], MEMORY[40:44]], {0, 1, 2}),
        ([MEMORY[:8], MEMORY[4:20], MEMORY[16:24], 3], {0, 1, 2}),
        ([MEMORY, MEMORY[:0]], set()),
    ],
    ids=["beside", "one element", "two inside one", "in any order", "a chain", "empty"],
)
def test_inputs_that_share_memory_are_all_found(inputs: list[torch.Tensor], expected: set[int]) -> None:
    assert sharing(inputs) == expected


@pytest.mark.parametrize(
    ("given", "captured", "same"),
    [
        (2, 2, True), (2, 3, False), (1, True, False), (1, 1.0, False), (0.0, -0.0, False), (-0.0, float("-0"), True),
        (complex(0.0, -0.0), complex(0.0, 0.0), False), (complex(1, 2), complex(1, 2), True), ("a", "a", True),
        (math.nan, math.nan, True), (-math.nan, math.nan, False),
    ],
)  # fmt: skip
def test_a_number_is_the_same_with_type_and_sign(given: object, captured: object, same: bool) -> None:
    assert same_number(given, captured) is same


@pytest.mark.parametrize("offset", [0, 1, 3, 7, 13])
def test_memory_of_our_own_is_aligned_as_the_input_is(offset: int) -> None:
    given = torch.zeros(300, dtype=torch.float32)[offset : offset + 200].view(20, 10).t()
    mine = Private.like(given).tensor
    assert mine.data_ptr() % ALIGNMENT == given.data_ptr() % ALIGNMENT
    assert (mine.shape, mine.stride(), mine.dtype) == (given.shape, given.stride(), given.dtype)
    assert mine.data_ptr() != given.data_ptr()


@pytest.mark.parametrize(
    ("shape", "stride", "overlaps"),
    [
        ((3, 4), (4, 1), False),
        ((4, 3), (1, 4), False),
        ((2, 2), (1, 1), True),
        ((3, 4), (3, 1), True),
        ((3, 4), (0, 1), True),
        ((1, 4), (0, 1), False),
        ((0, 4), (0, 0), False),
        ((3, 4), (8, 2), False),
        ((3, 4), (6, 2), True),
    ],
)
def test_a_layout_in_which_two_indices_name_one_element(
    shape: tuple[int, ...], stride: tuple[int, ...], overlaps: bool
) -> None:
    layout = layout_of(torch.zeros(64).as_strided(shape, stride))
    assert layout.overlaps_itself() is overlaps


def test_an_input_that_shares_memory_is_not_updated_in_place() -> None:
    def step(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        updated = torch.index_copy(x, 0, torch.tensor([1]), rows)
        result = updated * 2
        x.copy_(updated)
        return (result,)

    graph = traced(step, torch.zeros(3, 4), torch.ones(1, 4)).graph
    assert len(find(graph, frozenset()).dropped) == 1
    assert find(graph, frozenset({0})).dropped == frozenset()
    assert find(graph, frozenset({0})).in_place == {}


@pytest.mark.parametrize("executor", ["native", "torchscript", "python"])
def test_a_view_with_another_item_size_begins_where_the_input_does(executor: Any) -> None:
    """The input lies in the middle of its memory: its offset counts floats, that of the view halves of floats."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int16) + 1

    base = torch.randn(64)
    recording, _ = CapturedGraph.capture_call(traced(step, base[8:24]), [base[8:24]], executor=executor)
    for begin in (8, 24, 40):
        (result,) = recording.replay(base[begin : begin + 16])
        assert torch.equal(result, step(base[begin : begin + 16]))


def test_an_old_value_that_a_collective_still_reads_is_not_updated_in_place() -> None:
    """The collective is done with its input at its wait, which comes behind the update."""
    dist = torch.ops._c10d_functional

    def update(*, waits_first: bool) -> fx.Graph:
        graph = fx.Graph()
        x, rows, index = (graph.placeholder(name) for name in ("x", "rows", "index"))
        reduced = graph.call_function(dist.all_reduce.default, (x, "sum", "0"))
        waited = graph.call_function(dist.wait_tensor.default, (reduced,)) if waits_first else None
        updated = graph.call_function(aten.index_copy.default, (x, 0, index, rows))
        waited = waited or graph.call_function(dist.wait_tensor.default, (reduced,))
        graph.call_function(aten.copy_.default, (x, updated))
        graph.output((waited,))
        return graph

    assert len(find(update(waits_first=True), frozenset()).dropped) == 1
    assert find(update(waits_first=False), frozenset()).dropped == frozenset()
