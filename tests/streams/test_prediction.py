"""What is predicted of a plan: times, shares, memory alive, the timeline; and the figures that a found plan gives."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import fx

from npucompose.results.streams import StreamEvent, TrialRequest
from npucompose.schema.streams import Cores, Streams
from npucompose.streams.memory import Life
from npucompose.streams.planning import NamedPlan, named, with_names
from npucompose.streams.predicted import _changes, _living, predicted
from npucompose.streams.problem import Problem, lives_of, schedule
from npucompose.streams.simulate import Work
from npucompose.vendor.devices import ATLAS_A2, Calibration
from tests.sample_graphs import CAN, Program, aten, mm_abs_sub, traced

X = torch.randn(4, 4)
PRICED = attrs.evolve(CAN, device_model=attrs.evolve(ATLAS_A2, launch_us=0.0, event_us=0.25, stream_us=0.5))


def problem_of(module: fx.GraphModule, us: list[float], **more: object) -> Problem:
    """The kernels last as long as they are told to."""
    problem = Problem.from_graph(module.graph, Streams(cost="none"), PRICED)
    problem.__dict__["work"] = [Work(us=one, **more) for one in us]  # type: ignore[arg-type]
    return problem


def found_plan(labels: list[str], us: list[float], **more: object) -> NamedPlan:
    return named(problem_of(traced(mm_abs_sub, X), us, **more), labels, {})


def test_a_plan_in_numbers_has_its_order_events_and_simulated_times() -> None:
    problem = problem_of(traced(mm_abs_sub, X), [4.0, 1.0, 2.0, 3.0])
    drawn = schedule(problem, [0, 1, 1, 0], range(4))
    assert (list(drawn.streams), list(drawn.order), list(drawn.events)) == ([0, 1, 1, 0], [0, 1, 2, 3], [(2, 3)])
    assert list(drawn.simulation.start) == [0.0, 0.5, 1.5, 4.0]
    assert list(drawn.simulation.end) == [4.0, 1.5, 3.5, 7.0]
    assert drawn.rank == (7.0, 1, 2)


def test_the_prediction_says_how_long_and_how_busy() -> None:
    decision = found_plan(["default", "s", "s", "default"], [4.0, 1.0, 2.0, 3.0], vector=2).decision(
        applied=True, why="w"
    )
    prediction = decision.prediction
    assert prediction is not None
    assert (prediction.device, prediction.cost) == (ATLAS_A2.name, "none")
    assert (prediction.plan_us, prediction.serial_us, prediction.critical_us) == (7.0, 10.0, 7.0)
    assert prediction.busy == {"default": 1.0, "s": pytest.approx(3 / 7)}
    assert prediction.gain == pytest.approx(0.3)


def test_the_timeline_stands_in_the_plan_s_order() -> None:
    decision = found_plan(["default", "s", "s", "default"], [4.0, 1.0, 2.0, 3.0], vector=2).decision(
        applied=True, why="w"
    )
    timeline = decision.timeline
    assert timeline is not None
    assert timeline.source == "predicted"
    assert timeline.nodes == ("mm", "abs_1", "sub", "add")
    assert timeline.streams == ("default", "s", "s", "default")
    assert timeline.start_us == (0.0, 0.5, 1.5, 4.0)
    assert timeline.end_us == (4.0, 1.5, 3.5, 7.0)
    assert timeline.events == (("sub", "add"),)
    assert set(timeline.counters) == {"bytes alive", "vector cores"}  # no kernel takes a cube core
    assert timeline.counters["vector cores"] == ((0.0, 2), (0.5, 4), (1.5, 4), (3.5, 2), (4.0, 2), (7.0, 0))
    # 64 bytes each: mm until the sum, abs until sub is done, sub until the sum, the sum to the end
    assert timeline.counters["bytes alive"] == (
        (0.0, 64.0), (0.5, 128.0), (1.5, 192.0), (3.5, 128.0), (4.0, 192.0), (7.0, 0.0),
    )  # fmt: skip


def test_cube_cores_are_a_counter_of_their_own() -> None:
    timeline = found_plan(["default"] * 4, [1.0] * 4, cube=3).decision(applied=True, why="w").timeline
    assert timeline is not None
    assert timeline.counters["cube cores"] == ((0.0, 3), (1.0, 3), (2.0, 3), (3.0, 3), (4.0, 0))
    assert "vector cores" not in timeline.counters


def test_one_kernel_on_cube_cores_is_enough_for_their_counter() -> None:
    problem = problem_of(traced(mm_abs_sub, X), [1.0] * 4, vector=2)
    problem.work[1] = Work(us=1.0, cube=3)  # type: ignore[index]
    plan = named(problem, ["default"] * 4, {})
    timeline = plan.decision(applied=True, why="w").timeline
    assert timeline is not None
    assert max(count for _, count in timeline.counters["cube cores"]) == 3
    assert max(count for _, count in timeline.counters["vector cores"]) == 2


def test_what_is_alive_at_once_is_counted_for_the_plan_and_for_one_stream() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.neg().abs().exp()  # on one stream two of them live at once

    found = named(problem_of(traced(function, X), [1.0, 1.0, 1.0]), ["default"] * 3, {})
    prediction = found.decision(applied=True, why="w").prediction
    assert prediction is not None
    assert (prediction.peak_bytes, prediction.serial_peak_bytes) == (128, 128)
    both = found_plan(["default", "s", "s", "default"], [9.0, 1.0, 1.0, 1.0]).decision(applied=True, why="w").prediction
    assert both is not None
    assert (both.peak_bytes, both.serial_peak_bytes) == (192, 192)


def test_a_plan_without_kernels_takes_no_time() -> None:
    program = Program(inputs=1)
    module = program.finish([program.values[0]])
    prediction = named(problem_of(module, []), [], {}).decision(applied=False, why="w").prediction
    assert prediction is not None
    assert (prediction.plan_us, prediction.serial_us, prediction.critical_us, prediction.gain) == (0.0, 0.0, 0.0, 0.0)
    assert (prediction.busy, prediction.peak_bytes, prediction.serial_peak_bytes) == ({}, 0, 0)


@pytest.mark.parametrize(
    ("spans", "changes"),
    [
        ([], []),
        ([(1.0, 4.0, 2.0)], [(1.0, 2.0), (4.0, 0.0)]),
        ([(1.0, 4.0, 2.0), (2.0, 3.0, 5.0)], [(1.0, 2.0), (2.0, 7.0), (3.0, 2.0), (4.0, 0.0)]),
        ([(1.0, 4.0, 2.0), (1.0, 4.0, 3.0)], [(1.0, 5.0), (4.0, 0.0)]),
        ([(1.0, 4.0, 2.0), (4.0, 5.0, 3.0)], [(1.0, 2.0), (4.0, 3.0), (5.0, 0.0)]),
        ([(2.0, 3.0, 1.0), (0.0, 1.0, 1.0)], [(0.0, 1.0), (1.0, 0.0), (2.0, 1.0), (3.0, 0.0)]),
    ],
)
def test_what_covers_a_time_is_summed_up(
    spans: list[tuple[float, float, float]], changes: list[tuple[float, float]]
) -> None:
    assert _changes(spans) == changes


def test_a_result_lives_until_its_last_reader_is_done_or_to_the_end() -> None:
    start, end = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 9.0, 4.0]
    assert _living([Life(0, 8.0, [1, 3])], start, end) == [(0.0, 8.0), (4.0, 0.0)]
    assert _living([Life(0, 8.0, None)], start, end) == [(0.0, 8.0), (9.0, 0.0)]
    assert _living([Life(1, 8.0, [])], start, end) == [(1.0, 8.0), (2.0, 0.0)]  # nobody reads it
    assert _living([], [], []) == []


def test_lives_are_those_of_memory_whoever_names_it() -> None:
    program = Program(inputs=1)
    x = program.values[0]
    made = program.call(aten.clone.default, x)
    written = program.call(aten.relu_.default, made)
    view = program.call(aten.view.default, written, [-1])
    read = program.call(aten.neg.default, view)
    unread = program.call(aten.abs.default, x)
    assert unread is not None
    module = program.finish([read])
    lives = lives_of(problem_of(module, [1.0] * 4))
    assert [(life.made_by, life.nbytes, life.readers) for life in lives] == [
        (0, 64.0, [1, 2]),
        (2, 64.0, None),
        (3, 64.0, []),
    ]


def test_several_results_of_one_kernel_live_by_themselves() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = x.max(0)
        return places, values.neg()

    lives = lives_of(problem_of(traced(function, X), [1.0, 1.0]))
    assert [(life.made_by, life.nbytes, life.readers) for life in lives] == [(0, 16, [1]), (0, 32, None), (1, 16, None)]

    def other(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = x.max(0)
        return values, places.neg()

    lives = lives_of(problem_of(traced(other, X), [1.0, 1.0]))
    assert [(life.made_by, life.nbytes, life.readers) for life in lives] == [(0, 16, None), (0, 32, [1]), (1, 32, None)]


def test_a_found_plan_counts_who_leaves_who_moves_and_what_it_gains() -> None:
    found = found_plan(["default", "s", "s", "default"], [4.0, 1.0, 2.0, 3.0])
    assert (found.aside, found.moved, found.gain) == (2, 0, pytest.approx(0.3))
    assert list(found.stream_names) == ["default", "s"]
    moved = named(problem_of(traced(mm_abs_sub, X), [1.0] * 4), ["s", "default", "default", "default"], {})
    assert (moved.aside, moved.moved) == (1, 0)
    other = with_names(schedule(moved.scheduled.problem, [0, 0, 0, 0], [1, 0, 2, 3]), ["default"], {})
    assert (other.aside, other.moved) == (0, 2)
    assert list(other.plan.nodes) == ["abs_1", "mm", "sub", "add"]


def test_a_plan_is_written_by_names_in_its_order() -> None:
    problem = problem_of(traced(mm_abs_sub, X), [1.0] * 4)
    limit = Cores(aicore=1, vectorcore=2)
    found = named(problem, ["z", "s", "s", "z"], {"s": 3, "gone": 1, "z": 2}, {"s": limit, "gone": limit})
    assert found.plan.nodes == {"mm": "z", "abs_1": "s", "sub": "s", "add": "z"}
    assert found.plan.events == (StreamEvent(recorder="sub", waiter="add"),)
    assert (found.plan.priorities, found.plan.cores) == ({"s": 3, "z": 2}, {"abs_1": limit, "sub": limit})
    assert list(found.stream_names) == ["default", "z", "s"]
    assert list(found.scheduled.streams) == [1, 2, 2, 1]


def test_a_decision_says_what_it_is_given() -> None:
    found = found_plan(["default"] * 4, [1.0] * 4)
    trial = TrialRequest(ms=1.0, min_gain=0.5)
    decision = found.decision(applied=True, why="because", validated=False, trial=trial)
    assert (decision.applied, decision.why, decision.validated, decision.trial) == (True, "because", False, trial)
    other = found.decision(applied=False, why="no")
    assert (other.applied, other.validated, other.trial) == (False, True, None)


def test_a_problem_is_numbered_as_its_kernels_stand() -> None:
    module = traced(mm_abs_sub, X)
    problem = problem_of(module, [1.0, 2.0, 3.0, 4.0])
    assert problem.names == ["mm", "abs_1", "sub", "add"]
    assert sorted(problem.edges) == [(0, 3), (1, 2), (2, 3)]
    assert [sorted(targets) for targets in problem.then] == [[3], [2], [3], []]
    assert (problem.original, problem.factories, problem.serial_us) == ([0, 1, 2, 3], [], 10.0)
    nodes = {node.name: node for node in module.graph.nodes}
    nodes["mm"].prepend(nodes["abs_1"])
    del problem.__dict__["original"]
    assert problem.original == [1, 0, 2, 3]


def test_kernels_in_a_row_take_their_own_time_where_that_differs() -> None:
    problem = problem_of(traced(mm_abs_sub, X), [1.0] * 4)
    problem.__dict__["work"] = [Work(us=5.0, in_a_row_us=2.0), Work(us=3.0), Work(us=1.0, in_a_row_us=0.0)]
    assert problem.serial_us == 5.0


def test_factories_are_kernels_that_read_nothing() -> None:
    module = traced(lambda x: x.mm(torch.ones(4, 4)) + torch.zeros(4, 4), X)
    problem = Problem.from_graph(module.graph, Streams(cost="none"), CAN)
    assert [problem.names[index] for index in problem.factories] == ["ones", "zeros"]


def test_without_costs_every_kernel_takes_a_microsecond() -> None:
    problem = Problem.from_graph(traced(mm_abs_sub, X).graph, Streams(cost="none"), CAN)
    assert problem.work == [Work(us=1.0)] * 4


def test_the_device_model_is_the_target_s_with_what_the_configuration_replaces() -> None:
    wanted = Streams(device=Calibration(event_us=9.0))
    model = Problem.from_graph(traced(mm_abs_sub, X).graph, wanted, PRICED).model
    assert (model.event_us, model.stream_us, model.cube) == (9.0, 0.5, ATLAS_A2.cube)


def test_predicting_asks_only_for_what_was_kept() -> None:
    """The lives are read off the graph when a plan is found; passes may rewrite it before anybody reads the rest."""
    module = traced(mm_abs_sub, X)
    problem = problem_of(module, [1.0] * 4)
    found = named(problem, ["default", "default", "side", "default"], {})
    expected = predicted(found.scheduled, found.stream_names)
    decision = found.decision(applied=True, why="")
    for node in reversed([n for n in module.graph.nodes if n.op != "placeholder"]):
        module.graph.erase_node(node)
    assert decision.prediction == expected.figures
    assert decision.timeline == expected.timeline
    assert decision.one_stream == expected.one_stream


def test_one_stream_is_predicted_kernel_by_kernel_and_for_a_plan_of_one_stream_not_again() -> None:
    problem = problem_of(traced(mm_abs_sub, X), [3.0, 1.0, 2.0, 4.0])
    plan = named(problem, ["default", "side", "side", "default"], {})
    alone = predicted(plan.scheduled, plan.stream_names).one_stream
    assert alone is not None
    assert (alone.source, set(alone.streams)) == ("predicted on one stream", {"default"})
    assert alone.nodes == tuple(problem.names)
    assert (alone.start_us, alone.end_us) == ((0.0, 3.0, 4.0, 6.0), (3.0, 4.0, 6.0, problem.serial_us))
    row = named(problem, ["default"] * 4, {})
    assert predicted(row.scheduled, row.stream_names).one_stream is None
