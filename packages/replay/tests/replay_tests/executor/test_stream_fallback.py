"""A busy machine is noticed: streams that take longer than one stream are left for it, and tried again later."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.results.streams import Fallback
from npucompose.schema.streams import Match, PlanEntry, Streams
from npucompose.streams import apply
from npucompose.targets.cpu import CpuTarget
from npucompose_replay.captured_graph import CapturedGraph
from npucompose_replay.executor import build
from npucompose_replay.plan import Workers
from replay_tests.executor.streams_by_hand import needs_two_cores
from tests.graph_helpers import one_thread, same
from tests.sample_graphs import CAN, traced

pytestmark = pytest.mark.skipif(build.state().kind == "impossible", reason="no native replayer here")

US = 1_000
WARNING = "the machine has other work to do"


# -- the rule, by numbers


class Series:
    """Replays on a machine whose every time is given."""

    def __init__(self, one_us: float = 0) -> None:
        self.watch = build.load().StreamWatch(round(one_us * US))
        self.total_us = 0.0

    def replay(self, streams_us: float, one_us: float) -> bool:
        """Whether it ran side by side."""
        beside = self.watch.side_by_side()
        took = streams_us if beside else one_us
        self.total_us += took
        self.watch.took(round(took * US))
        return beside

    def replays(self, count: int, streams_us: float, one_us: float) -> int:
        """How many of them ran side by side."""
        return sum(self.replay(streams_us, one_us) for _ in range(count))

    @property
    def counts(self) -> tuple[int, int]:
        return self.watch.falls, self.watch.trials


def test_a_plan_that_pays_stays_and_one_stream_is_timed_now_and_then() -> None:
    series = Series(one_us=1000)
    assert series.replays(4096, 800, 1000) == 4096
    assert series.replays(100, 800, 1000) == 95
    assert series.replays(20_000, 800, 1000) >= 19_970
    assert series.counts == (0, 0)


@pytest.mark.parametrize(("late_us", "within"), [(25_000, 8), (2_000, 14), (1_150, 80)])
def test_streams_that_take_longer_than_one_stream_are_left_for_it(late_us: float, within: int) -> None:
    series = Series(one_us=1000)
    series.replays(500, 800, 1000)
    beside = series.replays(within, late_us, 1000)
    assert series.counts == (1, 0)
    assert beside <= within - 5
    assert series.watch.alone == within - beside


def test_once_left_they_cost_little() -> None:
    """25 times as long, for good: what trying costs stays within a twentieth of what is computed."""
    series = Series(one_us=1000)
    series.replays(100, 25_000, 1000)
    before = series.total_us
    series.replays(100_000, 25_000, 1000)
    assert (series.total_us - before) / 100_000 < 1.05 * 1000
    assert series.watch.trials >= 3


def test_each_trial_that_fails_makes_the_next_one_rarer() -> None:
    series, at = Series(one_us=1000), []
    for replay in range(60_000):
        if series.replay(5_000, 1000) and replay > 20:
            at.append(replay)
    gaps = [then - first for first, then in pairwise(at)]
    assert [round(then / first, 1) for first, then in pairwise(gaps)][:4] == [2.0] * 4
    assert max(gaps) < 5000  # a replay lost 4 ms; trying costs a thousandth at least


def test_when_the_machine_is_idle_again_the_streams_come_back_and_stay() -> None:
    series = Series(one_us=1000)
    series.replays(200, 25_000, 1000)
    assert series.counts[0] == 1
    while not series.replay(800, 1000):
        pass
    assert series.replays(4000, 800, 1000) == 4000
    assert series.counts == (1, 1)


def test_what_a_plan_takes_itself_is_timed_without_those_replays_that_were_disturbed() -> None:
    """Three of the first five were, in any order: what takes twice as long as the others is late all the same."""
    series = Series()
    for own_us in (100, 900, 900, 900, 100):
        assert series.replay(own_us, 0)
    for one_us in (100, 100, 900, 100, 100):
        assert not series.replay(0, one_us)
    series.replays(60, 200, 100)
    assert series.counts[0] == 1


@pytest.mark.parametrize("hiccup_us", [2_000, 50_000])
def test_a_hiccup_of_the_machine_is_no_busy_machine(hiccup_us: float) -> None:
    series = Series(one_us=1000)
    for number in range(20_000):
        series.replay(hiccup_us if number % 1000 == 7 else 800, 1000)
    assert series.counts == (0, 0)


def test_a_machine_that_is_slower_for_one_stream_too_keeps_the_streams() -> None:
    series = Series(one_us=1000)
    series.replays(100, 800, 1000)
    assert series.replays(1000, 2_400, 3_000) >= 990
    assert series.counts == (0, 0)


def test_rare_stalls_that_are_long_are_noticed() -> None:
    """Replays of 40 µs on a core that is shared: a stall of a scheduler's slice in every hundred of them."""
    series = Series(one_us=50)
    for number in range(1000):
        series.replay(4_000 if number % 100 == 0 else 40, 50)
    assert series.counts[0] >= 1
    before = series.total_us
    for number in range(50_000):
        series.replay(4_000 if number % 100 == 0 else 40, 50)
    assert (series.total_us - before) / 50_000 < 1.1 * 50


def test_a_plan_that_somebody_asked_for_is_compared_with_what_it_took_itself() -> None:
    series = Series()
    assert series.replays(5000, 1_200, 1_000) >= 4985  # it does not pay, and stays
    assert series.counts == (0, 0)
    series.replays(100, 25_000, 1_000)
    assert series.counts == (1, 0)


def test_what_a_stale_time_of_one_stream_hides_is_found_when_it_is_timed_again() -> None:
    """Captured while the machine was busy: 3 ms on one stream. Now it takes 1 ms, and streams 1.5."""
    series = Series(one_us=3000)
    assert series.replays(4000, 1_500, 1_000) == 4000
    series.replays(1000, 1_500, 1_000)
    assert series.counts[0] >= 1
    assert series.watch.alone > 800


# -- the same in replays, with workers that are late

X = torch.randn(16, 16)
takes_s = {"worker": 0.0, "caller": 0.0}


@torch.library.custom_op("npucompose_tests::on_a_worker", mutates_args=())
def on_a_worker(x: torch.Tensor) -> torch.Tensor:
    """Takes as long as a test says, for instance on a thread of streams that gets no core."""
    seconds = takes_s["caller" if threading.get_ident() == threading.main_thread().ident else "worker"]
    if seconds:
        time.sleep(seconds)
    return x + 1


on_a_worker.register_fake(torch.empty_like)


def step(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    side = torch.ops.npucompose_tests.on_a_worker(x).mm(x)
    state.add_(1)
    return x.mm(x).relu() + side + state


@pytest.fixture
def takes() -> Iterator[dict[str, float]]:
    """On threads of our own: those of torch, which wait by looking, are late whenever another process wants a core."""
    with one_thread():
        yield takes_s
    takes_s.update(worker=0.0, caller=0.0)


def on_two(module: fx.GraphModule, inputs: list[torch.Tensor], **workers: Any) -> CapturedGraph:
    entries = (PlanEntry(stream="s", match=Match(name="on_a_worker")), PlanEntry(stream="s", match=Match(name="mm")))
    apply(module.graph, Streams(kind="explicit", plan=entries), CAN)
    module.recompile()
    with one_thread():
        captured = CapturedGraph.capture(module, inputs, workers=Workers(count=2, **workers))
    assert captured.threads is not None
    return captured


def fallback_of(captured: CapturedGraph) -> Fallback:
    return Fallback(**captured.facts()["fallback"])


def replay_and_compare(captured: CapturedGraph, count: int, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    for _ in range(count):
        x = torch.randn(16, 16)
        assert same(captured.replay(x, ours), [step(x, theirs)])
        assert same([ours], [theirs])


@needs_two_cores
def test_late_workers_are_left_alone_with_the_same_bits_and_it_is_said_once(
    takes: dict[str, float], recwarn: pytest.WarningsRecorder
) -> None:
    ours, theirs = torch.zeros(16, 16), torch.zeros(16, 16)
    captured = on_two(traced(step, X, ours), [X, ours])
    replay_and_compare(captured, 20, ours, theirs)
    takes["worker"] = 0.01
    replays = 20
    while fallback_of(captured).alone < 30 and replays < 800:  # soon, but where the machine is busy
        replay_and_compare(captured, 20, ours, theirs)
        replays += 20
    left = fallback_of(captured)
    assert left.replays == replays
    assert left.falls >= 1
    assert left.alone >= 30
    takes.update(worker=0.0, caller=0.1)  # the pause is over soon
    for _ in range(500):
        if fallback_of(captured).trials > left.trials:
            break
        replay_and_compare(captured, 1, ours, theirs)
    takes["caller"] = 0.0
    replay_and_compare(captured, 20, ours, theirs)
    assert fallback_of(captured).trials > left.trials
    assert len([one for one in recwarn if WARNING in str(one.message)]) == 1


@needs_two_cores
def test_without_the_fallback_late_workers_are_waited_for(takes: dict[str, float]) -> None:
    """The negative control: nothing but the option leaves the streams."""
    ours, theirs = torch.zeros(16, 16), torch.zeros(16, 16)
    captured = on_two(traced(step, X, ours), [X, ours], falls_back=False)
    takes["worker"] = 0.005
    begun = time.monotonic()
    replay_and_compare(captured, 20, ours, theirs)
    assert time.monotonic() - begun > 20 * 0.005
    assert captured.facts()["fallback"] is None


def test_the_target_says_whether_streams_fall_back() -> None:
    assert CpuTarget().recording.workers.falls_back
    assert not CpuTarget(stream_fallback=False).recording.workers.falls_back


# -- for real


@contextlib.contextmanager
def a_busy_core(core: int) -> Iterator[None]:
    burner = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    )
    try:
        time.sleep(0.3)
        yield
    finally:
        burner.kill()
        burner.wait()


def chains(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    left, right = x, y
    for _ in range(6):
        left, right = torch.tanh(left @ x), torch.tanh(right @ y)
    return left + right


@pytest.mark.slow
@needs_two_cores
def test_with_a_second_process_on_one_core_no_plan_takes_much_longer_than_one_stream() -> None:
    inputs = [torch.randn(128, 128) / 12 for _ in range(2)]
    module = traced(chains, *inputs)
    apply(module.graph, Streams(min_gain=0, cost="none"), CAN)
    module.recompile()
    with one_thread():
        planned = CapturedGraph.capture(module, inputs, workers=Workers(count=2))
        single = CapturedGraph.capture(traced(chains, *inputs), inputs)
        assert planned.threads is not None
        for _ in range(100):
            planned.replay(*inputs)
        expected = [chains(*inputs)]
        with a_busy_core(max(os.sched_getaffinity(0))), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(100):
                assert same(planned.replay(*inputs), expected)
            took = {planned: 0.0, single: 0.0}
            for _ in range(40):
                for way in took:
                    begun = time.perf_counter()
                    for _ in range(25):
                        outputs = way.replay(*inputs)
                    took[way] += time.perf_counter() - begun
                    assert same(outputs, expected)
    assert took[planned] < 1.15 * took[single], (took, planned.facts()["fallback"])
