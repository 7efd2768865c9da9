"""The measuring loop, with a clock of its own where the numbers matter."""

from __future__ import annotations

import gc
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucompose.measure import timing
from npucompose.measure.timing import Samples, interleaved, paired, paired_ratio
from npucompose.results.measured import TimeSamples


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> None:
    """Each measurement begins with a collection, which would look at all that the tests before this file left."""
    gc.collect()
    gc.freeze()


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


def test_of_several_calls_in_a_turn_only_the_last_is_counted(clock: Clock) -> None:
    called: list[str] = []

    def cold_after_another(name: str) -> Any:
        def call() -> None:
            clock.now += 1000 if called and called[-1] == name else 9000
            called.append(name)

        return call

    found = measured({name: cold_after_another(name) for name in "ab"}, uncounted=2, min_calls=3)
    assert found["a"].us == found["b"].us == (1.0,) * 3
    turns = ["".join(called[at : at + 3]) for at in range(0, len(called), 3)]
    assert sorted(turns) == ["aaa"] * 3 + ["bbb"] * 3
    called.clear()
    assert set(measured({name: cold_after_another(name) for name in "ab"})["a"].us) == {9.0}


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


def progress_of(clock: Clock, microseconds: int, **settings: Any) -> list[float]:
    told: list[float] = []
    measured({"a": clock.takes(microseconds)}, progress=told.append, **settings)
    return told


def test_progress_is_told_each_tenth_of_a_second_and_at_the_end(clock: Clock) -> None:
    assert progress_of(clock, 50_000, min_calls=6) == [2 / 6, 4 / 6, 1.0, 1.0]
    assert progress_of(clock, 100_000, min_calls=2) == [0.5, 1.0, 1.0]
    assert progress_of(clock, 99_999, min_calls=2) == [1.0, 1.0]
    assert progress_of(clock, 1, min_calls=3) == [1.0]
    assert measured({"a": clock.takes(200_000)})["a"].us == (200_000.0,)


def test_progress_follows_what_will_end_the_measuring(clock: Clock) -> None:
    assert progress_of(clock, 200_000, min_seconds=1.0, min_calls=1) == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    assert progress_of(clock, 200_000, min_seconds=60.0, max_calls=2) == [0.5, 1.0, 1.0]
    assert progress_of(clock, 200_000, min_seconds=0.3, min_calls=1) == [pytest.approx(2 / 3), 1.0, 1.0]
    assert progress_of(clock, 200_000, min_seconds=0.4, min_calls=0) == [0.5, 1.0, 1.0]
    assert progress_of(clock, 200_000, min_seconds=0.4, min_calls=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_measuring_stops_at_the_call_that_fills_the_minimum_time(clock: Clock) -> None:
    assert len(measured({"a": clock.takes(100)}, min_seconds=0.001)["a"].us) == 10
    assert len(measured({"a": clock.takes(100)}, min_seconds=0.001, min_calls=12)["a"].us) == 12
    assert len(measured({"a": clock.takes(100)}, min_calls=0, max_calls=3, min_seconds=1)["a"].us) == 3
    assert len(measured({"a": clock.takes(100)}, min_calls=5, max_calls=1)["a"].us) == 1


def test_fewer_than_one_call_is_refused() -> None:
    with pytest.raises(ValueError, match="max_calls must be at least 1: 0"):
        measured({"a": lambda: None}, max_calls=0)


def test_the_youngest_are_collected_every_256_rounds_and_all_before_the_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[Any] = []
    monkeypatch.setattr(gc, "collect", lambda *generation: collected.append((clock.now, *generation)))
    measured({"a": clock.takes(1)}, min_calls=600, warmup=3)
    assert collected == [(3_000,), (259_000, 0), (515_000, 0)]


def test_a_collector_that_was_off_stays_off() -> None:
    assert measured({"a": gc.isenabled})["a"].us
    assert gc.isenabled()
    gc.disable()
    try:
        measured({"a": lambda: None})
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_result_dies_after_the_clock_has_stopped(clock: Clock) -> None:
    class Dear:
        def __del__(self) -> None:
            clock.now += 1_000_000

    assert measured({"a": Dear}, min_calls=2)["a"].us == (0.0, 0.0)
    assert measured({"a": Dear}, min_calls=2, synchronize=lambda: None)["a"].us == (0.0, 0.0)
    assert clock.now == 4_000_000


def test_what_the_warm_up_queued_is_on_nobody_s_clock(clock: Clock) -> None:
    """Each call waits for the device before the clock starts, and for its own work before it stops."""
    log: list[str] = []
    measured({"a": lambda: log.append("a")}, warmup=1, synchronize=lambda: log.append("|"),
             between=lambda: log.append("-"))  # fmt: skip
    assert "".join(log) == "-|a|" * 2


def test_the_warm_up_takes_turns_as_the_measuring_does() -> None:
    calls: list[str] = []
    measured({name: lambda name=name: calls.append(name) for name in "ab"}, warmup=4, min_calls=6)
    assert "".join(calls) == "abbabaab" + "abbabaababba"


def test_samples_and_their_percentiles_in_a_record() -> None:
    samples = Samples(us=[30, 10, 20])
    timing = samples.timing()
    assert (timing.p90_us, timing.p99_us) == (pytest.approx(28.0), pytest.approx(29.8))
    assert timing == TimeSamples(
        samples_us=(30.0, 10.0, 20.0), p50_us=20.0, p90_us=samples.p90, p99_us=samples.p99, mean_us=20.0
    )
    assert (samples.percentile(0), samples.percentile(100), samples.percentile(25)) == (10.0, 30.0, 15.0)


def test_pairs_are_ratios_of_the_same_round() -> None:
    ratios = paired(Samples(us=[10.0, 30.0]), Samples(us=[5.0, 10.0]))
    assert ratios.us == (2.0, 3.0)
    assert paired_ratio(Samples(us=[10.0, 30.0, 8.0]), Samples(us=[5.0, 10.0, 8.0])) == 2.0
