"""What `benchmarks/price.py` concludes from rounds: medians of pairs, an interval around them, a slope."""

from __future__ import annotations

import pytest

from benchmarks.price import RESULTS, Estimate, estimate, first, holds, middle_ratio, slope


def test_a_ratio_is_taken_within_its_round():
    rounds = [(100.0, 101.0), (200.0, 202.0), (1000.0, 1010.0)]
    found = estimate(rounds, middle_ratio)
    assert found.median == pytest.approx(1.01)
    assert (found.low, found.high) == pytest.approx((1.01, 1.01))


def test_the_interval_holds_the_median_and_is_the_same_each_time():
    rounds = [(100.0, 100.0 + k) for k in range(30)]
    found = estimate(rounds, middle_ratio)
    assert found.low < found.median < found.high
    assert found == estimate(rounds, middle_ratio)


def test_the_first_result_and_each_further_one_are_told_apart():
    rounds = [[80.0 + 15.0 * (n - 1) + noise for n in RESULTS] for noise in (-5.0, 0.0, 5.0)]
    assert first(rounds) == 80.0
    assert slope(rounds) == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("ratio", "met"),
    [
        (Estimate(1.019, 1.01, 1.10), True),
        (Estimate(1.03, 0.99, 1.039), True),
        (Estimate(1.03, 0.99, 1.05), False),
        (Estimate(1.03, 1.01, 1.039), False),
    ],
)
def test_a_price_is_met_by_its_median_or_by_an_interval_around_nothing(ratio: Estimate, met: bool):
    assert holds(ratio) == met
