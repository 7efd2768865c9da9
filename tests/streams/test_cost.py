"""How long kernels are taken to last: by their shapes, or measured; and who cannot measure."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest
import torch

from npucompose.errors import PlanError
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.streams.cost import ResultSizes, roofline
from npucompose.vendor.devices import ATLAS_A2, cpu
from tests.sample_graphs import CAN, mm_abs_sub, node, traced

X = torch.randn(4, 4)


def us(function: Any, name: str, *inputs: torch.Tensor, mode: str = "fake") -> float:
    """The estimate of one kernel on a device without latency."""
    graph = traced(function, *inputs, mode=mode).graph
    model = attrs.evolve(cpu(1), launch_us=0.0, cube_gflops=1.0, vector_gflops=1.0, gbytes_s=1e9)
    return roofline([node(graph, name)], model, ResultSizes())[0].us


def test_a_matrix_product_costs_its_multiplications_and_additions() -> None:
    assert us(lambda x: x.mm(x), "mm", torch.randn(8, 8)) == pytest.approx(2 * 8**3 / 1e3)


def test_a_convolution_and_an_attention_cost_what_torch_s_formulas_say() -> None:
    image, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    assert us(torch.nn.functional.conv2d, "convolution", image, weight) == pytest.approx(2 * 36 * 4 * 27 / 1e3)


def test_everything_else_costs_its_elements_and_a_symbolic_size_its_hint() -> None:
    assert us(lambda x: x.exp(), "exp", X) == pytest.approx(16 / 1e3)
    assert us(lambda x: x.exp(), "exp", X, mode="symbolic") == pytest.approx(16 / 1e3)


def test_memory_bounds_what_arithmetic_does_not() -> None:
    graph = traced(lambda x: x + x, torch.randn(1024, 1024)).graph
    (work,) = roofline([node(graph, "add")], attrs.evolve(ATLAS_A2, launch_us=0.0), ResultSizes())
    assert work.us == pytest.approx(2 * 4 * 1024**2 / (ATLAS_A2.gbytes_s * 1e3))
    assert work.bandwidth == pytest.approx(1.0)
    assert (work.cube, work.vector) == (0, 48)


def test_measured_costs_are_the_graph_s_own_and_leave_its_inputs_alone() -> None:
    module = traced(mm_abs_sub, torch.randn(64, 64))
    can = attrs.evolve(CAN, profiles=True, device_model=cpu(2))
    apply(module.graph, Streams(cost="measured", min_gain=0), can)
    decision = decision_of(module)
    assert decision is not None
    assert decision.prediction is not None
    assert decision.prediction.cost == "measured"
    assert 0 < decision.prediction.critical_us <= decision.prediction.serial_us


def test_a_target_that_cannot_time_kernels_says_so() -> None:
    with pytest.raises(PlanError, match="choices: roofline, none"):
        apply(traced(mm_abs_sub, X).graph, Streams(cost="measured"), CAN)


def test_a_plan_that_does_not_pay_is_left_out_and_says_why() -> None:
    module = traced(mm_abs_sub, X)
    assert apply(module.graph, Streams(objective="events"), CAN) == 0
    decision = decision_of(module)
    assert decision is not None
    assert not decision.applied
    assert "is below streams.min_gain 2.0%" in decision.why
    assert decision.prediction is not None
    assert decision.prediction.gain < 0.02


def test_more_events_than_the_device_has_leave_an_automatic_plan_out() -> None:
    module = traced(mm_abs_sub, X)
    assert apply(module.graph, Streams(min_gain=0), attrs.evolve(CAN, max_events=0)) == 0
    decision = decision_of(module)
    assert decision is not None
    assert decision.why == "it needs 1 events, target=null_device mode=reduce-overhead has 0"


def test_a_decision_survives_being_copied_and_sent() -> None:
    module = traced(mm_abs_sub, X)
    apply(module.graph, Streams(min_gain=0), CAN)
    decision = decision_of(module)
    assert decision is not None
    for other in (copy.deepcopy(decision), pickle.loads(pickle.dumps(copy.copy(decision)))):
        assert (other.applied, other.why, other.validated) == (decision.applied, decision.why, decision.validated)
        assert (other.prediction, other.timeline) == (decision.prediction, decision.timeline)
        assert other.prediction is not None
