"""What the clock's numbers become: the time of each kernel, a timeline, the run in the middle."""

from __future__ import annotations

from functools import partial
from itertools import count, cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npucompose.errors import CaptureError
from npucompose.results.streams import StreamTimes
from npucompose_replay.executor import clock
from npucompose_replay.plan import Step, Threads, Workers

aten = torch.ops.aten


def steps(*names: str, streams: str = "") -> list[Step]:
    made = [Step(op=aten.relu.default, args=(), name=name) for name in names]
    if streams:
        made = [Step(op=s.op, args=(), name=s.name, stream=on) for s, on in zip(made, streams, strict=True)]
    return made


def test_a_kernel_takes_a_quantile_of_its_times_without_the_clock_itself() -> None:
    rounds = [
        [(0, 10_000), (12_000, 15_000), (17_000, 37_000), (39_000, 40_000)],
        [(0, 30_000), (32_000, 35_000), (37_000, 67_000), (69_000, 70_000)],
        [(0, 20_000), (26_000, 30_000), (32_000, 72_000), (74_000, 75_000)],
    ]
    # The gaps are 2, but for one of 6 microseconds; what has no name counts for the one before it.
    found = clock._kernel_us(steps("a", "", "b", "c"), rounds, clock.MIDDLE)
    assert found == {"a": 18.0 + 1.0, "b": 28.0, "c": 0.0}
    low = clock._kernel_us(steps("a", "", "b", "c"), rounds, clock.LOW)
    assert low == {"a": 8.0 + 1.0, "b": 18.0, "c": 0.0}
    assert clock._kernel_us(steps("a"), [[(0, 5000)], [(0, 7000)], [(0, 4000)]], clock.MIDDLE) == {"a": 5.0}
    assert clock._kernel_us([], [[]], clock.LOW) == {}


def test_a_second_step_of_a_node_and_one_of_none_carry_the_operator_and_a_number() -> None:
    names = clock._names(steps("a", "a", "", "b"))
    assert names == ["a", "a aten.relu.default 1", "aten.relu.default 2", "b"]


def test_a_timeline_is_in_microseconds_with_an_event_for_each_wait() -> None:
    threads = Threads(count=2, thread=[0, 1, 0], waits=[[], [0], [1]], known=[(-1, -1)] * 3)
    line = clock._timeline(steps("a", "b", "c", streams="010"), threads, [(0, 1500), (2000, 2500), (3000, 4000)])
    assert (line.source, line.nodes, line.streams) == ("measured", ("a", "b", "c"), ("0", "1", "0"))
    assert (line.start_us, line.end_us) == ((0.0, 2.0, 3.0), (1.5, 2.5, 4.0))
    assert line.events == (("a", "b"), ("b", "c"))


def test_a_run_takes_until_its_last_step_ends() -> None:
    assert clock._makespan([(0, 9), (1, 7)]) == 9
    assert clock._makespan([]) == 0


class Watch:
    """A Stopwatch whose rounds are made up: longer ones on threads."""

    made: list[tuple[Any, ...]]
    fails = False

    def __init__(self, module: Any, inputs: Any, workers: Workers | None = None) -> None:
        if self.fails:
            raise CaptureError("no")
        self.made.append((module, inputs, workers))
        self.plan = SimpleNamespace(steps=steps("a", "b"))
        self.threads = Threads(count=2, thread=[0, 1], waits=[[], [0]], known=[(-1, -1)] * 2) if workers else None

        ends = (9000, 2000, 5000) if workers else (8000, 1000, 3000)
        self.ends = cycle(ends)

    def round(self) -> Any:
        return [(0, 1000), (1000, next(self.ends))]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> type[Watch]:
    Watch.made = []
    monkeypatch.setattr(clock, "Stopwatch", Watch)
    monkeypatch.setattr(clock, "LONG_ENOUGH_NS", 0)
    return Watch


def test_rounds_are_taken_in_turn_and_random_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def way(name: str) -> list[tuple[int, int]]:
        order.append(name)
        torch.rand(1)
        return [(0, int(1e7))]

    state = torch.get_rng_state()
    a, b = clock.in_turn(partial(way, "a"), partial(way, "b"))
    assert len(a) == len(b) == clock.ROUNDS
    assert order == ["a", "b"] * (clock.ROUNDS + 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_of_several_runs_the_one_in_the_middle_is_shown(watch: type[Watch]) -> None:
    workers = Workers(count=2)
    captured: Any = SimpleNamespace(threads=object(), workers=workers)
    module: Any = object()
    times = clock.measured(captured, module, [1])
    assert isinstance(times, StreamTimes)
    assert (times.plan_us, times.serial_us) == (5.0, 3.0)
    assert times.timeline.end_us == (1.0, 5.0)
    assert watch.made == [(module, [1], workers), (module, [1], None)]
    alone: Any = SimpleNamespace(threads=None, workers=workers)
    assert clock.measured(alone, module, [1]) is None


def test_what_the_native_replayer_cannot_run_has_no_times(watch: type[Watch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "fails", True)
    captured: Any = SimpleNamespace(threads=object(), workers=Workers(count=2))
    module: Any = object()
    assert clock.measured(captured, module, []) is None
    assert clock.clocked(module, []) is None


@pytest.mark.parametrize(("threads", "together"), [(1, 9.0), (2, 5.0)])
def test_kernels_are_timed_alone_and_with_the_threads_that_torch_gives_them(
    watch: type[Watch], monkeypatch: pytest.MonkeyPatch, threads: int, together: float
) -> None:
    def spans(self: Watch) -> Any:
        end = 9000 if inside else 5000
        return [(0, end), (end, end + 1)]

    inside: list[int] = []

    class Extension:
        def alone(self, call: Any) -> Any:
            inside.append(1)
            try:
                return call()
            finally:
                inside.pop()

        def synchronisation_ns(self, count: int, spin_ns: int, cores: list[int]) -> tuple[list[float], list[float]]:
            assert (count, spin_ns, cores) == (clock.SYNCHRONISATIONS, 100_000, [])
            return [9e9, 3000.0, *[8000.0] * 7, 2000.0], [700.0]

    monkeypatch.setattr(watch, "round", spans)
    monkeypatch.setattr(clock.build, "load", Extension)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    clock.synchronisation_us.cache_clear()
    module: Any = object()
    try:
        found = clock.clocked(module, [])
    finally:
        clock.synchronisation_us.cache_clear()
    assert found is not None
    assert (found.stream_us, found.event_us) == (3.0, 0.7)
    assert found.kernel_us["a"] == 9.0
    assert found.together_us["a"] == together
    assert found.spread == 0


def test_threads_that_completed_no_round_cost_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Extension:
        def synchronisation_ns(self, *given: Any) -> tuple[list[float], list[float]]:
            return [], []

    monkeypatch.setattr(clock.build, "load", Extension)
    clock.synchronisation_us.cache_clear()
    try:
        assert clock.synchronisation_us() == (0.0, 0.0)
    finally:
        clock.synchronisation_us.cache_clear()


def test_stalls_of_a_busy_machine_are_no_work_and_show_in_the_spread(
    watch: type[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of a kernel of which one gets no core, in four rounds of five: 28 µs became 192 µs."""
    number = count()

    def spans(self: Watch) -> Any:
        stalls = not inside and next(number) % 5 != 2
        end = 192_000 if stalls else 28_000
        return [(0, end), (end, end)]

    inside: list[int] = []

    class Extension:
        def alone(self, call: Any) -> Any:
            inside.append(1)
            try:
                return call()
            finally:
                inside.pop()

    monkeypatch.setattr(watch, "round", spans)
    monkeypatch.setattr(clock.build, "load", Extension)
    monkeypatch.setattr(clock, "synchronisation_us", lambda: (1.0, 1.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    module: Any = object()
    found = clock.clocked(module, [])
    assert found is not None
    assert (found.kernel_us["a"], found.together_us["a"]) == (28.0, 28.0)
    assert found.spread == pytest.approx(192 / 28 - 1)


class Replays:
    def __init__(self, first_ns: int) -> None:
        self.first_ns, self.asked = first_ns, list[int]()

    def spans(self, count: int) -> list[Any]:
        self.asked.append(count)
        return [[(0, self.first_ns)], [(0, 7)]][:count]


@pytest.mark.parametrize(("first_ns", "rounds"), [(10**9, 11), (5 * 10**6, 20), (1, 200), (0, 200)])
def test_there_are_as_many_rounds_as_fit_into_a_tenth_of_a_second(first_ns: int, rounds: int) -> None:
    asked: list[int] = []

    def way() -> list[tuple[int, int]]:
        asked.append(1)
        return [(0, first_ns)]

    assert clock.in_turn(way) == [[[(0, first_ns)]] * rounds]
    assert len(asked) == rounds + 1


def test_a_round_begins_with_the_inputs_as_they_were_given_and_is_the_second_of_two_replays() -> None:
    watch = object.__new__(clock.Stopwatch)
    given = [torch.ones(2), torch.ones(2)]
    replays: Any = Replays(10**9)
    watch._native = SimpleNamespace(recording=replays)  # type: ignore[assignment]
    watch._inputs, watch._given, watch._written = [torch.zeros(2), torch.zeros(2)], given, [1]
    assert watch.round() == [(0, 7)]
    assert replays.asked == [2]
    assert [x.tolist() for x in watch._inputs] == [[0.0, 0.0], [1.0, 1.0]]
