"""Costs by the table of this machine: which sample a kernel is looked up in, between which gains a prediction lies."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npucompose.results.streams import Prediction, gain_interval
from npucompose.schema.capabilities import Capabilities
from npucompose.schema.cost_table import BUSY, CostTable, Sample
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.streams.calibrated import MODEL_DOUBT, Feature, calibrated, features
from npucompose.streams.cost import ResultSizes
from npucompose.streams.problem import Problem
from tests.sample_graphs import CAN, mm_abs_sub, node, traced

X = torch.randn(16, 16)
KIB = 1024.0


def sample(size: float, one: float, together: float | None = None, spread: float = 0.0) -> Sample:
    every = one if together is None else together
    middle = (one * (1 + spread), every * (1 + spread))
    return Sample(size=size, one_us=one, all_us=every, one_middle_us=middle[0], all_middle_us=middle[1])


def table(**families: dict[str, tuple[Sample, ...]]) -> CostTable:
    return CostTable(threads=2, created="2026-11-23T00:00:00+00:00", stream_us=0.5, event_us=0.25, families=families)


def feature(function: Any, name: str, *inputs: torch.Tensor) -> tuple[Feature, ...]:
    graph = traced(function, *inputs).graph
    return features(node(graph, name), ResultSizes())


def test_a_kernel_has_the_family_of_its_operator_and_the_size_that_its_time_depends_on() -> None:
    assert feature(lambda x: x + x, "add", X) == (Feature("pointwise", "add", 2 * KIB),)  # one tensor read, one made
    assert feature(lambda x: x.exp(), "exp", X) == (Feature("transcendental", "exp", 2 * KIB),)
    assert feature(lambda x: x.sum(-1), "sum_1", X) == (Feature("reduction", "sum", KIB),)
    assert feature(lambda x: x.softmax(-1), "_softmax", X) == (Feature("normalisation", "_softmax", 2 * KIB),)
    rows = feature(lambda x, i: x[i], "index", torch.randn(1000, 16), torch.zeros(2, dtype=torch.long))
    assert rows == (Feature("gather", "index", 2 * 2 * 64),)
    written = feature(lambda x, i, y: x.scatter(1, i, y), "scatter", X, torch.zeros(16, 1, dtype=torch.long), X[:, :1])
    assert written == (Feature("update", "scatter", 16 * (8 + 4)),)


def test_a_product_of_many_rows_is_looked_up_by_its_operations_and_by_its_bytes() -> None:
    few = Feature("product of few rows", "mm", 16 * 64 + 2 * 64)
    assert feature(lambda x, y: x.mm(y), "mm", torch.randn(1, 16), X) == (few,)
    rows, product = feature(lambda x: x.mm(x), "mm", X)
    assert product == Feature("product", "mm", 2 * 16**3)
    assert (rows.family, rows.size) == ("product of few rows", 2 * KIB)
    (conv,) = feature(torch.nn.functional.conv2d, "convolution", torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    assert conv == Feature("convolution", "convolution", 2 * 36 * 4 * 27)


def test_between_two_sizes_time_grows_as_a_power_and_outside_it_is_the_call_or_in_proportion() -> None:
    found = table(pointwise={"add": (sample(100, 1), sample(10_000, 10))})

    def at(size: float) -> float:
        estimate = found.estimate("pointwise", "add", size)
        assert estimate is not None
        return estimate.one_us

    assert [at(0), at(100), at(1_000), at(10_000), at(40_000)] == pytest.approx([1, 1, 10**0.5, 10, 40])


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=5), st.floats(0, 1e6), st.floats(0, 1e6))
def test_where_larger_samples_take_longer_a_larger_kernel_does(times: list[float], a: float, b: float) -> None:
    rows = tuple(sample(10.0**place, us) for place, us in enumerate(sorted(times)))
    found = table(pointwise={"add": rows})
    small, large = (found.estimate("pointwise", "add", size) for size in sorted((a, b)))
    assert small is not None
    assert large is not None
    assert small.one_us <= large.one_us * (1 + 1e-9)


def test_an_operator_without_samples_takes_the_mean_of_its_family_and_is_as_sure_as_these_agree() -> None:
    found = table(pointwise={"add": (sample(1, 1, 2),), "mul": (sample(1, 4, 8),)})
    own, other = found.estimate("pointwise", "add", 1), found.estimate("pointwise", "sub", 1)
    assert own is not None
    assert (own.one_us, own.all_us, own.doubt) == pytest.approx((1, 2, 0))
    assert other is not None
    assert (other.one_us, other.all_us, other.doubt) == pytest.approx((2, 4, 1))
    assert found.estimate("attention", "add", 1) is None


FAMILIES = {
    "pointwise": {"add": (sample(1e6, 10),), "abs": (sample(1e6, 10),), "sub": (sample(1e6, 10),)},
    "product_of_few_rows": {"mm": (sample(1e6, 1),)},
    "product": {"mm": (sample(1e6, 30, 20),)},
}


def of_this_machine(**wanted: Any) -> tuple[Any, Capabilities]:
    known = table(**{name.replace("_of_few_rows", " of few rows"): rows for name, rows in FAMILIES.items()})
    can = attrs.evolve(CAN, cost_table=lambda: attrs.evolve(known, **wanted))
    return traced(mm_abs_sub, X).graph, can


def test_one_stream_has_all_threads_for_a_kernel_and_a_stream_beside_others_one() -> None:
    graph, can = of_this_machine()
    problem = Problem.from_graph(graph, Streams(cost="calibrated"), can)
    by_name = dict(zip(problem.names, problem.work, strict=True))
    assert (by_name["mm"].us, by_name["mm"].in_a_row_us) == pytest.approx((30, 20))
    assert problem.serial_us == pytest.approx(20 + sum(by_name[name].us for name in ("abs_1", "sub", "add")))
    assert (problem.model.launch_us, problem.model.stream_us, problem.model.event_us) == (0, 0.5, 0.25)
    assert problem.cost == "calibrated"


def test_a_machine_without_a_table_falls_back_on_shapes_and_says_so() -> None:
    for without in (CAN, attrs.evolve(CAN, cost_table=lambda: None)):
        problem = Problem.from_graph(traced(mm_abs_sub, X).graph, Streams(cost="calibrated"), without)
        assert (problem.cost, problem.spread) == ("roofline", None)
        assert problem.work == Problem.from_graph(problem.graph, Streams(cost="roofline"), without).work


def test_a_table_is_asked_for_only_where_costs_are_calibrated() -> None:
    def refused() -> CostTable:
        raise AssertionError

    can = attrs.evolve(CAN, cost_table=refused)
    assert Problem.from_graph(traced(mm_abs_sub, X).graph, Streams(cost="roofline"), can).work


def test_a_prediction_has_an_interval_and_its_lower_end_decides_where_nothing_is_tried() -> None:
    graph, can = of_this_machine()
    apply(graph, Streams(cost="calibrated", trial_ms=0), can)
    decision = decision_of(graph.owning_module)
    assert decision is not None
    prediction = decision.prediction
    assert prediction is not None
    assert prediction.spread == MODEL_DOUBT
    interval = gain_interval([prediction])
    assert interval is not None
    low, high = interval
    assert low < prediction.gain < high
    assert f"predicted gain {prediction.gain:.1%} ({low:.1%} to {high:.1%})" in decision.why
    for least, applied in ((low - 1e-6, True), (low + 1e-6, False)):
        graph, can = of_this_machine()
        apply(graph, Streams(cost="calibrated", trial_ms=0, min_gain=max(least, 1e-9)), can)
        again = decision_of(graph.owning_module)
        assert again is not None
        assert again.applied == (applied and least > 0)


@pytest.mark.parametrize(("least", "tried"), [(0.02, True), (0.99, False)])
def test_only_a_plan_whose_upper_end_reaches_what_is_asked_is_tried(least: float, tried: bool) -> None:
    graph, can = of_this_machine()
    apply(graph, Streams(cost="calibrated", min_gain=least), attrs.evolve(can, tries_plans=True))
    decision = decision_of(graph.owning_module)
    assert decision is not None
    assert (decision.trial is not None, decision.applied) == (tried, tried)
    assert tried or "beyond a trial" in decision.why


def test_intervals_of_several_graphs_are_added_and_unknown_ones_make_it_unknown() -> None:
    one = Prediction(device="", cost="calibrated", plan_us=50, serial_us=100, critical_us=0, spread=0.25)
    other = attrs.evolve(one, plan_us=300, serial_us=300, spread=0.0)
    assert gain_interval([one]) == pytest.approx((1 - 0.625, 1 - 0.4))
    assert gain_interval([one, other]) == pytest.approx((1 - 362.5 / 400, 1 - 340 / 400))
    assert gain_interval([one, attrs.evolve(one, spread=None)]) is None
    assert gain_interval([]) is None


def test_copies_back_into_inputs_cost_nothing() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(x + 1)

    graph = traced(written, X).graph
    _, can = of_this_machine()
    assert can.cost_table is not None
    known = can.cost_table()
    assert known is not None
    kernels = [found for found in graph.nodes if found.op == "call_function"]
    work = dict(zip([found.name for found in kernels], calibrated(kernels, known, ResultSizes()).work, strict=True))
    assert work["copy_"].us == 0
    assert work["add"].us > 0


def test_a_table_is_the_same_after_it_was_written_and_read() -> None:
    known = table(pointwise={"add": (sample(1, 1, 2, 0.5), sample(4, 2, 3))})
    assert CostTable.from_dict(known.as_dict()) == known
    with pytest.raises(ValueError, match="without samples"):
        CostTable.from_dict({**known.as_dict(), "families": {"pointwise": {"add": ()}}})


def test_a_table_of_a_busy_machine_is_doubtful_after_an_hour() -> None:
    calm, busy = (table(pointwise={"add": (sample(1, 1, 1, spread),)}) for spread in (0.1, 2 * BUSY))
    made = datetime(2026, 11, 23, tzinfo=timezone.utc)
    assert (calm.spread, busy.spread) == pytest.approx((0.1, 2 * BUSY))
    assert not busy.is_doubtful(made + timedelta(minutes=59))
    assert busy.is_doubtful(made + timedelta(minutes=61))
    assert not calm.is_doubtful(made + timedelta(days=1000))
