"""Words and numbers for people, shared by everything that prints a report."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.results.measured import CallStatistics, Cause, Numerics, Share
from npucompose.results.record import Report, Status, StreamFacts

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "ok",
    "expect_failed": "an expectation failed",
    "numerics_failed": "numerics failed",
    "illegal": "illegal configuration",
    "failed": "failed",
    "timeout": "timeout",
    "memory_limit": "memory limit",
    "crashed": "crashed",
}
STATUS_STYLES: Mapping[Status, str] = {"ok": "bold green", "expect_failed": "bold yellow"}


CAUSE_WORDS: Mapping[Cause | None, str] = {
    "model": "differs from itself",
    "tracing": "tracing changed the results",
    "passes": "wrong results",
    "replay": "wrong results",
    None: "wrong results",
}


def log_words(report: Report) -> str | None:
    """`run.log was cut: 4.1 GiB beyond pipeline.log_limit_mb are not kept`."""
    cut = report.log_cut_bytes
    return f"run.log was cut: {as_bytes(cut)} beyond pipeline.log_limit_mb are not kept" if cut else None


def status_words(report: Report) -> str:
    """The status of one run. Only results that differ from those of the graph they should be of are called wrong."""
    if report.status != "numerics_failed":
        return STATUS_WORDS[report.status]
    return CAUSE_WORDS[report.numerics.cause if report.numerics is not None else None]


def part_words(found: Numerics) -> str | None:
    """`replay exact; passes changed 3e-05; tracing changed 1.8e-07`; None where results are eager's bit for bit."""
    named = {"replay": found.replay, "passes": found.passes, "tracing": found.tracing}
    words = [f"{name} {_changed(share)}" for name, share in named.items() if share is not None]
    return "; ".join(words) or None


def _changed(share: Share) -> str:
    if share.bitwise:
        return "exact"
    return (
        "changed shapes, structure or infinities" if share.max_abs_err is None else f"changed {share.max_abs_err:.2g}"
    )


def as_count(number: int, one: str, many: str | None = None) -> str:
    """`as_count(2, "match", "matches")` is `2 matches`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def ran_as(told: CallStatistics) -> str:
    """`12 replayed · 3 recorded, 1 of them in another's place · 2 without a recording`."""
    recorded = f"{told.captures} recorded"
    if told.replacements:
        recorded += f", {told.replacements} of them in another's place"
    return f"{told.hits} replayed · {recorded} · {told.eager} without a recording"


def contract_words(rtol: float, atol: float) -> str:
    """`rtol 1e-05, atol 1e-06`; `every bit` where both are 0."""
    given = [f"{name} {value:g}" for name, value in (("rtol", rtol), ("atol", atol)) if value]
    return ", ".join(given) or "every bit"


def as_time(microseconds: float) -> str:
    """`as_time(517.04)` is `517.0 µs`, `as_time(2_500)` is `2.50 ms`."""
    if microseconds < 1e3:
        return f"{microseconds:.1f} µs"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds / 1e6:.2f} s"


def as_bytes(number: int) -> str:
    """`as_bytes(9421)` is `9.2 KiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def stream_words(plan: StreamFacts) -> list[str]:
    """How the streams were executed and what was measured: `executed on 2 threads`, `measured 2.5 ms of 5.0 ms`."""
    words: list[str] = []
    if plan.threads is not None:
        why = f": {plan.why_threads}" if plan.why_threads else ""
        words.append(f"executed on {as_count(plan.threads, 'thread')}{why}")
    if plan.measured_us is not None and plan.measured_serial_us is not None:
        words.append(f"measured {as_time(plan.measured_us)} of {as_time(plan.measured_serial_us)}")
    if plan.prediction_error is not None:
        words.append(f"prediction off by {plan.prediction_error:+.1%}")
    return words


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
        words.insert(0, f"measured {measured} against {alone} on one stream, p10 of {turns} turns")
    if plan.predicted_us is not None and plan.serial_us is not None:
        words.append(f"predicted {as_time(plan.predicted_us)} against {as_time(plan.serial_us)}")
    return ", ".join(words)


def _both(low_us: float, high_us: float) -> str:
    return f"{as_time(low_us)} (p90 {as_time(high_us)})"


def is_wrong(report: Report) -> bool:
    """No speed is shown beside results that are not those of the reference."""
    return report.status == "numerics_failed" or (report.numerics is not None and not report.numerics.passed)


def why_untimed(report: Report) -> str:
    """Why a run's times are not shown."""
    cause = report.numerics.cause if report.numerics is not None else None
    if cause == "model":
        return "there is no reference to compare with"
    return "tracing changed the results" if cause == "tracing" else "the results are wrong"


def numerics_notes(report: Report) -> list[str]:
    """What to know of the comparison beside its verdict: what it says of a device, and where it ended early."""
    found = report.numerics
    notes = [] if found is None else [words for words in (part_words(found), found.note) if words]
    if found is not None and found.model and found.cause != "model":
        notes.append(found.model)
    replay = report.stages.replay
    if replay is not None and replay.detached_ended:
        notes.append(f"the comparison of the detached handle ended {replay.detached_ended}")
    return notes


def partition_words(report: Report) -> list[str]:
    """How each graph that is cut was cut: `3 segments, 2 operators outside recordings: cond at model.py:41`."""
    cut = [(graph.id, graph.partition) for graph in report.graphs if graph.partition and graph.partition.outside]
    return [f"{name}: {found.words}" if len(report.graphs) > 1 else found.words for name, found in cut]


def overwrites_words(report: Report) -> list[str]:
    """Graphs that run several times in one call and overwrite what the earlier runs returned."""
    return [graph.overwrites.words(graph.id) for graph in report.graphs if graph.overwrites is not None]
