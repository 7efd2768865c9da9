"""Streams written in a model's source: read from the graph, proven, given their events, replaced only when asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

import npucompose
from npucompose import scope
from npucompose.errors import PlanError
from npucompose.graphs import fingerprint, printed
from npucompose.results.streams import StreamAssignment, StreamEvent
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of, plan_of, validate
from npucompose.streams.execute import find_races
from tests.sample_graphs import CAN, run, seeded_program, traced
from tests.searches import examples

X = torch.randn(8, 8)


class Side(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x, x)
        with scope.npu_stream_switch("side", 1):
            rest = x.abs() - x
        return product + rest


class Nested(torch.nn.Module):
    """An event by hand, for timing: the side's abs waits for mm though it reads nothing of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.mm(x, x)
        point = scope.record()
        with scope.npu_stream_switch("side"):
            with scope.npu_stream_switch("deep"):
                deep = x.neg()
            scope.wait([point])
            rest = x.abs() - x
        return product + rest + deep


def compiled(model: torch.nn.Module, *overrides: str) -> Any:
    """The model's one compilation, after a call that gave eager's bits."""
    made = npucompose.compile(model, "mode=reduce-overhead", "target.executor=portable", *overrides)
    with torch.no_grad():
        assert torch.equal(made(X), model(X))
    (compilation,) = made.materialised.backend.compilations
    return compilation


def test_scopes_of_the_source_get_the_events_that_their_data_need() -> None:
    found = compiled(Side(), "passes=stream_plan")
    assert found.plan.nodes == {"mm": "default", "abs_1": "side", "sub": "side", "add": "default"}
    assert found.plan.events == (StreamEvent(recorder="sub", waiter="add"),)
    assert found.plan.priorities == {"side": 1}
    assert found.decision.why == "streams of the graph itself, with the events they lacked"


def test_nested_scopes_are_flattened_and_order_by_hand_is_kept() -> None:
    found = compiled(Nested(), "passes=stream_plan")
    assert found.plan.nodes["neg"] == "deep"
    assert found.plan.nodes["sub"] == "side"
    assert StreamEvent(recorder="mm", waiter="abs_1") in found.plan.events
    validate(found.graph_module.graph)


def test_without_the_pass_the_source_runs_as_it_is_and_nothing_is_claimed() -> None:
    found = compiled(Nested(), "passes=[]")
    assert found.plan.nodes["neg"] == "deep"
    assert found.decision is None


REFUSED = [
    (["streams.unsafe=error"], "race"),
    (["streams=mm_abs_sub"], "already_planned"),
]


@pytest.mark.parametrize(("overrides", "code"), REFUSED, ids=lambda value: str(value))
def test_another_plan_and_missing_events_are_refused_where_that_is_asked(overrides: list[str], code: str) -> None:
    with pytest.raises(PlanError) as caught:
        compiled(Side(), "passes=stream_plan", *overrides)
    assert caught.value.code == code


def test_override_replaces_the_streams_of_the_source() -> None:
    found = compiled(Side(), "passes=stream_plan", "streams=mm_abs_sub", "streams.override=true")
    assert set(found.plan.nodes.values()) == {"default", "stream1"}


def test_a_mode_that_syncs_data_itself_keeps_the_source_as_it_is() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return Side()(x)

    module = traced(forward, X)
    before = printed(module.graph)
    assert apply(module.graph, Streams(), attrs.evolve(CAN, explicit_events=False)) == 0
    assert printed(module.graph) == before
    decision = decision_of(module)
    assert decision is not None
    assert not decision.validated


def replanned(seed: int, wanted: Streams) -> tuple[str, str, StreamAssignment]:
    module = seeded_program(seed, size=16)
    apply(module.graph, wanted, CAN)
    once = fingerprint(module.graph)
    assert apply(module.graph, wanted, CAN) == 0
    return once, fingerprint(module.graph), plan_of(module.graph)


@pytest.mark.parametrize("objective", ["makespan", "events", "streams", "ge"])
def test_planning_a_planned_graph_changes_nothing(objective: Any) -> None:
    for seed in range(examples(20)):
        once, twice, _ = replanned(seed, Streams(min_gain=0, max_streams=3, objective=objective))
        assert once == twice


def scattered(seed: int, stream_of: Callable[[int], str]) -> Any:
    """A random program whose kernels stand in scopes by hand, without any event."""
    module = seeded_program(seed, size=10)
    air = torch.ops.air
    for number, name in enumerate(plan_of(module.graph).nodes):
        kernel = next(node for node in module.graph.nodes if node.name == name)
        with module.graph.inserting_before(kernel):
            module.graph.call_function(air.scope_enter.default, (["_user_stream_label"], [stream_of(number)]))
        with module.graph.inserting_after(kernel):
            module.graph.call_function(air.scope_exit.default, ())
    return module


def test_any_scopes_by_hand_are_made_safe() -> None:
    for seed in range(examples(30)):
        expected = run(seeded_program(seed, size=10))
        module = scattered(seed, lambda number: "abc"[number * 7 % 3])
        apply(module.graph, Streams(), CAN)
        module.graph.lint()
        validate(module.graph, can=CAN)
        find_races(module.graph, orders=3)
        assert run(module) == expected
