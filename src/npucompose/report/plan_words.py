"""Sentences about plans of streams: what was predicted, tried, applied and measured."""

from __future__ import annotations

from collections.abc import Iterator

from npucompose.report.words import as_count, as_time
from npucompose.results.streams import Fallback, StreamFacts, TrialVerdict
from npucompose.schema.sizes import as_bytes


def stream_words(plan: StreamFacts) -> list[str]:
    """What a plan needs, how it was executed, what was measured: `pool 9.2 KiB, on one stream 8.0 KiB`, `executed on 2
    threads`, `measured 2.5 ms, 5.0 ms on one stream`."""
    words = list(_lengthened(plan))
    if plan.threads is not None:
        why = f": {plan.why_threads}" if plan.why_threads else ""
        words.append(f"executed on {as_count(plan.threads, 'thread')}{why}")
    if plan.fallback is not None:
        words.append(fallback_words(plan.fallback))
    if plan.measured_us is not None and plan.measured_serial_us is not None:
        words.append(f"measured {as_time(plan.measured_us)}, {as_time(plan.measured_serial_us)} on one stream")
    if plan.profile is not None:
        words.append(f"predicted from {plan.profile.words}")
    if plan.prediction_error is not None:
        words.append(f"prediction off by {plan.prediction_error:+.1%}")
    return words


def fallback_words(fallback: Fallback) -> str:
    """`1200 of 5000 replays on one stream, as the streams took longer (a busy machine): given up 2 times, tried again
    3 times`."""
    return (
        f"{fallback.alone} of {as_count(fallback.replays, 'replay')} on one stream, as the streams took longer (a busy "
        f"machine): given up {as_count(fallback.falls, 'time')}, tried again {as_count(fallback.trials, 'time')}"
    )


def _lengthened(plan: StreamFacts) -> Iterator[str]:
    """What streams cost in memory: as it was placed, where somebody placed it, else as it is predicted."""
    places = ("pool", plan.pool_bytes, plan.one_stream_pool_bytes)
    what, taken, alone = places if plan.pool_bytes is not None else ("at most", plan.peak_bytes, plan.serial_peak_bytes)
    if taken is not None and alone is not None and taken != alone:
        yield f"{what} {as_bytes(taken)}, on one stream {as_bytes(alone)}"


def plan_words(plan: StreamFacts) -> str:
    """Whether the plan runs and why: `plan applied: measured 251.0 µs (p90 268.0 µs) against 302.0 µs (p90 330.0 µs) on
    one stream, p10 of 40 turns, predicted 873.7 µs against 704.5 µs`; '' for a plan that nobody weighed."""
    kept = sum(verdict.applied for verdict in plan.trials)
    if plan.trials and 0 < kept < len(plan.trials):
        return f"plan applied in {kept} of {as_count(len(plan.trials), 'recording')}: {plan.why}"
    if plan.applied and not plan.trials:
        return ""
    return f"plan {'applied' if plan.applied else 'not applied'}: {plan.why}" if plan.why else ""


def trial_words(plan: StreamFacts) -> str:
    """What the trials of a plan's recordings found, beside what is predicted; times of several are added."""
    timed = [verdict for verdict in plan.trials if verdict.turns]
    words = list(dict.fromkeys(verdict.why for verdict in plan.trials if verdict.why))
    if timed:
        turns = min(verdict.turns for verdict in timed)
        measured = _both(sum(v.plan_us or 0 for v in timed), sum(v.plan_p90_us or 0 for v in timed))
        alone = _both(sum(v.one_stream_us or 0 for v in timed), sum(v.one_stream_p90_us or 0 for v in timed))
        words.insert(0, f"measured {measured} against {alone} on one stream, p10 of {turns} turns{_threads(timed[0])}")
    if plan.predicted_us is not None and plan.serial_us is not None:
        words.append(f"predicted {as_time(plan.predicted_us)} against {as_time(plan.serial_us)}{_interval(plan)}")
    return ", ".join(words)


def _interval(plan: StreamFacts) -> str:
    """Between which gains the prediction leaves it, where that is known."""
    if plan.gain_interval is None:
        return ""
    low, high = plan.gain_interval
    return f" (a gain of {low:.0%} to {high:.0%})"


def _threads(verdict: TrialVerdict) -> str:
    """How many threads were compared, and that those of one stream's kernels win where they do."""
    if not verdict.threads:
        return ""
    own = as_count(verdict.intra_op_threads, "intra-op thread")
    compared = f", {verdict.threads} threads with one for each kernel against {own}"
    wins = not verdict.applied and verdict.intra_op_threads > 1 and (verdict.gain or 0) <= 0
    return f"{compared}, which {'wins' if verdict.intra_op_threads == 1 else 'win'}" if wins else compared


def _both(low_us: float, high_us: float) -> str:
    return f"{as_time(low_us)} (p90 {as_time(high_us)})"
