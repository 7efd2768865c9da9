"""Kernels and streams on the clock. What a machine takes is not asserted; what must hold of any measurement is."""

from __future__ import annotations

from collections import defaultdict

import attrs
import pytest
import torch

from npucompose.report.json import trace_entries
from npucompose.results.streams import StreamTimes
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of, made_up_inputs
from npucompose.targets.cpu import CpuTarget
from npucompose.vendor.devices import cpu
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor.clock import clocked, measured
from npucompose_replay.plan import Workers
from replay_tests.executor.streams_by_hand import needs_two_cores
from tests.sample_graphs import CAN, seeded_program, traced
from tests.searches import examples

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")

X = torch.randn(32, 32)


def branches(x: torch.Tensor) -> torch.Tensor:
    return x.mm(x).relu().mm(x) + x.t().mm(x).tanh()


def times_of(seed: int) -> StreamTimes | None:
    module = seeded_program(seed, size=12)
    apply(module.graph, Streams(min_gain=0), CAN)
    module.recompile()
    inputs = made_up_inputs(module.graph)
    captured = CapturedGraph.capture(module, inputs, workers=Workers(count=2))
    return measured(captured, module, inputs)


def test_every_kernel_has_a_time_and_views_have_none() -> None:
    module = traced(branches, X)
    found = clocked(module, [X])
    assert found is not None
    assert set(found.kernel_us) == {"mm", "relu", "mm_1", "mm_2", "tanh", "add"}
    assert all(us >= 0 for us in found.kernel_us.values())


@needs_two_cores
def test_what_streams_and_events_cost_is_timed() -> None:
    found = clocked(traced(branches, X), [X])
    assert found is not None
    assert found.stream_us > 0 < found.event_us


def test_a_plan_with_measured_costs_is_predicted_for_this_machine() -> None:
    module = traced(branches, X)
    apply(module.graph, Streams(cost="measured", min_gain=0), CpuTarget().capabilities("reduce-overhead"))
    decision = decision_of(module)
    assert decision is not None
    assert decision.prediction is not None
    assert decision.prediction.device.endswith("cores, measured")


def test_a_graph_that_cannot_be_recorded_has_no_clock_and_is_timed_from_python() -> None:
    module = traced(lambda x: (x.abs(), torch.ops.aten.masked_select.default(x.neg(), x > 0)), X, mode="real")
    assert clocked(module, [X]) is None


def test_a_measurement_leaves_inputs_and_random_numbers_alone() -> None:
    x = torch.ones(4, 4)
    module = traced(lambda x: x.add_(1) + torch.rand(4, 4), x.clone())
    state = torch.get_rng_state()
    clocked(module, [x])
    assert torch.equal(x, torch.ones(4, 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_measured_timeline_keeps_the_order_of_streams_and_events_and_can_be_drawn() -> None:
    drawn = 0
    for seed in range(examples(30)):
        times = times_of(seed)
        if times is None:
            continue
        drawn += 1
        line = times.timeline
        at = {name: place for place, name in enumerate(line.nodes)}
        assert len(at) == len(line.nodes)
        last: dict[str, float] = defaultdict(float)
        for stream, start, end in zip(line.streams, line.start_us, line.end_us, strict=True):
            assert last[stream] <= start <= end
            last[stream] = end
        assert all(line.end_us[at[first]] <= line.start_us[at[then]] for first, then in line.events)
        assert times.plan_us == max(line.end_us)
        assert times.serial_us > 0
        entries = trace_entries([("graph_0", line)])
        flows = [entry["id"] for entry in entries if entry["ph"] in "sf"]
        assert sorted(flows) == sorted([*range(len(line.events)), *range(len(line.events))])
    assert drawn > examples(30) * 2 // 3


def test_streams_on_one_thread_have_no_times_of_their_own() -> None:
    module = seeded_program(0, size=12)
    apply(module.graph, Streams(min_gain=0), CAN)
    inputs = made_up_inputs(module.graph)
    captured = CapturedGraph.capture(module, inputs, workers=Workers(count=1))
    assert measured(captured, module, inputs) is None


def test_kernels_that_torch_spreads_over_threads_are_cheaper_in_a_row_than_on_a_stream() -> None:
    before = torch.get_num_threads()
    wide = traced(lambda x: x.mm(x), torch.randn(1024, 1024))
    can = attrs.evolve(CAN, device_model=cpu(2))
    try:
        told = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            apply(wide.graph, Streams(), can)
            decision = decision_of(wide)
            assert decision is not None
            assert decision.prediction is not None
            told.append((decision.prediction.serial_us, decision.prediction.plan_us))
        (one, plan), (two, same_plan) = told
        assert plan == same_plan
        assert two < one
    finally:
        torch.set_num_threads(before)
