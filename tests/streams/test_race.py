"""The race finder against every order there is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.errors import PlanError
from npucompose.graphs import Dependence
from npucompose.schema.streams import Streams
from npucompose.streams import apply, execute, validate
from npucompose.streams.execute import ExampleInputs, find_races, isolated_run
from npucompose.streams.timing import issued_before
from npucompose.table.structure import structure
from tests.sample_graphs import CAN, Program, aten, run, seeded_program, traced
from tests.streams.test_validate import drop_event

X = torch.randn(4, 4)
ALWAYS = Streams(min_gain=0, max_streams=3)


def orders(before: dict[fx.Node, list[fx.Node]], done: tuple[fx.Node, ...] = ()) -> Iterator[tuple[fx.Node, ...]]:
    """Every linear extension."""
    if len(done) == len(before):
        yield done
    for kernel, firsts in before.items():
        if kernel not in done and set(firsts) <= set(done):
            yield from orders(before, (*done, kernel))


def is_observable(module: fx.GraphModule) -> bool:
    """Whether some order that streams and events allow gives other bits."""
    dependence = Dependence.from_graph(module.graph)
    inputs = ExampleInputs(module.graph, dependence)
    with isolated_run():
        expected = execute._run(module.graph, inputs, dependence.kernels)
        every = orders(issued_before(module.graph, dependence.kernels))
        return any(execute._run(module.graph, inputs, order) != expected for order in every)


@pytest.mark.usefixtures("plans_at_first_sight")
@pytest.mark.parametrize("graphs", [5, pytest.param(80, marks=pytest.mark.slow)])
def test_a_dropped_event_is_found_wherever_it_can_be_seen(graphs: int) -> None:
    found = hidden = 0
    for seed in range(graphs):
        module = seeded_program(seed, size=6)
        apply(module.graph, ALWAYS, CAN)
        find_races(module.graph, orders=5)
        if not drop_event(module, random.Random(seed)):
            continue
        if is_observable(module):
            found += 1
            with pytest.raises(PlanError, match="race_found"):
                find_races(module.graph, orders=200)
        else:
            hidden += 1
    assert found >= graphs // 4


def test_a_missing_event_is_named_with_the_kernel_that_went_wrong() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor]:
        read = x.mm(x)
        x.add_(1)
        return (read,)

    module = traced(forward, X)
    tree: dict[str, Any] = {"kind": "explicit", "plan": [{"stream": "s", "match": {"name": "mm"}}]}
    apply(module.graph, structure(Streams, {**tree, "check": 20}, "streams"), CAN)
    module.graph.erase_node(next(n for n in module.graph.nodes if n.name.startswith("wait")))
    with pytest.raises(PlanError, match="the first kernel with other bits is 'mm'"):
        find_races(module.graph, orders=20)


def test_an_input_that_two_streams_write_is_compared_afterwards() -> None:
    building = Program(inputs=3)
    x, a, b = building.values
    building.call(aten.copy_.default, x, a)
    building.call(aten.copy_.default, x, b)
    module = building.finish([building.call(aten.neg.default, a)])
    plan = [{"stream": "s", "match": {"name": "copy__default_1"}}]
    apply(module.graph, structure(Streams, {"kind": "explicit", "plan": plan}, "streams"), CAN)
    find_races(module.graph, orders=20)
    module.graph.erase_node(next(n for n in module.graph.nodes if n.name.startswith("wait")))
    with pytest.raises(PlanError, match="the outputs or the inputs afterwards differ"):
        find_races(module.graph, orders=20)


def test_a_value_that_is_read_before_it_is_made_is_said_so() -> None:
    module = traced(lambda x: x.mm(x) + x.abs(), X)
    apply(module.graph, ALWAYS, CAN)
    module.graph.erase_node(next(n for n in module.graph.nodes if n.name.startswith("wait")))
    with pytest.raises(PlanError, match="is read before it is made"):
        find_races(module.graph, orders=20)


def test_looking_for_races_leaves_random_numbers_and_the_graph_alone() -> None:
    module = traced(lambda x: torch.rand_like(x) + x.abs().neg(), X)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    apply(module.graph, Streams(min_gain=0, check=3), CAN)
    assert torch.equal(torch.rand(1), expected)


def silent_and_equal(seed: int, size: int, orders: int) -> int:
    """One random graph: planned, proven, shuffled, its results as before. Returns the kernels set aside."""
    module = seeded_program(seed, size)
    expected = run(module)
    aside = apply(module.graph, ALWAYS, CAN)
    validate(module.graph, can=CAN)
    find_races(module.graph, orders)
    assert run(module) == expected
    return aside


@pytest.mark.usefixtures("plans_at_first_sight")
@pytest.mark.parametrize("graphs", [14, pytest.param(400, marks=pytest.mark.slow)])
def test_graphs_with_views_and_writes_are_planned_without_a_race(graphs: int) -> None:
    assert sum(silent_and_equal(seed, size=12, orders=3) > 0 for seed in range(graphs)) > graphs // 2


@pytest.mark.slow
def test_large_graphs_with_views_and_writes_are_planned_without_a_race() -> None:
    assert all(silent_and_equal(seed, size=80, orders=20) for seed in range(1000, 1200))
