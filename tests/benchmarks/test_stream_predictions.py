"""What `python -m benchmarks.streams.predictions` concludes from predicted and measured gains."""

from __future__ import annotations

import attrs
import pytest

from benchmarks.streams import predictions
from benchmarks.streams.predictions import MODELS, Case, judged

GOOD = Case(model="m", threads=1, predicted=0.25, low=0.1, high=0.4, one_us=100.0, plan_us=80.0, applied=True)


def met(*cases: Case) -> tuple[bool, ...]:
    """(median error, signs, slowest applied plan)."""
    return tuple(goal.met for goal in judged(cases))


def test_a_gain_is_a_share_of_one_stream_and_an_error_is_in_points_of_it() -> None:
    assert (GOOD.measured, GOOD.error) == pytest.approx((0.2, 0.05))
    assert met(GOOD) == (True, True, True)


def test_an_error_of_most_cases_an_applied_plan_that_is_slower_and_a_wrong_sign_are_missed() -> None:
    far = attrs.evolve(GOOD, predicted=0.6)
    assert met(far, far, GOOD) == (False, True, True)
    assert met(far, GOOD, GOOD) == (True, True, True)
    slower = attrs.evolve(GOOD, plan_us=105.0)
    assert met(slower, GOOD, GOOD) == (True, False, False)
    assert met(attrs.evolve(slower, applied=False), GOOD, GOOD) == (True, False, True)


def test_a_gain_of_a_few_points_has_no_sign() -> None:
    even = attrs.evolve(GOOD, plan_us=101.0, predicted=0.05)
    assert even.sign_holds is None
    assert met(even) == (True, True, True)


def test_ways_take_turns_within_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(predictions, "BATCH_S", 0.0)
    monkeypatch.setattr(predictions, "LIMIT_S", 0.0)
    found = predictions.in_turn({name: lambda name=name: seen.append(name) for name in "ab"})
    least, _ = predictions.TURNS
    assert seen == ["a", "b", *"aabb" * least]
    assert {name: len(times) for name, times in found.items()} == {"a": least, "b": least}


def test_there_are_fifteen_models() -> None:
    assert len(set(MODELS)) == 15
