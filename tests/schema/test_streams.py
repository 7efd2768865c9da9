"""What is asked of streams and what was found: the values alone."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from npucompose.results.streams import (
    Decision,
    PredictedPlan,
    Prediction,
    StreamAssignment,
    StreamEvent,
    Timeline,
    TrialRequest,
    TrialVerdict,
)
from npucompose.schema.streams import Cores, ExtraEdge, Match, PlanEntry, SourceMatch, Streams, SuperKernelRegion

MATCH = Match(name="a")
ENTRY = PlanEntry(stream="s1", match=MATCH)
EDGE = ExtraEdge(after=MATCH, before=MATCH)


@pytest.mark.parametrize("lines", [(1, 1), (1, 2), (40, 62), None])
def test_lines_are_counted_from_one_and_may_be_one_line(lines: Any) -> None:
    assert SourceMatch(file="a.py", lines=lines).lines == lines


@pytest.mark.parametrize("lines", [(0, 1), (2, 1), (-1, -1)])
def test_lines_that_are_none_are_refused(lines: Any) -> None:
    with pytest.raises(ValueError, match=r"'lines' must be \[first, last\], counted from 1: \["):
        SourceMatch(file="a.py", lines=lines)


@pytest.mark.parametrize("field", ["target", "name", "module", "source"])
def test_any_one_field_makes_a_match(field: str) -> None:
    value: Any = SourceMatch(file="a.py") if field == "source" else "x"
    assert getattr(Match(**{field: value}), field) == value
    with pytest.raises(ValueError, match="a match needs at least one of target, name, module, source"):
        Match()


@pytest.mark.parametrize("field", ["target", "name", "module"])
def test_a_wrong_regular_expression_is_refused_with_its_field(field: str) -> None:
    with pytest.raises(ValueError, match=rf"^'{field}' is not a regular expression \(.*\): 're:\('$"):
        Match(**{field: "re:("})
    assert Match(**{field: "re:a|b"})
    assert Match(**{field: "("}), "text that is no expression needs no closing"


def test_a_match_is_shown_as_yaml_has_it() -> None:
    every = Match(target="aten.mm", name="mm_*", module="re:.*", source=SourceMatch(file="m.py", lines=(2, 5)))
    assert str(every) == "target: aten.mm, name: mm_*, module: re:.*, source: m.py:2-5"
    assert str(Match(source=SourceMatch(file="m.py"))) == "source: m.py"


def test_the_default_stream_is_not_ours_to_change() -> None:
    assert PlanEntry(stream="default", match=MATCH).priority == 0
    for change, words in (
        ({"priority": -1}, "takes no priority"),
        ({"cores": Cores(aicore=1, vectorcore=1)}, "core_limit"),
    ):
        with pytest.raises(ValueError, match=words):
            PlanEntry(stream="default", match=MATCH, **change)
        assert PlanEntry(stream="s1", match=MATCH, **change)
    with pytest.raises(ValueError, match="'stream' must be a name, '' is none"):
        PlanEntry(stream="", match=MATCH)
    with pytest.raises(ValueError, match="'scope' must be a name"):
        SuperKernelRegion(scope="", match=MATCH)
    assert SuperKernelRegion(scope="a", match=MATCH).options == ""


@pytest.mark.parametrize("written", [{"plan": (ENTRY,)}, {"edges": (EDGE,)}, {"plan": (ENTRY,), "edges": (EDGE,)}])
def test_what_is_written_is_followed_by_every_kind_but_none(written: Any) -> None:
    for kind in ("auto", "explicit"):
        assert Streams(kind=kind, **written).kind == kind
    with pytest.raises(ValueError, match="'kind: none' follows no plan"):
        Streams(kind="none", **written)


def test_an_explicit_plan_has_entries() -> None:
    with pytest.raises(ValueError, match="'kind: explicit' needs entries"):
        Streams(kind="explicit")
    assert Streams(kind="none").kind == "none"


def test_the_streams_of_a_plan_begin_with_the_default_one_then_in_order_of_appearance() -> None:
    plan = StreamAssignment(
        nodes={"a": "s2", "b": "s1", "c": "default", "d": "s2"}, events=(StreamEvent(recorder="a", waiter="b"),)
    )
    assert plan.streams == ("default", "s2", "s1")
    assert StreamAssignment(nodes={"a": "s2"}).streams == ("s2",)
    assert StreamAssignment().streams == ()


def prediction(plan_us: float, serial_us: float) -> Prediction:
    return Prediction(device="d", cost="roofline", plan_us=plan_us, serial_us=serial_us, critical_us=1.0)


def test_the_gain_of_a_plan_is_its_share_of_one_stream_s_time() -> None:
    assert prediction(75.0, 100.0).gain == 0.25
    assert prediction(125.0, 100.0).gain == -0.25
    assert prediction(1.0, 0.0).gain == 0.0
    assert TrialVerdict(applied=True, plan_us=75.0, one_stream_us=100.0).gain == 0.25
    for untold in ({"plan_us": None, "one_stream_us": 1.0}, {"plan_us": 1.0, "one_stream_us": None},
                   {"plan_us": 1.0, "one_stream_us": 0.0}):  # fmt: skip
        assert TrialVerdict(applied=True, **untold).gain is None


@pytest.mark.parametrize(
    ("plan_us", "serial_us", "gain", "pays"),
    [(98.0, 100.0, 1 - 0.98, True), (75.0, 100.0, 0.25, True), (99.0, 100.0, 1 - 0.99, False),
     (100.0, 100.0, 0.0, False), (None, 100.0, None, True), (50.0, None, None, True), (50.0, 0.0, None, True)],
)  # fmt: skip
def test_a_plan_is_expected_to_pay_from_the_least_gain_on(plan_us: Any, serial_us: Any, gain: Any, pays: bool) -> None:
    trial = TrialRequest(ms=1.0, min_gain=1 - 0.98, predicted_us=plan_us, predicted_serial_us=serial_us)
    assert trial.predicted_gain == gain
    assert trial.is_expected_to_pay is pays


TIMELINE = Timeline(source="predicted", nodes=("a",), streams=("default",), start_us=(0.0,), end_us=(1.0,))


PREDICTED = PredictedPlan(figures=prediction(1.0, 2.0), timeline=TIMELINE)


def test_what_a_decision_predicts_is_worked_out_once_and_when_it_is_read() -> None:
    asked: list[int] = []

    def predict() -> PredictedPlan:
        asked.append(1)
        return PredictedPlan(figures=prediction(1.0, 2.0), timeline=TIMELINE, one_stream=TIMELINE)

    decision = Decision(applied=True, why="w", predict=predict)
    assert asked == []
    assert (decision.prediction, decision.timeline, decision.one_stream) == (prediction(1.0, 2.0), TIMELINE, TIMELINE)
    assert asked == [1]
    silent = Decision(applied=False, why="w")
    assert (silent.prediction, silent.timeline, silent.one_stream) == (None, None, None)


@pytest.mark.parametrize("predict", [None, lambda: PREDICTED])
def test_a_copy_of_a_decision_has_its_prediction_and_says_the_same(predict: Any) -> None:
    trial = TrialRequest(ms=1.0, min_gain=0.1)
    made = Decision(applied=False, why="because", validated=False, trial=trial, predict=predict)
    copy = pickle.loads(pickle.dumps(made.__reduce__()[1]))
    assert copy == (False, "because", False, trial, None, predict and PREDICTED)
    again = made.__reduce__()[0](*copy)
    assert (again.applied, again.why, again.validated, again.trial) == (False, "because", False, trial)
    assert (again.prediction, again.timeline) == (made.prediction, made.timeline)
    assert (again.predict is None) == (predict is None)
