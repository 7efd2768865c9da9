"""Two runs of the same work: which one is faster, by how much, and whether both agree with eager."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from report_examples import CRASHED, FULL, WRONG

from npucompose.report.comparison import verdict
from npucompose.results.measured import Numerics
from npucompose.results.record import Report


def run(mode: str, speedup: float, spread: float = 0.0, **changes: Any) -> Report:
    """FULL in another mode, `speedup` times as fast as the eager beside it, half the rounds `spread` off each way."""
    times = FULL.stages.benchmark
    assert times is not None
    rounds = {"eager": evolve(times.baselines["eager"], samples_us=(1000.0,) * 8)}
    own = tuple(1000 / speedup * (1 + spread * side) for side in (-1, 1) * 4)
    timed = evolve(times, samples_us=own, p50_us=1000 / speedup, baselines=rounds, speedup={"eager": speedup})
    experiment = {**FULL.experiment, "mode": {"name": mode}}
    return evolve(FULL, experiment=experiment, stages=evolve(FULL.stages, benchmark=timed), **changes)


OFF = Numerics(reference="eager", max_abs_err=9.5e-7, bitwise=False, passed=True)


def test_the_faster_mode_is_named_with_the_ratio_and_what_was_compared() -> None:
    replay, tuned = run("reduce-overhead", 1.25), run("max-autotune", 2.5, numerics=OFF)
    words = (
        "mode=max-autotune is 2.00 × as fast as mode=reduce-overhead: medians 400.0 µs and 800.0 µs, speed-up over "
        "eager 2.50 and 1.25, each against eager in its own process. "
        "mode=max-autotune agrees with eager (largest difference 9.5e-07), "
        "mode=reduce-overhead equals eager bit for bit."
    )
    assert verdict(replay, tuned) == verdict(tuned, replay) == words


def test_the_ratio_is_that_of_the_speed_ups_and_not_of_two_processes_clocks() -> None:
    """The second process ran in a slow hour: its median is larger, its eager too."""
    slow_hour = run("max-autotune", 2.0)
    assert slow_hour.stages.benchmark is not None
    stages = evolve(slow_hour.stages, benchmark=evolve(slow_hour.stages.benchmark, p50_us=5000.0))
    sentence = verdict(run("reduce-overhead", 1.0), evolve(slow_hour, stages=stages))
    assert sentence is not None
    assert sentence.startswith("mode=max-autotune is 2.00 × as fast")


def test_a_difference_within_noise_has_no_winner() -> None:
    sentence = verdict(run("reduce-overhead", 2.0), run("max-autotune", 2.05))
    assert sentence is not None
    assert "are equally fast within 5%" in sentence


def test_runs_whose_quartiles_overlap_are_not_told_apart() -> None:
    calm, restless = run("reduce-overhead", 2.0), run("max-autotune", 2.4, spread=0.3)
    sentence = verdict(calm, restless)
    assert sentence is not None
    assert "cannot be told apart (1.20 ×, and the quartiles overlap)" in sentence
    assert "is 1.20 × as fast" in (verdict(calm, run("max-autotune", 2.4, spread=0.01)) or "")


def test_runs_of_one_mode_are_the_first_and_the_second() -> None:
    sentence = verdict(run("eager", 1.0), run("eager", 3.0))
    assert sentence is not None
    assert sentence.startswith("the second run is 3.00 × as fast as the first run")


@pytest.mark.parametrize("field", ["model", "seed", "shapes"])
def test_other_work_does_not_compete(field: str) -> None:
    one, other = run("eager", 1.0), run("max-autotune", 3.0)
    other = evolve(other, experiment={**other.experiment, field: {"name": "another"}})
    assert verdict(one, other) is None


def test_another_machine_does_not_compete() -> None:
    assert FULL.environment is not None
    elsewhere = evolve(FULL.environment, cpu={"model": "another"})
    assert verdict(run("eager", 1.0), run("max-autotune", 3.0, environment=elsewhere)) is None


@pytest.mark.parametrize("without", [CRASHED, WRONG])
def test_a_run_without_a_measurement_or_with_wrong_results_is_no_winner(without: Report) -> None:
    without = evolve(without, experiment=FULL.experiment, environment=FULL.environment)
    assert verdict(FULL, without) is None
