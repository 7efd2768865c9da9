"""What captures of graphs take of an NPU's pool: the least and the most, for the sizes of a graph's symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from npucompose.npu.capture.pool import (
    LEAST,
    LIBRARY_WORKSPACE,
    MOST,
    PADDING,
    SMALL_SEGMENT,
    PoolRequests,
    PoolRules,
    Request,
    pool_bytes,
    requests_of,
    reserved,
    symbols_in,
)

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


LARGE = 16 * MIB


def asked(*requests: tuple[int, int | None, int | None], nbytes: int = LARGE, stream: str = "s") -> PoolRequests:
    """Requests (first step, last step, instead of which), a step after the other, each with a workspace of nothing."""
    made = tuple(Request(nbytes=nbytes, stream=stream, first=a, last=b, instead=i) for a, b, i in requests)
    return PoolRequests(requests=made, workspaces=tuple((step, stream, 0) for step, _, _ in requests))


THREE = asked((0, 1, None), (1, 2, 0), (2, None, 1))
"""A chain, whose last value is returned."""


@pytest.mark.parametrize(
    ("rules", "captures", "segments"),
    [
        (PoolRules(), [THREE], 2),  # a value is free when the next one is there
        (PoolRules(in_place=True), [THREE], 1),
        (PoolRules(), [THREE, THREE], 3),  # what was returned lives on
        (PoolRules(keeps_results=False), [THREE, THREE], 2),
        (PoolRules(in_place=True, keeps_results=False), [THREE, THREE], 1),
        (PoolRules(in_place=True), [THREE, THREE], 2),
        (PoolRules(), [asked((0, 2, None), (1, 2, None), (2, 2, None))], 3),
        (PoolRules(), [asked((0, 0, None), (1, 1, None), (2, 2, None))], 1),
        (PoolRules(), [asked((0, 0, None)), asked((0, 0, None), stream="t")], 2),
        (PoolRules(in_place=True), [asked((0, 1, None), (1, None, 0), (2, 2, None))], 2),
    ],
)
def test_so_many_values_lie_in_the_pool_at_once(rules: PoolRules, captures: list[PoolRequests], segments: int) -> None:
    assert reserved(captures, rules, shared=True) == segments * LARGE


def test_pools_of_their_own_share_nothing() -> None:
    rules = PoolRules(keeps_results=False)
    assert reserved([THREE, THREE], rules, shared=False) == 2 * reserved([THREE, THREE], rules, shared=True)


def test_a_workspace_is_as_large_as_what_a_kernel_touches_and_20_mebibytes_and_nothing_is_padded_to_nothing() -> None:
    one = asked((0, 0, None))
    touched = PoolRequests(requests=one.requests, workspaces=((0, "s", 4 * MIB),))
    assert reserved([touched], PoolRules(), shared=True) == LARGE
    assert reserved([touched], PoolRules(workspaces=True), shared=True) == LARGE + 24 * MIB
    assert reserved([one], PoolRules(padding=32), shared=True) == LARGE + 2 * MIB
    nothing = asked((0, 0, None), nbytes=0)
    assert reserved([nothing], PoolRules(padding=32), shared=True) == 0
    assert (PADDING, LIBRARY_WORKSPACE) == (32, 20 * MIB)
    assert (LEAST.in_place, LEAST.keeps_results, LEAST.padding, LEAST.workspaces) == (True, False, 0, False)
    assert (MOST.in_place, MOST.keeps_results, MOST.padding, MOST.workspaces) == (False, True, 32, True)


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (lambda x: torch.relu(torch.mm(x, x)), [None, 0]),
        (lambda x: torch.softmax(torch.mm(x, x), -1), [None, None]),  # no operator that works in place
        (lambda x: (y := torch.mm(x, x), torch.relu(y)), [None, None]),  # its operand is returned
        (lambda x: torch.relu(y := torch.mm(x, x)) + y, [None, None, 1]),  # its operand lives on
        (lambda x: torch.add(y := torch.mm(x, x), y), [None, 0]),
        (lambda x: torch.relu(x), [None]),  # an input is nobody's to write
        (lambda x: torch.sum(torch.mm(x, x)) + 1, [None, None, 1]),
        (lambda x: torch.mm(x, x).gt(0), [None, None]),  # another size
    ],
)
def test_a_result_lies_over_an_operand_that_is_alike_and_dies(
    function: Callable[..., Any], instead: list[int | None]
) -> None:
    assert [one.instead for one in requests_of(traced(function, torch.ones(8, 8))).requests] == instead


def test_a_workspace_counts_the_operands_and_the_result() -> None:
    (step, _, nbytes) = requests_of(traced(lambda x, y: torch.mm(x, y), torch.ones(4, 8), torch.ones(8, 2))).workspaces[
        0
    ]
    assert (step, nbytes) == (2, 4 * (4 * 8 + 8 * 2 + 4 * 2))


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
