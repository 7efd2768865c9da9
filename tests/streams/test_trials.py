"""What of a plan is left to a trial at capture, and what is decided before: by a person, or because it is hopeless."""

from __future__ import annotations

import importlib
import pickle

import attrs
import pytest
import torch
from torch import fx

from npucompose.results.streams import TrialRequest
from npucompose.schema.capabilities import Capabilities, Clocked
from npucompose.schema.streams import Match, PlanEntry, Streams
from npucompose.streams import apply, decision_of, plan_of
from npucompose.vendor.devices import cpu
from tests.sample_graphs import CAN, traced

TRIES = attrs.evolve(CAN, tries_plans=True, device_model=cpu(2))
X = torch.randn(4, 4)
planning = importlib.import_module("npucompose.streams.planning")  # the package gives the function that name
ASIDE = PlanEntry(stream="s", match=Match(name="abs_1"))


def small(x: torch.Tensor) -> torch.Tensor:
    """Kernels of a microsecond, an event of as much: predicted to lose."""
    return x.mm(x) + x.abs().neg()


def planned(wanted: Streams, can: Capabilities) -> fx.GraphModule:
    module = traced(small, X)
    apply(module.graph, wanted, can)
    return module


def test_a_plan_that_is_predicted_to_lose_is_tried_where_that_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "HOPELESS", -100.0)
    left_out, tried = planned(Streams(), attrs.evolve(TRIES, tries_plans=False)), planned(Streams(), TRIES)
    assert plan_of(left_out.graph).streams == ("default",)
    decision = decision_of(tried)
    assert decision is not None
    assert len(plan_of(tried.graph).streams) == 2
    assert decision.trial is not None
    assert decision.trial.predicted_gain is not None
    assert decision.trial.predicted_gain < 0
    assert not decision.trial.is_expected_to_pay
    assert decision.why.endswith("to be tried at capture")


def test_a_hopeless_plan_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "HOPELESS", 1.0)
    decision = decision_of(planned(Streams(), TRIES))
    assert decision is not None
    assert not decision.applied
    assert decision.trial is None
    assert decision.why.endswith("which is beyond a trial")


@pytest.mark.parametrize(
    "wanted",
    [
        Streams(min_gain=0),
        Streams(trial_ms=0, cost="none", objective="events"),
        Streams(kind="explicit", plan=(ASIDE,)),
        Streams(plan=(ASIDE,)),
    ],
    ids=["whatever it costs", "no time for it", "explicit", "a plan"],
)
def test_a_plan_that_somebody_asked_for_is_followed_without_a_trial(wanted: Streams) -> None:
    module = planned(wanted, TRIES)
    decision = decision_of(module)
    assert decision is not None
    assert decision.applied
    assert decision.trial is None
    assert len(plan_of(module.graph).streams) == 2


def test_without_time_for_a_trial_the_prediction_decides() -> None:
    decision = decision_of(planned(Streams(trial_ms=0), TRIES))
    assert decision is not None
    assert not decision.applied
    assert "streams.min_gain" in decision.why or "nothing runs beside" in decision.why


def test_a_plan_without_prices_is_tried() -> None:
    decision = decision_of(planned(Streams(cost="none", trial_ms=7, min_gain=0.1), TRIES))
    assert decision is not None
    assert decision.trial == TrialRequest(ms=7, min_gain=0.1)
    assert pickle.loads(pickle.dumps(decision)).trial == decision.trial


def clocked(spread: float) -> Capabilities:
    """Every kernel of `small` is measured to take 10 µs, and waiting costs nothing."""
    names = ("mm", "abs_1", "neg", "add")
    times = Clocked(
        kernel_us=dict.fromkeys(names, 10.0),
        together_us=dict.fromkeys(names, 10.0),
        stream_us=0.0,
        event_us=0.0,
        spread=spread,
    )
    return attrs.evolve(CAN, profiles=True, clock=lambda *_: times, device_model=cpu(2))


@pytest.mark.parametrize(
    ("spread", "applied", "words"),
    [
        (0.0, True, "predicted gain 25.0% (25.0% to 25.0%)"),
        (0.1, True, "predicted gain 25.0% (17.5% to 31.8%)"),
        (0.6, False, "(-20.0% to 53.1%, the machine was busy when kernels were timed) is below"),
    ],
)
def test_the_lower_end_of_a_measured_gain_decides_and_a_busy_machine_is_named(
    spread: float, applied: bool, words: str
) -> None:
    decision = decision_of(planned(Streams(cost="measured", trial_ms=0), clocked(spread)))
    assert decision is not None
    assert decision.applied == applied
    assert words in decision.why
    tries = attrs.evolve(clocked(spread), tries_plans=True)
    asked = decision_of(planned(Streams(cost="measured"), tries))
    assert asked is not None
    assert asked.trial is not None
    assert asked.trial.is_expected_to_pay == applied
