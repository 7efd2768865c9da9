"""A contest of two recordings of one graph: nobody notices it, the faster one stays, a wrong one never does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.results.graphs import FEWEST_ROUNDS, Winner
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.front import contest
from npucompose_replay.front.contest import FUSED, UNFUSED, Contest, difference
from tests.graph_helpers import traced


class Timed:
    """A recording whose replays take as long as is said, on a clock of their own."""

    def __init__(self, recording: CapturedGraph, clock: Clock, ns: int) -> None:
        self.plan, self._recording, self._clock, self._ns = recording.plan, recording, clock, ns
        self.replays = 0

    def moved(self, inputs: Any, arena: Any) -> Timed:
        self._recording = self._recording.moved(inputs, arena)
        return self

    def replay(self, *inputs: Any) -> list[Any]:
        self.replays += 1
        self._clock.now += self._ns
        return self._recording.replay(*inputs)


class Clock:
    now = 0
    attended = 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contest, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(contest.Attendance, "share", lambda _: clock.attended)
    return clock


def counted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(1)
    return x * 2 + seen


def held(
    clock: Clock,
    fused_us: int,
    unfused_us: int,
    fused: Callable[..., Any] = counted,
    unfused: Callable[..., Any] = counted,
    limit_ms: float = 50.0,
) -> tuple[Winner, bool, list[torch.Tensor], list[int]]:
    """(what was kept, whether the fused one stays, the inputs afterwards, replays of both) of a contest."""
    inputs = [torch.ones(4), torch.zeros(4)]
    module = traced(fused, *inputs)
    kept: list[Winner] = []
    one = Contest(key="k", unfused=traced(unfused, *inputs), limit_ms=limit_ms, keep=kept.append)
    before = one.before(inputs)
    recording, _ = CapturedGraph.capture_call(module, inputs)
    both = [Timed(recording, clock, fused_us * 1000)]

    def other(given: Any) -> Any:
        both.append(Timed(CapturedGraph.capture(one.unfused, given), clock, unfused_us * 1000))
        return both[-1]

    stays: Any = one.won(both[0], other, inputs, before)  # type: ignore[arg-type]
    (winner,) = kept
    return winner, stays is both[0], inputs, [way.replays for way in both]


@pytest.mark.parametrize(("fused_us", "unfused_us", "winner"), [(10, 20, FUSED), (20, 10, UNFUSED), (100, 97, FUSED)])
def test_the_faster_recording_stays_and_the_inputs_are_as_the_call_left_them(
    clock: Clock, fused_us: int, unfused_us: int, winner: str
):
    found, stays, (x, seen), _ = held(clock, fused_us, unfused_us)
    assert (found.winner, found.by, stays) == (winner, "measured", winner == FUSED)
    assert found.max_abs_err == 0.0
    assert found.times_us == {FUSED: fused_us, UNFUSED: unfused_us}
    assert x.tolist() == [1.0] * 4
    assert seen.tolist() == [1.0] * 4, "however often it was replayed"


def test_a_faster_recording_with_other_results_does_not_win(clock: Clock):
    def wrong(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return x * 2 + seen + 1e-3

    found, stays, (_, seen), _ = held(clock, 20, 10, unfused=wrong)
    assert stays
    assert (found.winner, found.by, found.rounds) == (FUSED, "default", 0)
    assert found.why == "result 0 differs by 0.001 between fused and unfused"
    assert seen.tolist() == [1.0] * 4


def test_a_faster_recording_that_leaves_other_inputs_does_not_win(clock: Clock):
    def wrong(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        result = x * 2 + seen + 1
        seen.add_(2)
        return result

    found, stays, (_, seen), _ = held(clock, 20, 10, unfused=wrong)
    assert stays
    assert "result 1 differs by 1" in found.why
    assert seen.tolist() == [1.0] * 4


def test_inputs_that_are_written_are_never_touched_by_a_contest(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """Another thread may read them meanwhile, and autograd counts writes."""
    versions: list[int] = []
    won = Contest.won

    def watched(self: Contest, fused: Any, unfused: Any, inputs: Any, before: Any) -> Any:
        versions.append(inputs[1]._version)
        kept = won(self, fused, unfused, inputs, before)
        versions.append(inputs[1]._version)
        return kept

    monkeypatch.setattr(Contest, "won", watched)
    found, _, (_, seen), replays = held(clock, 20, 10)
    assert (found.winner, min(replays) > 2) == (UNFUSED, True)
    assert versions[0] == versions[1]
    assert seen.tolist() == [1.0] * 4


@pytest.mark.parametrize("us", [(10, 20), (20, 10)])
def test_the_plan_of_a_recording_has_its_inputs_where_they_are_after_a_contest(clock: Clock, us: tuple[int, int]):
    inputs = [torch.ones(4), torch.zeros(4)]
    one = Contest(key="k", unfused=traced(counted, *inputs), limit_ms=50.0, keep=lambda _: None)
    before = one.before(inputs)
    recording, _ = CapturedGraph.capture_call(traced(counted, *inputs), inputs)
    both = [Timed(recording, clock, us[0] * 1000)]
    one.won(
        both[0],  # type: ignore[arg-type]
        lambda given: Timed(CapturedGraph.capture(one.unfused, given), clock, us[1] * 1000),  # type: ignore[arg-type, return-value]
        inputs,
        before,
    )
    roots = [root for root in recording.plan.roots if root.kind == "input"]
    assert [root.contents.data_ptr() for root in roots] == [inputs[root.index].data_ptr() for root in roots]


@pytest.mark.parametrize(("limit_ms", "rounds"), [(0.2, 2), (0.25, 5), (50.0, 100)])
def test_a_clear_case_is_over_after_two_rounds_where_five_would_take_too_long(
    clock: Clock, limit_ms: float, rounds: int
):
    found, _, _, replays = held(clock, 10, 40, limit_ms=limit_ms)
    assert found.rounds == rounds
    assert replays == [rounds + 1, rounds + 1], "one to compare, the others on the clock"


def test_on_a_busy_machine_nothing_is_chosen(clock: Clock):
    clock.attended = 0.45
    found, stays, _, _ = held(clock, 20, 10)
    assert stays
    assert (found.winner, found.by) == (FUSED, "default")
    assert found.why == "the machine was busy: this process had a processor for 45% of the time"


def test_a_contest_that_takes_too_long_chooses_nothing(clock: Clock):
    found, stays, _, _ = held(clock, 10_000, 9_000, limit_ms=50.0)
    assert stays
    assert (found.by, found.why) == ("default", "5 rounds take longer than target.measure_ms=50")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda x, seen: torch.rand_like(x) + x, "draws random numbers"),
        (lambda x, seen: x + 1, ""),
    ],
)
def test_what_draws_random_numbers_is_not_called_again(clock: Clock, model: Callable[..., Any], words: str):
    found, stays, _, replays = held(clock, 20, 10, fused=model, unfused=model)
    assert words in found.why
    assert stays is bool(words)
    assert (replays == [0]) is bool(words)


def test_an_error_of_the_rival_ends_the_contest_and_nothing_else(clock: Clock):
    def failing(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return x * seen.sum().item()  # a number out of data: no recording holds it

    inputs = [torch.ones(4), torch.zeros(4)]
    kept: list[Winner] = []
    fused, _ = CapturedGraph.capture_call(traced(counted, *inputs), inputs)
    one = Contest(key="k", unfused=traced(counted, *inputs), limit_ms=50, keep=kept.append)

    def other(given: Any) -> CapturedGraph:
        return CapturedGraph.capture(fx.symbolic_trace(failing), given)

    assert one.won(fused, other, inputs, {1: torch.zeros(4)}) is fused
    assert kept[0].why.startswith("unfused it cannot be run: ")


@pytest.mark.parametrize(
    ("one", "other", "error", "words"),
    [
        (torch.ones(2), torch.ones(2) + 1e-6, pytest.approx(1e-6, rel=0.1), ""),
        (torch.ones(2), torch.ones(2) + 1e-2, pytest.approx(1e-2, rel=0.1), "differs by 0.01"),
        (torch.tensor([1]), torch.tensor([2]), 1.0, "differs by 1"),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), 0.0, ""),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0]), 0.0, "differs by 0"),
        (torch.ones(2), torch.ones(3), None, "is torch.float32[2] fused and torch.float32[3] unfused"),
        (torch.ones(2), torch.ones(2).double(), None, "torch.float64[2] unfused"),
        (3, 3, None, ""),
        (3, 4, None, "is 3 fused and 4 unfused"),
        (torch.empty(0), torch.empty(0), 0.0, ""),
    ],
)
def test_results_differ_by_more_than_the_tolerance_of_their_type_or_do_not(
    one: Any, other: Any, error: Any, words: str
):
    found, wrong = difference(one, other)
    assert found == error
    assert words in wrong
    assert bool(words) == bool(wrong)


def test_what_it_takes_to_make_the_copies_of_inputs_anew_is_no_time_of_a_replay(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_anew, turns = contest._made_anew, []

    def slowly(*arguments: Any) -> None:
        turns.append(None)
        clock.now += 7_000
        made_anew(*arguments)

    monkeypatch.setattr(contest, "_made_anew", slowly)
    found, *_ = held(clock, 10, 20)
    assert len(turns) >= 2 * FEWEST_ROUNDS
    assert found.times_us == {FUSED: 10, UNFUSED: 20}
