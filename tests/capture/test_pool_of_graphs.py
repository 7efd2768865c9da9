"""What captures of graphs take of an NPU's pool: the least and the most, for the sizes of a graph's symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npucompose.capture.allocator import SMALL_SEGMENT
from npucompose.capture.pool import pool_bytes, requests_of, symbols_in

MIB = 2**20


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.Graph:
    return make_fx(function, tracing_mode="fake")(*inputs).graph


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(torch.mm(x, x)) + 1, -1)


def test_a_value_lives_from_its_kernel_to_where_it_is_mentioned_last() -> None:
    requests = requests_of(traced(chain, torch.ones(256, 256))).requests
    assert [request.nbytes for request in requests] == [256 * 256 * 4] * 4
    assert [request.last for request in requests] == [request.first for request in requests[1:]] + [None]


def test_results_in_place_and_overwritten_are_the_least_and_workspaces_the_most() -> None:
    """Four values of a mebibyte and more each: two at a time in place, three beside a workspace."""
    graph = traced(chain, torch.ones(1024, 1024))
    low, high = pool_bytes([requests_of(graph)], shared=True)
    assert requests_of(graph).requests[1].instead == 0
    assert low == 20 * MIB
    assert high > low + 20 * MIB


def test_a_second_capture_of_the_pool_needs_nothing_more_at_best_and_room_for_what_was_returned_at_worst() -> None:
    one = requests_of(traced(chain, torch.ones(1024, 1024)))
    for shared in (True, False):
        low, high = pool_bytes([one, one], shared=shared)
        alone = pool_bytes([one], shared=True)
        assert low == alone[0] * (1 if shared else 2)
        assert alone[1] <= high <= 2 * alone[1]


def test_a_graph_with_symbols_is_asked_for_any_size() -> None:
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = fake.from_tensor(torch.ones(8, 64), source=ConstantSource("x"), symbolic_context=context)
    graph = make_fx(lambda x: torch.relu(x) * 2, tracing_mode="real")(x).graph
    for rows in (3, 64, 4096):
        bound = dict(symbols_in(graph, [torch.ones(rows, 64)]))
        assert list(bound.values()) == [rows]
        assert [one.nbytes for one in requests_of(graph, bound).requests] == [rows * 64 * 4] * 2
    assert pool_bytes([requests_of(graph, bound)], shared=True)[0] == SMALL_SEGMENT
