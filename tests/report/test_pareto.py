"""The front: what no other run beats, by kind of work."""

from __future__ import annotations

import time

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from npucompose.report.compare import RunLine, front, objectives, rounded, timed, with_front
from npucompose.results.record import Figures

SMALL = st.integers(0, 4).map(float)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@given(st.dictionaries(st.text(max_size=3), st.tuples(SMALL, SMALL, SMALL), max_size=40))
def test_the_front_is_what_nothing_beats(points: dict[str, tuple[float, float, float]]) -> None:
    wanted = {name for name, point in points.items() if not any(beats(other, point) for other in points.values())}
    assert front(points) == wanted


def test_a_hundred_thousand_points_are_no_wait() -> None:
    """Every one of them on the front is the hardest case; two for two would be ten thousand million comparisons."""
    points = {str(n): (float(n), float(100_000 - n), 0.0) for n in range(100_000)}
    begun = time.process_time()
    assert len(front(points)) == 100_000
    assert time.process_time() - begun < 30


def run(p50: float, pool: int | None, compile_s: float, *, work: str = "mlp on cpu", peak: int = 1 << 30) -> RunLine:
    figures = Figures(p50_us=p50, pool_bytes=pool, peak_rss_bytes=peak, compile_s=compile_s)
    return RunLine(name=f"{p50}", status="ok", figures=figures, work=work)


def marked(*lines: RunLine) -> list[bool]:
    return [line.front for line in with_front(lines)]


def test_a_run_that_is_worse_in_all_is_not_on_it() -> None:
    assert marked(run(10, 100, 1), run(20, 200, 2), run(5, 500, 1)) == [True, False, True]


def test_only_the_same_work_competes() -> None:
    assert marked(run(10, 100, 1), run(20, 200, 2, work="add on cpu")) == [True, True]


def test_some_percent_are_no_difference() -> None:
    assert marked(run(100, 100, 1), run(101, 100, 1), run(104, 104, 1.04)) == [True, True, True]
    assert marked(run(100, 100, 1), run(120, 100, 1)) == [True, False]


def test_no_compilation_is_no_compile_time() -> None:
    found = rounded({"none": (1.0, 1.0, 0.0), "hardly": (1.0, 1.0, 1e-7), "some": (1.0, 1.0, 1.0)})
    assert found["none"] == found["hardly"] < found["some"]
    assert rounded({}) == {}


def test_memory_is_the_pool_where_all_have_one_and_the_peak_elsewhere() -> None:
    small, large = run(10, 100, 1, peak=1000), run(20, 10, 1, peak=2000)
    assert marked(small, large) == [True, True]
    without = run(30, None, 1, peak=3000)
    assert marked(small, large, without) == [True, False, False]


def test_what_was_not_measured_or_was_wrong_does_not_compete() -> None:
    wrong = evolve(run(1, 1, 1), status="numerics_failed")
    assert marked(wrong, run(10, 100, 1), RunLine(name="crashed", status="crashed")) == [False, True, False]


def test_each_work_has_its_own_measure_of_memory() -> None:
    """A work without a planned pool is ranked by the peak, and the one beside it by its pool all the same."""
    small, large = run(10, 100, 1, peak=1000), run(20, 10, 1, peak=2000)
    eager = run(30, None, 1, work="add on cpu", peak=3000)
    assert marked(small, large, eager) == [True, True, True]
    assert objectives(timed((small, large, eager))) == {0: (10, 100, 1), 1: (20, 10, 1), 2: (30, 3000, 1)}
