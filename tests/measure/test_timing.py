"""The measuring loop, with a clock of its own where the numbers matter."""

from __future__ import annotations

import gc
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.measure import timing
from npucompose.measure.timing import Samples, interleaved, paired_ratio


class Clock:
    """perf_counter_ns that moves only when a candidate says so."""

    def __init__(self) -> None:
        self.now = 0

    def takes(self, microseconds: int) -> Any:
        def call() -> None:
            self.now += microseconds * 1000

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: clock.now)
    return clock


def measured(candidates: Any, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"warmup": 0, "min_calls": 1, "min_seconds": 0.0, "max_calls": 1000}
    return interleaved(candidates, **{**defaults, **settings})


def test_every_candidate_gets_as_many_samples(clock: Clock) -> None:
    found = measured({"eager": clock.takes(20), "replay": clock.takes(10)}, min_calls=7)
    assert found["eager"].us == (20.0,) * 7
    assert found["replay"].us == (10.0,) * 7


def test_warm_up_calls_are_made_and_not_counted(clock: Clock) -> None:
    calls: list[str] = []
    found = measured({"a": lambda: calls.append("a")}, warmup=3, min_calls=2)
    assert len(calls) == 5
    assert len(found["a"].us) == 2


def test_measuring_goes_on_until_the_minimum_time_is_spent(clock: Clock) -> None:
    found = measured({"a": clock.takes(100), "b": clock.takes(300)}, min_seconds=0.004)
    assert len(found["a"].us) == 10


def test_max_calls_wins_over_the_minimum_time(clock: Clock) -> None:
    assert len(measured({"a": clock.takes(1)}, min_seconds=60.0, max_calls=4)["a"].us) == 4


def test_nobody_has_the_same_predecessor_for_ever() -> None:
    calls: list[str] = []
    measured({name: lambda name=name: calls.append(name) for name in "abc"}, min_calls=12)
    rounds = ["".join(calls[at : at + 3]) for at in range(0, len(calls), 3)]
    assert set(rounds) == {"abc", "bca", "cab", "cba", "acb", "bac"}


def test_a_sample_ends_when_the_device_is_done(clock: Clock) -> None:
    queued = 0

    def launch() -> None:
        nonlocal queued
        clock.now += 1_000
        queued += 9_000

    def synchronize() -> None:
        nonlocal queued
        clock.now += queued
        queued = 0

    assert measured({"a": launch}, min_calls=3, synchronize=synchronize)["a"].us == (10.0, 10.0, 10.0)


def test_the_collector_is_off_while_measuring_and_back_on_after_a_failure() -> None:
    seen: list[bool] = []

    def fails() -> None:
        seen.append(gc.isenabled())
        raise RuntimeError("no")

    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        measured({"a": fails})
    assert seen == [False]
    assert gc.isenabled()


def test_progress_grows_to_one(clock: Clock) -> None:
    told: list[float] = []
    measured({"a": clock.takes(200_000)}, min_calls=5, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert 0 < told[0] < 1


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        measured({})


def test_percentiles_interpolate() -> None:
    samples = Samples(us=[4, 1, 3, 2])
    assert (samples.p50, samples.mean) == (2.5, 2.5)
    assert samples.p90 == pytest.approx(3.7)
    assert samples.timing().samples_us == (4.0, 1.0, 3.0, 2.0)


def test_samples_without_a_sample_are_refused() -> None:
    with pytest.raises(ValueError, match="1"):
        Samples(us=[])


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40))
def test_p50_is_the_median_and_percentiles_are_ordered(values: list[float]) -> None:
    samples = Samples(us=values)
    assert samples.p50 == pytest.approx(statistics.median(values))
    assert min(values) <= samples.p50 <= samples.p90 <= samples.p99 <= max(values)


def test_a_disturbance_of_one_round_does_not_move_the_paired_ratio() -> None:
    slow, fast = [20.0] * 9, [10.0] * 9
    slow[:4], fast[:4] = [200.0] * 4, [100.0] * 4
    assert paired_ratio(Samples(us=slow), Samples(us=fast)) == 2.0


def test_samples_of_other_rounds_make_no_pair() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired_ratio(Samples(us=[1, 2]), Samples(us=[1]))


def test_what_is_done_between_the_calls_is_on_nobody_s_clock(clock: Clock) -> None:
    between = clock.takes(1000)
    found = measured({"eager": clock.takes(20), "replay": clock.takes(10)}, min_calls=3, warmup=2, between=between)
    assert (found["eager"].us, found["replay"].us) == ((20.0,) * 3, (10.0,) * 3)
    assert clock.now == 1000 * (5 * (20 + 10) + 10 * 1000)
