"""The picture that a report opens with, and its sentences."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from report_examples import CRASHED, EXAMPLES, FULL, FULL_BENCHMARK, INDUCTOR, TIMELINES, WRONG

from npucompose.report.html import render, verdict
from npucompose.report.overview import HEIGHT, LONGEST, ON_ONE_STREAM, overview
from npucompose.report.pictures import LABEL, WIDTH, Axis, lane_spans, memory_drawings
from npucompose.results.graphs import GraphDrawing, NodeTable
from npucompose.results.streams import Timeline

PREDICTED = TIMELINES[0][1]
PLAN = Timeline(
    source="measured",
    nodes=("a", "b", "c", "d"),
    streams=("default", "s1", "s1", "default"),
    start_us=(0.0, 0.0, 200.0, 250.0),
    end_us=(200.0, 50.0, 250.0, 300.0),
    events=(("a", "c"), ("c", "d")),
)
ALONE = Timeline(
    source="measured on one stream",
    nodes=PLAN.nodes,
    streams=("default",) * 4,
    start_us=(0.0, 200.0, 250.0, 300.0),
    end_us=(200.0, 250.0, 300.0, 350.0),
)
LINES = [("graph_0", PREDICTED), ("graph_0", PLAN), ("graph_0", ALONE)]


def drawn(report: Any = FULL, lines: Any = LINES) -> Any:
    found = overview(report, lines)
    assert found is not None
    return found


def test_eager_one_stream_and_the_plan_stand_below_each_other_on_one_scale() -> None:
    picture = drawn()
    assert [(row["name"], row["time"]) for row in picture["rows"]] == [
        ("eager", "990.1 µs"), ("compiled", "1.73 ms"), ("replay", "517.0 µs"), ("one stream", "350.0 µs"),
        ("plan", "300.0 µs"), ("s1", ""),
    ]  # fmt: skip
    widths = {row["name"]: sum(box[2] for box in row["boxes"]) for row in picture["rows"]}
    assert widths["eager"] / widths["one stream"] == pytest.approx(min(990.1, LONGEST * 300) / 350)
    assert [row["cut"] for row in picture["rows"]] == [True, True, False, False, False, False]
    assert all(box[0] >= LABEL and box[0] + box[2] <= WIDTH for row in picture["rows"] for box in row["boxes"])


def test_each_event_is_an_arrow_and_each_wait_a_bar() -> None:
    picture = drawn()
    plan, side = picture["rows"][-2:]
    assert [words for *_, words in side["waits"]] == ["c waits for a: 150.0 µs"]
    assert [words for *_, words in plan["waits"]] == ["d waits for c: 50.0 µs"]
    (x1, y1, x2, y2), (_, back, _, up) = picture["arrows"]
    assert (x2 - x1, y2 > y1, up < back) == (0.0, True, True)
    assert [y1, y2] == [row["top"] + HEIGHT / 2 for row in (plan, side)]


def test_what_nobody_waited_for_has_no_bar() -> None:
    at_once = evolve(PLAN, start_us=(0.0, 0.0, 50.0, 250.0))
    assert drawn(lines=[("graph_0", at_once)])["rows"][-1]["waits"] == []


def test_where_nothing_was_measured_the_prediction_is_drawn_and_named() -> None:
    picture = drawn(evolve(FULL, stages=evolve(FULL.stages, benchmark=None)), TIMELINES)
    assert [row["name"] for row in picture["rows"]] == ["one stream", "plan", "stream1"]
    assert picture["words"] == "the kernels of graph_0, predicted, by stream; 1 event as arrows, waits as thin bars"


def test_of_a_plan_without_events_nothing_is_said_of_any() -> None:
    words = drawn(lines=[("graph_0", evolve(PLAN, events=()))])["words"]
    assert words.endswith("by stream")


def test_what_is_predicted_of_one_stream_is_drawn_kernel_by_kernel() -> None:
    plan = evolve(PLAN, source="predicted")
    alone = evolve(ALONE, source=plan.source + ON_ONE_STREAM)
    rows = {row["name"]: row for row in drawn(lines=[("graph_0", plan), ("graph_0", alone)])["rows"]}
    assert [words.partition(":")[0] for *_, words in rows["one stream"]["boxes"]] == ["a", "b", "c", "d"]
    assert rows["one stream"]["time"] == "350.0 µs"
    measured = drawn(lines=[("graph_0", PLAN), ("graph_0", alone)])["rows"]
    assert "350.0 µs" not in [row["time"] for row in measured], "predicted stands beside predicted only"


def test_of_several_graphs_the_longest_is_drawn() -> None:
    short = evolve(PLAN, end_us=tuple(us / 2 for us in PLAN.end_us))
    assert "graph_1" in drawn(lines=[("graph_0", short), ("graph_1", PLAN)])["words"]


def test_without_a_plan_the_calls_are_drawn_and_without_those_nothing_is() -> None:
    assert [row["name"] for row in drawn(lines=())["rows"]] == ["eager", "compiled", "replay"]
    assert overview(CRASHED, ()) is None
    assert overview(WRONG, LINES) is None


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_begins_with_the_result_or_with_what_went_wrong(name: str) -> None:
    first = render(EXAMPLES[name], TIMELINES).split("<h2", 1)[1].split("</h2>", 1)[0].rpartition(">")[2]
    assert first in ("Result", "What went wrong", "Expectations")
    assert (first == "Result") == (EXAMPLES[name].status == "ok")


def test_the_verdict_says_speed_results_plan_and_what_needs_attention() -> None:
    assert verdict(evolve(FULL, recompiles=INDUCTOR.recompiles)) == [
        "1.91x over eager (replay without guards): median ratio of 2 pairs of calls made in turn.",
        "Results equal eager's bit for bit.",
        "Stream plan applied (2 streams, 8 events): 1.99x over one stream, 2.64 ms against 5.26 ms; predicted 1.93x.",
        "1 recompilation, see below.",
        "6 options did not take effect as requested, see below.",
    ]
    assert verdict(WRONG)[0] == "No speed is shown: the results are wrong."
    assert not [line for line in verdict(evolve(WRONG, streams=FULL.streams)) if "plan" in line]
    near = evolve(FULL, numerics=evolve(FULL.numerics, bitwise=False, max_abs_err=0.00125))  # type: ignore[type-var]
    assert "Results equal eager's within tolerance, largest error 0.00125." in verdict(near)
    assert verdict(CRASHED) == []
    alone = evolve(FULL_BENCHMARK, candidate="eager", speedup={}, baselines={})
    assert verdict(evolve(FULL, stages=evolve(FULL.stages, benchmark=alone)))[0] == "517.0 µs, median of 2 calls."


def test_memory_is_drawn_over_time_where_that_is_predicted_else_in_running_order() -> None:
    nodes = NodeTable(names=("a",) * 4, operators=(0,) * 4, values=(0,) * 4, sources=(0,) * 4, streams=(0,) * 4,
                      inputs=((),) * 4, alive=(0, 2048, 1024, 0))  # fmt: skip
    drawing = {"graph_0": GraphDrawing(before=nodes), "graph_1": GraphDrawing(before=nodes)}
    over_time, in_order = memory_drawings(TIMELINES, drawing)
    assert over_time["words"] == "graph_0, predicted: at most 4.0 KiB alive"
    assert in_order["words"] == "graph_1, in running order: at most 2.0 KiB alive"
    assert [words for words, *_ in in_order["axis"]["marks"]] == ["first node", "node 4"]
    assert [words for words, _ in in_order["marks"]] == ["2.0 KiB", "1.0 KiB"]
    nothing = GraphDrawing(before=evolve(nodes, alive=(0, 0, 0, 0)))
    assert list(memory_drawings((), {"graph_0": nothing})) == []


def test_kernels_narrower_than_a_pixel_are_drawn_as_one_span() -> None:
    many = Timeline(
        source="measured",
        nodes=tuple(f"k{n}" for n in range(1002)),
        streams=("default",) * 1002,
        start_us=(0.0, *(500.0 + n * 0.5 for n in range(1000)), 1100.0),
        end_us=(500.0, *(500.5 + n * 0.5 for n in range(1000)), 1200.0),
    )
    scale = Axis(low=0.0, high=1200.0)
    assert lane_spans(many, "default", scale) == [
        ("k0", 0.0, 500.0), ("1000 kernels, k1 to k1000", 500.0, 1000.0), ("k1001", 1100.0, 1200.0),
    ]  # fmt: skip
    assert len(lane_spans(many, "default", Axis(low=0.0, high=10.0))) == 1002
