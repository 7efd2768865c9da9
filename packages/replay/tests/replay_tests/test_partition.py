"""Graphs are cut where they must be, in order; what crosses a cut is memory, and a cut graph gives the same bits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx

from npucompose import ops
from npucompose.bits import same_bytes
from npucompose.graphs.effects import is_getitem
from npucompose_replay.capture.calls import Calls
from npucompose_replay.capture.ledger import real
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.front.segments import Part, Segmented, parts_of
from npucompose_replay.gate import refused
from npucompose_replay.operands import mapped
from replay_tests.capturing import request
from replay_tests.random_programs import Program, programs
from tests.graph_helpers import built, same, traced
from tests.searches import examples

aten = torch.ops.aten


def node_of(module: fx.GraphModule, target: Any) -> fx.Node:
    return next(node for node in module.graph.nodes if node.target is target)


def listed(part: Part) -> str:
    calls = [str(node.target).split(".")[1] for node in part.module.graph.nodes if node.op == "call_function"]
    return f"{'recorded' if part.recorded else 'as it is'}: {' '.join(calls)}"


def cut(module: fx.GraphModule, *targets: Any, **options: Any) -> Segmented:
    """The graph with every call of `targets` outside of recordings."""
    refused = {node: "a test" for node in module.graph.nodes if node.target in targets}

    def make(one: Any) -> GraphCache:
        return GraphCache(one, capture_limit=8, executor=options.get("executor", "native"))

    return Segmented(request(module), refused, make, clone_output=options.get("clone_output", False))


def test_a_graph_is_cut_in_its_order_and_a_view_is_made_anew_where_it_is_read() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        v = y.t()
        return (torch.sin(v) + v, y[1:])

    parts = parts_of(module := traced(function, torch.ones(3, 3)), [node_of(module, aten.sin.default)])
    assert [listed(part) for part in parts] == [
        "recorded: mul",
        "as it is: t sin",
        "recorded: t add",
        "as it is: slice",
    ]
    assert [[node.name for node in part.inputs] for part in parts] == [["x_1"], ["mul"], ["sin", "mul"], ["add", "mul"]]
    assert [[node.name for node in part.dying] for part in parts] == [["x_1"], [], ["sin"], []]


def test_what_starts_no_kernel_is_worth_no_recording() -> None:
    module = traced(lambda x: (torch.cos(torch.sin(x).t()),), torch.ones(2, 2))
    parts = parts_of(module, [node_of(module, aten.sin.default), node_of(module, aten.cos.default)])
    assert [part.recorded for part in parts] == [False, False]


@pytest.mark.parametrize("executor", ["native", "torchscript"])
def test_a_write_through_a_view_behind_a_cut_is_seen_by_all_that_read_that_memory(executor: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        v = y[1:]
        w = torch.sin(v)
        v.add_(w)
        z = torch.sin(y)
        x.mul_(3)
        return y + z, v, y

    inputs = [torch.randn(3, 3) for _ in range(4)]
    segmented = cut(traced(function, inputs[0]), aten.sin.default, executor=executor)
    for x in inputs:
        mine, theirs = x.clone(), x.clone()
        assert same(segmented([mine]), function(theirs))
        assert same_bytes(mine, theirs)
    assert segmented.partition().segments == 3


def test_the_value_that_crosses_is_the_memory_and_not_the_view() -> None:
    """With the view itself across the cut, a recording whose results are copies would write into the copy."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        v = y[1:]
        w = torch.sin(x)
        v.add_(1)
        return (y + w,)

    module = traced(function, torch.ones(3, 3))
    parts = parts_of(module, [node_of(module, aten.sin.default)])
    assert [node.name for part in parts for node in part.inputs if part.recorded] == ["x_1", "mul", "sin"]


def test_results_of_a_cut_graph_are_copies_where_that_is_wanted_and_an_input_comes_back_itself() -> None:
    module = traced(lambda x: (torch.sin(x) + 1, x, x * 2), torch.ones(3))
    kept = cut(module, aten.sin.default, clone_output=True)
    x = torch.randn(3)
    first = kept([x])
    again = kept([torch.randn(3)])
    assert first[1] is x
    assert same_bytes(first[2], x * 2)
    assert first[2].data_ptr() != again[2].data_ptr()


def test_a_cut_through_a_scope_closes_it_before_and_opens_it_behind() -> None:
    ops.define()
    air = torch.ops.air

    def make(graph: fx.Graph, xs: list[fx.Node]) -> Any:
        first = graph.call_function(aten.neg.default, (xs[0],))
        record = graph.call_function(air.record.default)
        graph.call_function(air.scope_enter.default, (["_user_stream_label"], ["side"]))
        graph.call_function(air.wait.default, ([record],))
        second = graph.call_function(aten.cos.default, (first,))
        refused = graph.call_function(aten.sin.default, (second,))
        third = graph.call_function(aten.exp.default, (refused,))
        done = graph.call_function(air.record.default)
        graph.call_function(air.scope_exit.default)
        graph.call_function(air.wait.default, ([record, done],))
        return (graph.call_function(aten.add.Tensor, (third, first)),)

    module = built(make, 1)
    parts = parts_of(module, [node_of(module, aten.sin.default)])
    assert [listed(part) for part in parts] == [
        "recorded: neg record scope_enter wait cos scope_exit",
        "as it is: sin",
        "recorded: scope_enter exp record scope_exit wait add",
        "as it is: ",
    ]
    waits = [node.args[0] for part in parts for node in part.module.graph.nodes if node.target is air.wait.default]
    assert [[node.name for node in awaited] for awaited in waits] == [["record_default"], ["record_default_1"]]
    x = torch.randn(4)
    segmented = cut(module, aten.sin.default)
    for _ in range(3):
        assert same(segmented([x]), [torch.exp(torch.sin(torch.cos(-x))) + -x])


def test_a_scope_that_was_closed_before_a_cut_is_not_opened_behind_it() -> None:
    ops.define()
    air = torch.ops.air

    def make(graph: fx.Graph, xs: list[fx.Node]) -> Any:
        graph.call_function(air.scope_enter.default, (["_user_stream_label"], ["side"]))
        first = graph.call_function(aten.neg.default, (xs[0],))
        graph.call_function(air.scope_exit.default)
        refused = graph.call_function(aten.sin.default, (first,))
        return (graph.call_function(aten.cos.default, (refused,)),)

    module = built(make, 1)
    assert [listed(part) for part in parts_of(module, [node_of(module, aten.sin.default)])] == [
        "recorded: scope_enter neg scope_exit",
        "as it is: sin",
        "recorded: cos",
        "as it is: ",
    ]


def at_random(module: fx.GraphModule, seed: int) -> dict[fx.Node, str]:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    draw = random.Random(seed)
    return {node: "a test" for node in calls if draw.random() < 0.3}


@pytest.mark.parametrize("executor", ["native", "torchscript"])
@settings(deadline=None, max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), seed=st.integers(0, 99))
def test_a_random_graph_cut_at_random_places_gives_the_same_bits(program: Program, seed: int, executor: Any) -> None:
    module = traced(program, *program.inputs(0))

    def make(one: Any) -> GraphCache:
        return GraphCache(one, capture_limit=8, executor=executor)

    segmented = Segmented(request(module), at_random(module, seed), make)
    for step in (0, 1, 2):
        mine, theirs = program.inputs(step), program.inputs(step)
        assert same(segmented(mine), program(*theirs))
        assert same(mine, theirs)


@contextlib.contextmanager
def refusing(names: frozenset[str]) -> Iterator[None]:
    """Nodes of these names turn out to be none that can be recorded, some of them only once they have run."""
    recorded = Calls.record

    def record(calls: Calls, node: fx.Node, *given: Any) -> Any:
        if node.name not in names:
            return recorded(calls, node, *given)
        refusal = refused(node, "a test")
        if len(node.name) % 2 and not node.target._schema.is_mutable:  # type: ignore[union-attr]
            refusal.result = node.target(*mapped(real, given[1]), **mapped(real, given[2]))  # type: ignore[operator]
        raise refusal

    with patch.object(Calls, "record", record):
        yield


@pytest.mark.parametrize("executor", ["native", "torchscript"])
@settings(deadline=None, max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), seed=st.integers(0, 99))
def test_a_random_graph_whose_nodes_are_refused_while_they_are_recorded_gives_the_same_bits(
    program: Program, seed: int, executor: Any
) -> None:
    module = traced(program, *program.inputs(0))
    cache = GraphCache(request(module), capture_limit=8, executor=executor)
    with refusing(frozenset(node.name for node in at_random(module, seed) if not is_getitem(node))):
        for step in (0, 1, 2, 3, 4):
            mine, theirs = program.inputs(step), program.inputs(step)
            assert same(cache(mine), program(*theirs))
            assert same(mine, theirs)


def test_a_call_in_which_a_node_is_refused_runs_every_operator_once() -> None:
    """The first call finds the node, the second records the parts; neither runs anything twice."""
    ran: list[str] = []

    def noted(name: str) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            ran.append(name)
            return x + 1

        return run

    for name in ("before", "behind"):
        torch.library.define(f"npucompose_noted::{name}", "(Tensor x) -> Tensor")
        torch.library.impl(f"npucompose_noted::{name}", "CPU")(noted(name))
    before, behind = (getattr(torch.ops.npucompose_noted, name).default for name in ("before", "behind"))

    def make(graph: fx.Graph, xs: list[fx.Node]) -> Any:
        first = graph.call_function(before, (xs[0],))
        found = graph.call_function(aten.nonzero.default, (first,))
        return (graph.call_function(behind, (found,)),)

    cache = GraphCache(request(built(make, 1)), capture_limit=8)
    for call in range(1, 4):
        assert cache([torch.tensor([-1.0, 3.0])])[0].tolist() == [[2]]
        assert ran == ["before", "behind"] * call
    assert cache.partition().words == "2 segments, 1 operator outside recordings: aten.nonzero"
    assert [len(inner.captured) for inner in cache.segmented.caches] == [1, 1]  # type: ignore[union-attr]
