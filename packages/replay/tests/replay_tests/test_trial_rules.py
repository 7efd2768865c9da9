"""The rules of a trial of streams: what is tried, in which order, from which state, and what the times say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx

from npucompose.results.streams import TrialRequest, TrialVerdict
from npucompose_replay.executor import trial as trials
from npucompose_replay.executor.native import Native
from npucompose_replay.executor.trial import PlanTrial, Way, _quantile, _Race, _too_long, why_untriable
from npucompose_replay.operands import layout_of
from npucompose_replay.plan import Plan, PlanSlot, Root, Step
from tests.graph_helpers import built, same

aten = torch.ops.aten
TRIAL = TrialRequest(ms=50, min_gain=0.02)


class Stub(Native):
    """A native replayer that only says where an input is to lie."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, int]] = []

    def move(self, index: int, tensor: torch.Tensor) -> None:
        self.moved.append((index, tensor.data_ptr()))


class Storages:
    storages: dict[int, Any] = {}  # noqa: RUF012


def way(threads: Any = "two") -> Way:
    memory: Any = Storages()
    return Way(threads=threads, why_threads="", memory=memory, executor=Stub(), why_executor="")


def plan_of(*steps: Step, roots: tuple[Root, ...] = (), pinned: frozenset[int] = frozenset()) -> Plan:
    return Plan(
        steps=steps, outputs=(), roots=roots, pinned=pinned, from_zero=frozenset(), register_roots={}, views_resolved=0,
        constants=0,
    )  # fmt: skip


def slot(kind: Any = "pool", **given: Any) -> PlanSlot:
    return PlanSlot(Root(kind=kind, nbytes=8, **given), layout_of(torch.ones(2)))


def written(index: int) -> Root:
    return Root(kind="input", nbytes=8, index=index, written=True, tensor=torch.ones(2))


RELU = Step(op=aten.relu.default, args=(slot(),))


@pytest.mark.parametrize(("share", "microseconds"), [(0.0, 1.0), (0.1, 2.0), (0.5, 6.0), (0.9, 10.0), (1.0, 11.0)])
def test_a_quantile_is_of_the_times_in_their_order_and_in_microseconds(share: float, microseconds: float) -> None:
    assert _quantile([1000 * n for n in (7, 3, 11, 1, 5, 9, 2, 10, 4, 8, 6)], share) == microseconds


@pytest.mark.parametrize(
    ("plan", "before", "overlapping", "words"),
    [
        (plan_of(RELU), {}, set(), ""),
        (plan_of(RELU, roots=(written(1), RELU.args[0].root)), {1}, {0}, ""),
        (plan_of(RELU, Step(op=aten.rand.default, args=([2],))), {}, set(), "aten.rand.default draws random numbers"),
        (plan_of(Step(op=aten.rand.generator, args=([2],))), {}, set(), "aten.rand.generator draws random numbers"),
        (plan_of(roots=(Root(kind="attribute", nbytes=8, written=True),)), {}, set(), "writes a tensor of its own"),
        (plan_of(roots=(Root(kind="attribute", nbytes=8),)), {}, set(), ""),
        (plan_of(roots=(written(1),)), {1}, {0, 1}, "an input that is written overlaps another one"),
        (plan_of(roots=(written(1),), pinned=frozenset({1})), {1}, set(), "must lie where it does"),
        (plan_of(roots=(written(1),), pinned=frozenset({0})), {1, 2}, set(), ""),
        (plan_of(roots=(written(1), written(2))), {1}, set(), "are written take more than 64 MiB"),
        (plan_of(Step(op=aten._assert_async.default, args=(slot(),))), {}, set(), "does more than it returns"),
    ],
)
def test_what_is_not_tried_is_told(plan: Plan, before: set[int], overlapping: set[int], words: str) -> None:
    copies = {index: torch.ones(2) for index in before}
    told = why_untriable(plan, copies, frozenset(overlapping))
    assert words in told
    assert bool(words) == bool(told)


@pytest.mark.parametrize(("serial_us", "tried"), [(None, True), (50_000.0, True), (50_001.0, False)])
def test_a_replay_that_takes_longer_than_the_trial_may_is_not_tried(serial_us: float | None, tried: bool) -> None:
    asked = TrialRequest(ms=50, min_gain=0.02, predicted_us=1.0, predicted_serial_us=serial_us)
    assert (not _too_long(asked)) is tried


# -- what is copied before the call


def writing(graph: fx.Graph, xs: list[fx.Node]) -> Any:
    graph.call_function(aten.add_.Tensor, (graph.call_function(aten.select.int, (xs[1], 0, 0)), 1))
    return (graph.call_function(aten.relu.default, (xs[0],)),)


def test_inputs_that_the_graph_writes_are_copied_with_all_that_lies_around_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, memory = built(writing, 3), torch.randn(4, 2)
    inputs = [torch.ones(2), memory[1:3], 7]
    before = PlanTrial(TRIAL).before(module, inputs)
    assert set(before) == {1}
    assert same([before[1]], [memory[1:3]])
    assert before[1].storage_offset() == 2
    memory.zero_()
    assert before[1].untyped_storage().nbytes() == 32
    assert not before[1].eq(0).any()
    monkeypatch.setattr(trials, "COPIED_BYTES", 32)
    assert set(PlanTrial(TRIAL).before(module, inputs)) == {1}
    monkeypatch.setattr(trials, "COPIED_BYTES", 31)
    assert PlanTrial(TRIAL).before(module, inputs) == {}
    tried = PlanTrial(TRIAL)
    tried._tried = TrialVerdict(applied=True)
    monkeypatch.undo()
    assert tried.before(module, inputs) == {}


# -- the race


class Clock:
    """Every replay takes `ns[way]`; `told` says who replayed, 0 the streams, 1 the one stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, streams_ns: int, one_ns: int) -> None:
        self.told: list[int] = []

        def replay(race: _Race, which: Way) -> int:
            self.told.append(race.ways.index(which))
            return (streams_ns, one_ns)[self.told[-1]]

        monkeypatch.setattr(_Race, "_replay", replay)


def race(asked: TrialRequest = TRIAL, before: dict[int, torch.Tensor] | None = None, *roots: Root) -> _Race:
    return _Race(plan_of(roots=roots), way(), way(None), before or {}, asked)


def test_both_ways_take_turns_at_being_first_and_short_replays_are_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_TURNS", 6)
    clock = Clock(monkeypatch, streams_ns=1000, one_ns=2000)
    verdict = race(TrialRequest(ms=1e6, min_gain=0.02)).verdict()
    assert clock.told == [1, 0, *([1, 1, 0, 0, 0, 0, 1, 1] * 3)]
    assert (verdict.applied, verdict.turns, verdict.plan_us, verdict.one_stream_us) == (True, 6, 1.0, 2.0)
    clock = Clock(monkeypatch, streams_ns=2_000_001, one_ns=2_000_000)
    verdict = race(TrialRequest(ms=1e6, min_gain=0.02)).verdict()
    assert clock.told == [1, 0, *([1, 1, 0, 0, 1, 1] * 3)]
    assert not verdict.applied


def test_time_ends_a_race_after_the_least_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, streams_ns=1000, one_ns=2000)
    assert race(TrialRequest(ms=0.0, min_gain=0.02)).verdict().turns == trials.LEAST_TURNS == 5
    assert trials.MOST_TURNS == 200
    assert trials.COPIED_BYTES == 64 * 2**20


def test_a_verdict_has_the_quick_and_the_slow_times_of_both() -> None:
    found = race()._judged([1000 * n for n in range(1, 12)], [3000 * n for n in range(1, 12)])
    assert (found.plan_us, found.plan_p90_us, found.one_stream_us, found.one_stream_p90_us) == (2.0, 10.0, 6.0, 30.0)
    assert (found.applied, found.turns, found.why) == (True, 11, "")


@pytest.mark.parametrize(
    ("plan_ns", "one_ns", "applied", "why"),
    [
        (980, 1000, True, ""),
        (981, 1000, False, "measured gain 1.9% is below streams.min_gain 2.0%"),
        (1000, 1000, False, ""),
        (1100, 1000, False, ""),
    ],
)
def test_a_plan_is_kept_from_the_gain_on_that_is_asked(plan_ns: int, one_ns: int, applied: bool, why: str) -> None:
    found = race()._judged([plan_ns] * 5, [one_ns] * 5)
    assert (found.applied, found.why) == (applied, why)


@pytest.mark.parametrize("raised", [trials._OutOfTime(), RuntimeError("one\ntwo")])
@pytest.mark.parametrize("predicted_us", [5.0, 10.0])
def test_a_race_that_comes_to_no_end_leaves_it_to_the_prediction(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, predicted_us: float
) -> None:
    def replay(*_: Any) -> int:
        raise raised

    monkeypatch.setattr(_Race, "_replay", replay)
    asked = TrialRequest(ms=50, min_gain=0.02, predicted_us=predicted_us, predicted_serial_us=10.0)
    verdict = race(asked).verdict()
    assert verdict.applied == (predicted_us == 5.0)
    words = "a replay of the trial failed: one"
    if isinstance(raised, trials._OutOfTime):
        words = "5 turns take longer than streams.trial_ms=50"
    assert verdict.why == f"not tried: {words}"


@pytest.mark.parametrize("fails", [False, True])
def test_written_inputs_are_copies_during_the_race_and_where_they_lay_afterwards(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(trials, "MOST_TURNS", 5)
    Clock(monkeypatch, 1000, 2000)
    if fails:
        monkeypatch.setattr(_Race, "_seen", lambda self, which: pytest.fail("no"))
    given, before = torch.ones(2), {1: torch.full((2,), 7.0), 2: torch.ones(0)}
    roots = (written(1), written(3), Root(kind="input", nbytes=0, index=2, written=True, tensor=torch.ones(0)))
    roots[0].tensor = given
    tried = race(TRIAL, before, *roots)
    with contextlib.suppress(BaseException):
        tried.verdict()
    copy = tried.written[1].data_ptr()
    for one in tried.ways:
        assert isinstance(one.executor, Stub)
        assert one.executor.moved == [(1, copy), (1, given.data_ptr())]
    assert copy not in (given.data_ptr(), before[1].data_ptr())


class Recording:
    def took(self, count: int) -> list[int]:
        return [123] * count


def test_each_replay_begins_with_the_inputs_as_they_were_and_none_after_the_deadline() -> None:
    tried = race(TRIAL, {1: torch.full((2,), 7.0)}, written(1))
    executor: Any = tried.ways[0].executor
    executor.recording = Recording()
    tried.deadline = float("inf")
    tried.written[1].zero_()
    assert tried._replay(tried.ways[0]) == 123
    assert tried.written[1].tolist() == [7.0, 7.0]
    assert [t.tolist() for t in tried._seen(tried.ways[0])] == [[7.0, 7.0]]
    assert tried._seen(tried.ways[0])[0].data_ptr() != tried.written[1].data_ptr()
    tried.deadline = 0.0
    with pytest.raises(trials._OutOfTime):
        tried._replay(tried.ways[0])


# -- judged


@contextlib.contextmanager
def turns(held: list[bool]) -> Iterator[None]:
    held[0] = True
    yield
    held[0] = False


def judge(trial: PlanTrial, streams: Way, one: Way, plan: Plan | None = None, held: list[bool] | None = None) -> Any:
    return trial.judged(
        plan or plan_of(RELU), streams, lambda: one, before={}, overlapping=frozenset(), turns=turns(held or [False])
    )


def test_a_race_is_run_while_nobody_else_replays_and_once_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    held, found = [False], TrialVerdict(applied=True, turns=9)

    def verdict(self: _Race) -> TrialVerdict:
        assert held == [True]
        return found

    monkeypatch.setattr(_Race, "verdict", verdict)
    trial, streams, one = PlanTrial(TRIAL), way(), way(None)
    assert judge(trial, streams, one, held=held) == (streams, found)
    assert held == [False]
    assert judge(trial, streams, one) == (streams, TrialVerdict(applied=True, why=trials.TOGETHER))
    trial, found = PlanTrial(TRIAL), TrialVerdict(applied=False, turns=9)
    assert judge(trial, streams, one, held=held) == (one, found)
    assert judge(trial, streams, one) == (one, TrialVerdict(applied=False, why=trials.TOGETHER))


def test_where_no_streams_are_left_there_is_nothing_to_try() -> None:
    trial, one = PlanTrial(TRIAL), way(None)
    assert judge(trial, one, way()) == (one, TrialVerdict(applied=False, why=trials.NOTHING_BESIDE))
    why = Way(threads=None, why_threads="one core", memory=one.memory, executor=one.executor, why_executor="")
    assert judge(trial, why, way())[1].why == "one core"


@pytest.mark.parametrize("predicted_us", [5.0, 10.0])
def test_what_is_not_tried_follows_the_prediction_and_is_asked_again(predicted_us: float) -> None:
    asked = TrialRequest(ms=50, min_gain=0.02, predicted_us=predicted_us, predicted_serial_us=10.0)
    trial, streams, one = PlanTrial(asked), way(), way(None)
    plan = plan_of(Step(op=aten.rand.default, args=([2],)))
    for _ in range(2):
        kept, verdict = judge(trial, streams, one, plan)
        assert kept is (streams if predicted_us == 5.0 else one)
        assert verdict.applied == (predicted_us == 5.0)
        assert verdict.why == "not tried: aten.rand.default draws random numbers"
