"""Words and numbers for people, shared by everything that prints a report."""

from __future__ import annotations

from collections.abc import Mapping

from npucompose.schema.record import Report, Status, StreamFacts

STATUS_WORDS: Mapping[Status, str] = {
    "ok": "ok",
    "expect_failed": "an expectation failed",
    "numerics_failed": "wrong results",
    "illegal": "illegal configuration",
    "failed": "failed",
    "timeout": "timeout",
    "crashed": "crashed",
}
STATUS_STYLES: Mapping[Status, str] = {"ok": "bold green", "expect_failed": "bold yellow"}


def as_count(number: int, one: str, many: str | None = None) -> str:
    """`as_count(2, "match", "matches")` is `2 matches`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


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


def is_wrong(report: Report) -> bool:
    """No speed is shown beside results that are not those of the reference."""
    return report.status == "numerics_failed" or (report.numerics is not None and not report.numerics.passed)


def numerics_notes(report: Report) -> list[str]:
    """What to know of the comparison beside its verdict: what it says of a device, and where it ended early."""
    notes = [report.numerics.note] if report.numerics is not None and report.numerics.note else []
    replay = report.stages.replay
    if replay is not None and replay.detached_ended:
        notes.append(f"the comparison of the detached handle ended {replay.detached_ended}")
    return notes
