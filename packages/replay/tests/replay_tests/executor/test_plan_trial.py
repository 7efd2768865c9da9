"""A plan is judged by a trial: the faster way is kept, nobody notices, and what must not run twice does not run."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import fx

from npucompose.results.streams import TrialRequest, TrialVerdict
from npucompose.schema.streams import Streams
from npucompose.streams import apply, decision_of
from npucompose.streams.planning import DECISION
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.executor import trial as trials
from npucompose_replay.executor.trial import PlanTrial, Way
from npucompose_replay.front.graph_cache import GraphCache
from npucompose_replay.plan import Workers
from replay_tests.capturing import request
from tests.graph_helpers import one_thread
from tests.sample_graphs import CAN, bits, some_inputs, traced
from tests.streams.random_in_place import in_place_program

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")

TRIES = attrs.evolve(CAN, tries_plans=True)
TWO = Workers(count=2, spin_us=0)
X = torch.randn(8, 8)
LONG = 10_000.0
"""Milliseconds: a busy machine must not end these trials."""
calls: Counter[str] = Counter()


@torch.library.custom_op("npucompose_tests::count", mutates_args=())
def count(x: torch.Tensor) -> torch.Tensor:
    calls["count"] += 1
    return x + 1


count.register_fake(torch.empty_like)


@pytest.fixture(autouse=True)
def one_thread_for_each_kernel() -> Iterator[None]:
    """So that streams are not kept together because an operator sums in another order."""
    with one_thread():
        yield


def two_chains(x: torch.Tensor) -> torch.Tensor:
    return x.mm(x).relu().mm(x) + x.t().mm(x).tanh().mm(x)


def with_state(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """A decoder's step: a row of the cache is written at a counter, and the counter moves on."""
    side = x.mm(x).relu()
    cache.index_copy_(0, at, x[:1])
    out = cache.mm(x) + side
    at.add_(1)
    return out


def asked(module: fx.GraphModule, **changes: Any) -> PlanTrial:
    """The plan written into the graph, whatever is predicted, and the trial that its capture is asked for."""
    wanted = Streams(trial_ms=LONG, cost="none")
    apply(module.graph, wanted, TRIES)
    module.recompile()
    trial = PlanTrial.from_graph(module)
    assert trial is not None
    return PlanTrial(attrs.evolve(trial.asked, **changes))


def captured_call(
    function: Callable[..., Any], *inputs: torch.Tensor, **changes: Any
) -> tuple[CapturedGraph, list[Any]]:
    module = traced(function, *inputs)
    return CapturedGraph.capture_call(module, inputs, workers=TWO, trial=asked(module, **changes))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """`clock(plan_us, one_us)`: the replays run, and these are their times."""
    real = trials._Race._replay

    def set_to(plan_us: float, one_us: float) -> None:
        def replay(self: Any, way: Way) -> int:
            real(self, way)
            return round(1e3 * (plan_us if way is self.ways[0] else one_us))

        monkeypatch.setattr(trials._Race, "_replay", replay)

    return set_to


@pytest.mark.parametrize(
    ("plan_us", "one_us", "threads", "why"),
    [(100, 120, 2, ""), (100, 101, None, "measured gain 1.0% is below streams.min_gain 2.0%"), (120, 100, None, "")],
)
def test_the_plan_is_kept_where_it_saves_what_is_asked_of_it(
    clock: Callable[[float, float], None], plan_us: float, one_us: float, threads: int | None, why: str
) -> None:
    clock(plan_us, one_us)
    captured, outputs = captured_call(two_chains, X)
    facts = captured.facts()
    assert (None if captured.threads is None else captured.threads.count) == threads
    verdict = captured.verdict
    assert verdict is not None
    assert (verdict.applied, verdict.plan_us, verdict.one_stream_us) == (threads is not None, plan_us, one_us)
    assert verdict.why == why
    assert trials.LEAST_TURNS <= verdict.turns <= trials.MOST_TURNS
    assert facts["trial"]["applied"] == verdict.applied
    assert bits(outputs) == bits(captured.replay(X)) == bits([two_chains(X)])


@pytest.mark.parametrize("static", [frozenset(), frozenset({1, 2})], ids=["given", "buffers"])
@pytest.mark.parametrize("plan_us", [50, 200])
def test_a_trial_changes_no_state(
    clock: Callable[[float, float], None], plan_us: float, static: frozenset[int]
) -> None:
    """The counter and the cache are where one call of the model leaves them, and later replays go on from there."""
    clock(plan_us, 100)
    ours, theirs = ([X.clone(), torch.zeros(8, 8), torch.tensor([0])] for _ in range(2))
    module = traced(with_state, *ours)
    captured, outputs = CapturedGraph.capture_call(module, ours, static=static, workers=TWO, trial=asked(module))
    assert captured.verdict is not None
    assert captured.verdict.turns > 0
    got, expected = [outputs[0].clone()], [with_state(*theirs)]
    for _ in range(3):
        got.append(captured.replay(*ours)[0].clone())
        expected.append(with_state(*theirs))
    assert bits(got) == bits(expected)
    assert bits(ours) == bits(theirs)


def test_a_trial_of_the_last_step_does_not_run_beyond_the_cache() -> None:
    inputs = [X.clone(), torch.zeros(8, 8), torch.tensor([7])]
    captured, _ = captured_call(with_state, *inputs)
    assert captured.verdict is not None
    assert captured.verdict.turns > 0
    assert inputs[2].item() == 8


def test_random_numbers_are_drawn_once_and_the_prediction_decides() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x.mm(x).relu() + torch.rand(8, 8).mm(x)

    torch.manual_seed(3)
    expected, state = noisy(X), torch.get_rng_state()
    torch.manual_seed(3)
    captured, outputs = captured_call(noisy, X, predicted_us=10.0, predicted_serial_us=9.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert bits(outputs) == bits([expected])
    assert captured.threads is None
    assert captured.verdict == TrialVerdict(applied=False, why="not tried: aten.rand.default draws random numbers")


@pytest.mark.parametrize(("predicted_us", "threads"), [(5.0, 2), (10.0, None)])
def test_an_operator_that_is_not_torchs_own_runs_once_and_the_prediction_decides(
    predicted_us: float, threads: int | None
) -> None:
    def counting(x: torch.Tensor) -> torch.Tensor:
        return x.mm(x).relu() + torch.ops.npucompose_tests.count(x).mm(x)

    module = traced(counting, X)
    calls.clear()
    trial = asked(module, predicted_us=predicted_us, predicted_serial_us=9.0)
    captured, _ = CapturedGraph.capture_call(module, [X], workers=TWO, trial=trial)
    assert calls["count"] == 1
    assert (None if captured.threads is None else captured.threads.count) == threads
    assert captured.verdict is not None
    assert captured.verdict.why == "not tried: npucompose_tests.count.default is not torch's own"


def test_inputs_too_large_to_copy_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "COPIED_BYTES", 100)
    captured, _ = captured_call(with_state, X.clone(), torch.zeros(8, 8), torch.tensor([0]))
    assert captured.verdict is not None
    assert "the inputs that are written take more than" in captured.verdict.why


def test_a_written_input_that_overlaps_another_one_is_not_tried() -> None:
    memory = torch.randn(8, 8)
    module = traced(lambda a, b: a.add_(1).mm(a) + b.relu().mm(b), memory, memory.clone())
    captured, _ = CapturedGraph.capture_call(module, [memory, memory.t()], workers=TWO, trial=asked(module))
    assert captured.verdict is not None
    assert captured.verdict.why == "not tried: an input that is written overlaps another one"


def test_a_trial_ends_in_time() -> None:
    captured, _ = captured_call(two_chains, X, ms=1e-6)
    assert captured.verdict is not None
    assert captured.verdict.why == "not tried: 5 turns take longer than streams.trial_ms=1e-06"


@pytest.mark.parametrize(("stalled", "turns"), [(range(2, 3), 5), (range(4, 6), 5), (range(2, 1000), 0)])
def test_a_trial_of_short_turns_goes_on_after_a_stall_and_not_after_many(
    stalled: range, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`stalled` are looks at the clock that come a second after the one before, of a trial of 50 ms."""
    looks, now = itertools.count(), [0]

    def clock() -> int:
        now[0] += 1_000_000_000 if next(looks) in stalled else 1_000
        return now[0]

    monkeypatch.setattr(trials, "perf_counter_ns", clock)
    captured, _ = captured_call(two_chains, X, ms=50.0, predicted_us=40.0, predicted_serial_us=60.0)
    assert captured.verdict is not None
    assert captured.verdict.turns >= turns
    assert bool(captured.verdict.turns) == bool(turns)


def test_a_graph_that_is_predicted_to_take_longer_than_the_trial_is_not_run_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials._Race, "verdict", lambda self: pytest.fail("it ran"))
    captured, _ = captured_call(two_chains, X, ms=1.0, predicted_us=500.0, predicted_serial_us=2000.0)
    assert captured.threads is not None
    assert captured.verdict is not None
    assert "one replay is predicted to take longer" in captured.verdict.why


def test_streams_that_gave_other_bits_would_not_be_kept(
    clock: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(1, 100)
    real = trials._Race._seen

    def seen(self: Any, way: Way) -> Sequence[torch.Tensor]:
        return [value + 1 if way is self.ways[0] else value for value in real(self, way)]

    monkeypatch.setattr(trials._Race, "_seen", seen)
    captured, _ = captured_call(two_chains, X)
    assert captured.threads is None
    assert captured.verdict == TrialVerdict(applied=False, why="threads gave other bits than one stream")


def test_a_kernel_that_fails_in_a_trial_does_not_end_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, way: Way) -> int:
        raise RuntimeError("index 9 is out of bounds")

    monkeypatch.setattr(trials._Race, "_replay", fails)
    captured, outputs = captured_call(two_chains, X)
    assert captured.verdict is not None
    assert captured.verdict.why == "not tried: a replay of the trial failed: index 9 is out of bounds"
    assert bits(captured.replay(X)) == bits(outputs)


@pytest.mark.parametrize("plan_us", [50, 200])
def test_one_graph_is_tried_once_and_its_other_recordings_follow(
    clock: Callable[[float, float], None], plan_us: float
) -> None:
    clock(plan_us, 100)
    module = traced(two_chains, X)
    trial = asked(module)
    module.meta[DECISION] = attrs.evolve(decision_of(module), trial=trial.asked)
    cache = GraphCache(request(module), capture_limit=2, workers=TWO)
    for size in (8, 4):
        x = torch.randn(size, size)
        assert bits(cache([x])) == bits([two_chains(x)])
    first, second = (recording.facts() for recording in cache.captured)
    assert first["threads"] == second["threads"] == (2 if plan_us == 50 else 1)
    assert first["trial"]["turns"] > 0
    assert second["trial"] == {**second["trial"], "turns": 0, "why": trials.TOGETHER}


@pytest.mark.parametrize("graphs", [5, pytest.param(400, marks=pytest.mark.slow)])
def test_random_graphs_that_write_in_place_are_tried_and_stay_what_they_are(
    graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "MOST_TURNS", trials.LEAST_TURNS)
    tried = 0
    for seed in range(graphs):
        module, alone = in_place_program(seed), in_place_program(seed)
        apply(module.graph, Streams(trial_ms=LONG, cost="none", max_streams=3), TRIES)
        module.recompile()
        ours, theirs = some_inputs(module), some_inputs(module)
        captured, outputs = CapturedGraph.capture_call(module, ours, workers=TWO, trial=PlanTrial.from_graph(module))
        assert (bits(outputs), bits(ours)) == (bits(alone(*theirs)), bits(theirs)), seed
        tried += captured.verdict is not None and captured.verdict.turns > 0
        assert (bits(captured.replay(*ours)), bits(ours)) == (bits(alone(*theirs)), bits(theirs)), seed
    assert tried > graphs / 2


def test_who_cannot_run_streams_tries_none() -> None:
    def tries(**options: Any) -> bool:
        return CpuTarget(stream_threads=2, **options).capabilities("reduce-overhead").tries_plans

    assert tries()
    assert not tries(executor="portable")
    assert not CpuTarget(stream_threads=1).capabilities("reduce-overhead").tries_plans
    assert not CpuTarget(stream_threads=2).capabilities("max-autotune").tries_plans


def test_a_trial_without_a_prediction_expects_a_plan_to_pay() -> None:
    assert TrialRequest(ms=50, min_gain=0.02).is_expected_to_pay
    assert not TrialRequest(ms=50, min_gain=0.02, predicted_us=9.9, predicted_serial_us=10.0).is_expected_to_pay
    assert TrialRequest(ms=50, min_gain=0.02, predicted_us=9.0, predicted_serial_us=10.0).is_expected_to_pay
