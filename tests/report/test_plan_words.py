"""What a summary says of a plan that was tried: both times beside the prediction, or why there was no trial."""

from __future__ import annotations

import attrs

from npucompose.experiment.assemble import _streams, _tried
from npucompose.report.plan_words import plan_words, stream_words
from npucompose.results.streams import Fallback, StreamFacts, TrialVerdict
from npucompose.table.structure import facts_of

PLAN = StreamFacts(
    streams=2, events=8, nodes={"mm": "default", "abs": "stream1"}, predicted_us=873.7, serial_us=704.5,
    why="objective makespan, predicted gain -24.0%, to be tried at capture",
)  # fmt: skip
FASTER = TrialVerdict(applied=True, turns=40, plan_us=251, plan_p90_us=268, one_stream_us=302, one_stream_p90_us=330)
SLOWER = attrs.evolve(FASTER, applied=False, plan_us=310, plan_p90_us=350)
TIMES = "against 302.0 µs (p90 330.0 µs) on one stream, p10 of 40 turns"


def tried(*verdicts: TrialVerdict) -> StreamFacts:
    return _tried(PLAN, [{"streams": 2, "trial": facts_of(verdict)} for verdict in verdicts])


def test_a_plan_that_was_faster_is_applied_and_both_times_stand_beside_the_prediction() -> None:
    plan = tried(FASTER)
    assert (plan.applied, plan.streams, plan.events, plan.trials) == (True, 2, 8, (FASTER,))
    assert plan_words(plan) == (
        f"plan applied: measured 251.0 µs (p90 268.0 µs) {TIMES}, predicted 873.7 µs against 704.5 µs"
    )


def test_a_plan_that_was_slower_leaves_one_stream() -> None:
    plan = tried(SLOWER)
    assert (plan.applied, plan.streams, plan.events) == (False, 1, 0)
    assert set(plan.nodes.values()) == {"default"}
    assert plan_words(plan) == (
        f"plan not applied: measured 310.0 µs (p90 350.0 µs) {TIMES}, predicted 873.7 µs against 704.5 µs"
    )


def test_it_is_said_how_many_threads_were_compared_and_which_win() -> None:
    on_two = {"threads": 2, "intra_op_threads": 2}
    compared = "p10 of 40 turns, 2 threads with one for each kernel against 2 intra-op threads"
    assert f"{compared}, predicted" in plan_words(tried(attrs.evolve(FASTER, **on_two)))
    assert f"{compared}, which win, predicted" in plan_words(tried(attrs.evolve(SLOWER, **on_two)))
    too_little = attrs.evolve(FASTER, applied=False, why="below streams.min_gain", **on_two)
    assert f"{compared}, below" in plan_words(tried(too_little))
    alone = attrs.evolve(SLOWER, threads=2, intra_op_threads=1)
    assert "one for each kernel against 1 intra-op thread, predicted" in plan_words(tried(alone))


def test_a_plan_that_was_not_tried_says_why() -> None:
    plan = tried(TrialVerdict(applied=False, why="not tried: aten.rand.default draws random numbers"))
    assert plan_words(plan) == (
        "plan not applied: not tried: aten.rand.default draws random numbers, predicted 873.7 µs against 704.5 µs"
    )


def test_several_recordings_are_counted_and_their_times_added() -> None:
    plan = tried(FASTER, SLOWER)
    assert plan_words(plan) == (
        "plan applied in 1 of 2 recordings: measured 561.0 µs (p90 618.0 µs) against 604.0 µs (p90 660.0 µs) on one "
        "stream, p10 of 40 turns, predicted 873.7 µs against 704.5 µs"
    )


def test_a_plan_that_nobody_tried_is_told_as_before() -> None:
    assert plan_words(attrs.evolve(PLAN, applied=True)) == ""
    assert plan_words(attrs.evolve(PLAN, applied=False, why="predicted gain -24.0%")) == (
        "plan not applied: predicted gain -24.0%"
    )
    assert _tried(PLAN, [{"streams": 2, "threads": 2}]) == PLAN


def recorded(**fallback: int) -> dict[str, object]:
    return {"streams": 2, "threads": 2, "why_threads": "", "fallback": facts_of(Fallback(**fallback))}


def test_replays_that_left_the_streams_on_a_busy_machine_are_counted() -> None:
    calm = recorded(replays=1000, alone=5, falls=0, trials=0)
    busy = recorded(replays=4000, alone=1195, falls=1, trials=3)
    facts = {"compile": {"streams": facts_of(PLAN)}}
    plan = _streams({**facts, "benchmark": {"recordings": [calm, busy]}})
    assert plan is not None
    assert stream_words(plan) == [
        "executed on 2 threads",
        "1200 of 5000 replays on one stream, as the streams took longer (a busy machine): given up 1 time, tried again "
        "3 times",
    ]
    plan = _streams({**facts, "benchmark": {"recordings": [calm]}})
    assert plan is not None
    assert stream_words(plan) == ["executed on 2 threads"]
