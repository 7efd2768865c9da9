"""Streams, kernels and events that a capture takes, read off a graph with its plan. What TorchAir's own code then
captures of twelve models is compared in packages/simulator/tests/simulator_tests/test_counts.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npucompose import scope
from npucompose.npu.capture.counts import CaptureCounts, CaptureWay, counts_of

STREAMS = CaptureWay(closed_by="stream")


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.Graph:
    return make_fx(function, tracing_mode="fake")(*inputs).graph


def on_streams(*labels: str) -> fx.Graph:
    """A relu on each of these streams in turn, a wait before the last one's."""
    scope.define() if hasattr(scope, "define") else None
    graph = fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = torch.ones(4)
    for label in labels:
        graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], [label]))
        value = graph.call_function(torch.ops.aten.relu.default, (value,))
        value.meta["val"] = torch.ones(4)
        record = graph.call_function(torch.ops.air.record.default, ())
        graph.call_function(torch.ops.air.scope_exit.default, ())
        graph.call_function(torch.ops.air.wait.default, ([record],))
    graph.output((value,))
    return graph


def test_views_and_bare_memory_start_no_kernel() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.view(-1)) + torch.empty(16)

    assert counts_of(traced(function, torch.ones(4, 4))) == CaptureCounts(streams=1, kernels=2)


def test_a_copy_to_the_input_that_was_changed_is_removed_and_another_is_not() -> None:
    def changed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.add(x, y))
        return y * 2

    def replaced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.add(y, y))
        return y * 2

    def read_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        new = torch.add(x, y)
        before = x * 2
        x.copy_(new)
        return before

    x, y = torch.ones(4), torch.ones(4)
    assert [counts_of(traced(one, x, y)).kernels for one in (changed, replaced, read_between)] == [2, 3, 3]
    assert counts_of(traced(changed, x, y), CaptureWay(in_place=False)).kernels == 3


@pytest.mark.parametrize(
    ("function", "kernels"),
    [
        (lambda x, y: (x.copy_(torch.add(x, y)), y * 2)[1], 2),
        (lambda x, y: x.copy_(y), 1),  # of an input, and made by nobody
        (lambda x, y: torch.relu(y).copy_(torch.add(x, y)), 3),  # to no input
        (lambda x, y: (x.copy_(torch.add(y, x)), y * 2)[1], 3),  # the input is not the first operand
        (lambda x, y: (x.copy_(torch.softmax(x, 0)), y * 2)[1], 3),  # no operator that works in place
        (lambda x, y: (x.copy_(torch.add(x, y)), x.view(2, 2) * 2)[1], 2),  # what reads it comes later
        (lambda x, y: (s := torch.add(x, y), v := x.view(2, 2) * 2, x.copy_(s), v)[3], 3),  # a view is read between
    ],
)
def test_only_what_an_input_becomes_of_itself_is_copied_by_nobody(function: Callable[..., Any], kernels: int) -> None:
    assert counts_of(traced(function, torch.ones(4), torch.ones(4))).kernels == kernels


@pytest.mark.parametrize(
    ("labels", "scopes", "streams"),
    [
        (("a",), (1 + 1 + 1, 1 + 2), (1 + 1 + 1, 1 + 2)),
        (("a", "a"), (2 + 1 + 2, 2 + 4), (2 + 1 + 1, 2 + 2)),
        (("a", "b"), (2 + 1 + 2, 2 + 4), (2 + 1 + 2, 2 + 4)),
    ],
    ids=["one side stream", "entered twice", "two side streams"],
)
def test_each_scope_or_each_stream_is_closed_by_events(
    labels: tuple[str, ...], scopes: tuple[int, int], streams: tuple[int, int]
) -> None:
    graph = on_streams(*labels)
    for way, (records, waits) in ((CaptureWay(), scopes), (STREAMS, streams)):
        found = counts_of(graph, way)
        assert (found.streams, found.kernels) == (1 + len(set(labels)), len(labels))
        assert (found.records, found.waits) == (records, waits)
        assert found.tasks == len(labels) + records + waits


def test_a_wait_for_a_value_makes_one_record_of_it() -> None:
    graph = on_streams("a")
    relu, output = (next(node for node in graph.nodes if node.name.startswith(name)) for name in ("relu", "output"))
    before = counts_of(graph)
    with graph.inserting_before(output):
        graph.call_function(torch.ops.air.wait.default, ([relu],))
        graph.call_function(torch.ops.air.wait.default, ([relu],))
    after = counts_of(graph)
    assert (after.records - before.records, after.waits - before.waits) == (1, 2)
